"""The device mesh and how arrays lie on it: the only file that names its axes.

The first axis splits the batch; its name says what else it splits:

  data  nothing; parameters and optimizer state are whole on each device.
  zero  the optimizer state. Each device updates its part of the parameters, and all
        gather the result (ZeRO, stage 1: Rajbhandari et al. 2020).
  fsdp  the parameters too. All gather them for each step (ZeRO, stage 3), layer by
        layer, and send a layer's gradients while they compute those of the one before:
        see `layer_boundary`.

A mesh of `data` may have a second axis, `tensor`: its devices share the work on one
part of the batch, and split heads, MLP units and softmax rows (Shoeybi et al. 2019).
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt1_jax.errors import UserError

_BATCH_AXES = {"replicated": "data", "optimizer": "zero", "full": "fsdp"}
_TENSOR_AXIS = "tensor"

# The dimension of an array that the tensor axis splits, by the end of its path.
_TENSOR_DIMENSIONS = {
    "wte": 1,
    "wpe": 1,
    "attn/c_attn/kernel": 1,
    "attn/c_attn/bias": 0,
    "attn/c_proj/kernel": 0,
    "mlp/c_fc/kernel": 1,
    "mlp/c_fc/bias": 0,
    "mlp/c_proj/kernel": 0,
}


def make_mesh(
    sharding: str = "replicated",
    tensor_parallelism: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """A mesh of devices.

    Args:
      sharding: what the mesh splits beside the batch: nothing ("replicated"), the
        optimizer's state ("optimizer"), or the parameters too ("full"). "auto" is
        "full" on several accelerators without tensor parallelism, where it is the
        fastest, and otherwise "replicated".
      tensor_parallelism: devices that share a part of the batch.
      devices: by default all devices of all processes.

    Raises:
      ValueError: if the number of devices of a process, or JAX, does not allow it.
    """
    devices = jax.devices() if devices is None else devices
    if sharding == "auto":
        apart = len(devices) > 1 and devices[0].platform != "cpu"
        sharding = "full" if apart and tensor_parallelism == 1 else "replicated"
    if tensor_parallelism == 1:
        return Mesh(np.asarray(devices), (_BATCH_AXES[sharding],))
    if jax.__version_info__ < (0, 8):
        raise UserError(
            f"config.mesh.tensor_parallelism={tensor_parallelism} needs JAX 0.8 or "
            f"newer, and this is {jax.__version__}; use 1, or upgrade JAX."
        )
    process = devices[0].process_index
    together = sum(device.process_index == process for device in devices)
    if together % tensor_parallelism:
        raise UserError(
            f"config.mesh.tensor_parallelism={tensor_parallelism} does not divide the "
            f"{together} devices of a process; use a divisor of {together}."
        )
    grid = np.asarray(devices).reshape(-1, tensor_parallelism)
    return Mesh(grid, (_BATCH_AXES["replicated"], _TENSOR_AXIS))


def data_parallelism(mesh: Mesh) -> int:
    """The number of parts into which the mesh splits a batch."""
    return mesh.shape[_batch_axis(mesh)]


def tensor_parallelism(mesh: Mesh) -> int:
    """The number of devices that share each part."""
    return mesh.size // data_parallelism(mesh)


def state_share(mesh: Mesh) -> float:
    """Roughly the share of parameters, gradients and two moments that a device holds.

    Gradients, and gathered parameters, are whole for a part of every step.
    """
    parts = 1 if _batch_axis(mesh) == "data" else data_parallelism(mesh)
    return (2 + 2 / parts) / 4 / tensor_parallelism(mesh)


def state_sharding(mesh: Mesh, abstract_state: Any) -> Any:
    """The sharding of each array in a train state, by its path.

    Args:
      mesh: the device mesh.
      abstract_state: parameters, or a state that holds them, as returned by
        `jax.eval_shape`.

    Returns:
      A `NamedSharding` for each array.
    """
    axis = mesh.axis_names[-1]  # the last axis is the one that may split a state
    return jax.tree.map(
        lambda dim: NamedSharding(mesh, _spec(dim, axis)),
        _split_dimensions(mesh, abstract_state),
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For every array of a batch: axis 0 split over the devices."""
    return NamedSharding(mesh, _spec(0, _batch_axis(mesh)))


def replicated(mesh: Mesh) -> NamedSharding:
    """For scalars and metrics: the same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def gathered(mesh: Mesh, params: Any) -> Any:
    """Parameters, whole on each device; all processes must call this."""
    if all(param.is_fully_replicated for param in jax.tree.leaves(params)):
        return params
    return jax.jit(lambda x: x, out_shardings=replicated(mesh))(params)


def rows_by_device(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes each device compute its rows of a batch.

    Args:
      mesh: the device mesh.
      function: (params, *arrays) -> arrays; axis 0 of all is that of the batch.

    Returns:
      The same function, of whole batches; to be jitted.
    """
    if mesh.size == 1:
        return function

    def on_all(params: Any, *arrays: jax.Array) -> Any:
        dims = _split_by_batch(mesh, params)

        def on_device(params: Any, *rows: jax.Array) -> Any:
            return function(_gather(params, dims), *rows)

        rows = batch_sharding(mesh).spec
        in_specs = _batch_specs(mesh, dims), *(rows for _ in arrays)
        return _map_batch(mesh, on_device, in_specs, rows)(params, *arrays)

    return on_all


def gradients_by_device(
    mesh: Mesh,
    gradients: Callable[..., tuple[Any, Any]],
    rounded: Callable[[str], Any] = lambda name: None,
    by_layer: bool = False,
) -> Callable[..., tuple[Any, Any]]:
    """Makes each device compute the gradients of its rows, and averages them once.

    The compiler would sum each array on its own, and the gradient of the tied
    embedding twice, from its lookup and from the softmax.

    Args:
      mesh: the device mesh.
      gradients: (params, rows, same) -> (losses, gradients), means over the rows;
        axis 0 of `rows` is that of the batch, and `same` is for all rows. If the mesh
        splits the parameters, `wte` is a `SplitTable`.
      rounded: of a parameter's path ("h_0/mlp/c_fc/kernel"), the dtype that the model
        rounds it to before each use, or None. It is sent in this dtype.
      by_layer: whether the model exchanges its layers ("h_0", "h_1", ..) itself, by
        `layer_boundary`; if not, all parameters are gathered before the forward pass
        and all gradients are sent after the backward pass.

    Returns:
      The same function, of whole batches; to be jitted. The gradients lie like the
      optimizer's state; they are summed in float32.
    """
    if mesh.size == 1:
        return gradients
    axis, devices = _batch_axis(mesh), data_parallelism(mesh)

    def exchange(grad: Any, dim: int) -> jax.Array:
        if isinstance(grad, Part):  # `layer_boundary` has summed it
            return grad.part / devices
        if isinstance(grad, SplitTable):  # the gradients of lookups have been summed
            softmax = grad.softmax.part
            if softmax is None:
                softmax = _sum_and_split(grad.softmax.whole, dim)
            return (softmax + grad.columns) / devices
        if dim < 0:
            return jax.lax.pmean(grad, axis)
        return _sum_and_split(grad, dim) / devices

    def on_all(params: Any, rows: Any, same: Any) -> tuple[Any, Any]:
        dims = _split_by_batch(mesh, params)
        moment_dims = _split_by_batch(mesh, {"opt_state": params})["opt_state"]

        def prepare(path: jax.tree_util.KeyPath, part: jax.Array, dim: int) -> Any:
            """A parameter as the model gets it."""
            if dim < 0:
                return part
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            found = Part(part, dim, rounded(name))
            if by_layer and any(n.startswith("h_") for n in name.split("/")):
                return found
            if found.dtype is not None and _is_embedding(name):
                held = part if by_layer else None
                return SplitTable(part, Gathered(found.gather(), held))
            return found.gather()

        def on_device(params: Any, rows: Any, same: Any) -> tuple[Any, Any]:
            prepared = jax.tree.map_with_path(prepare, params, dims)
            losses, grads = gradients(prepared, rows, same)
            grads = jax.tree.map(exchange, grads, moment_dims, is_leaf=_is_split)
            return jax.lax.pmean(losses, axis), grads

        whole = PartitionSpec()
        in_specs = _batch_specs(mesh, dims), batch_sharding(mesh).spec, whole
        out_specs = whole, _batch_specs(mesh, moment_dims)
        return _map_batch(mesh, on_device, in_specs, out_specs)(params, rows, same)

    return on_all


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["part"],
    meta_fields=["dim", "dtype"],
)
@dataclasses.dataclass(frozen=True)
class Part:
    """A device's part of a parameter; inside `_map_batch`."""

    part: Any  # None if it only says how a parameter is split
    dim: int  # that is split; -1 if each device has all of it
    dtype: Any  # that it is sent in; None for its own

    def gather(self) -> jax.Array:
        """The whole parameter, in the dtype of the part."""
        sent = self.part.astype(self.dtype or self.part.dtype)
        axis = _mapped_axis()
        whole = jax.lax.all_gather(sent, axis, axis=self.dim, tiled=True)
        return whole.astype(self.part.dtype)


class Gathered(NamedTuple):
    """A parameter of which a device holds a part, and which is whole already."""

    whole: jax.Array
    # Only its gradient is of use: that of the whole, summed by `layer_boundary`. None
    # if it is summed after the backward pass.
    part: jax.Array | None


class SplitTable(NamedTuple):
    """An embedding [V, D] as a device has it that holds some of its columns.

    To look tokens up, devices exchange the tokens and the vectors, not the table.
    """

    columns: jax.Array  # [V, D / devices], this device's
    softmax: Gathered  # rounded as it is for the softmax


def look_up(table: jax.Array | SplitTable, tokens: jax.Array) -> jax.Array:
    """Rows of an embedding: [V, D], [...] -> [..., D].

    Of a split table each device looks up all devices' tokens in its columns.
    """
    if not isinstance(table, SplitTable):
        return table[tokens]
    axis = _mapped_axis()
    everyones = jax.lax.all_gather(tokens, axis)  # [devices, ...]
    parts = table.columns[everyones]  # [devices, ..., D / devices]
    return jax.lax.all_to_all(parts, axis, 0, parts.ndim - 1, tiled=True)[0]


def layer_boundary(
    x: jax.Array, params: Any, later: Any, softmax: Any
) -> tuple[jax.Array, Any, Any, Any]:
    """Where devices exchange the parameters and gradients of a layer; before the layer.

    In the forward pass it gathers the layer's parameters. In the backward pass, which
    comes here when the layer's gradients are ready, it sends them. They have until the
    next boundary to arrive, while the device is busy with the layer before. The largest
    gradient, the softmax's, is sent first, after the last layer.

    Args:
      x: the activations that the layer reads.
      params: the layer's parameters, each a `Part` if devices hold parts; {} after the
        last layer.
      later: the parameters of the next layer; {} if there is none.
      softmax: the matrix that scores the last layer; `Gathered` if split.

    Returns:
      The arguments as they are from here on, the layer's parameters whole. If nothing
      is split, these are the arguments.
    """
    layers = jax.tree.leaves((params, later), is_leaf=_is_split)
    sends = isinstance(softmax, Gathered) and softmax.part is not None
    if not sends and not any(map(_is_split, layers)):
        return x, params, later, softmax
    return _layer_boundary(x, params, later, softmax)


@jax.custom_vjp
def _layer_boundary(x: jax.Array, params: Any, later: Any, softmax: Any) -> Any:
    whole = _map_split(lambda v: v.gather() if isinstance(v, Part) else v, params)
    return x, whole, later, softmax


def _layer_boundary_fwd(x: jax.Array, params: Any, later: Any, softmax: Any) -> Any:
    def split(value: Any) -> Part:
        if isinstance(value, Part):
            return dataclasses.replace(value, part=None)
        return Part(None, -1, None)

    return _layer_boundary(x, params, later, softmax), _map_split(split, params)


def _layer_boundary_bwd(splits: Any, grads: Any) -> Any:
    def send(split: Part, grad: jax.Array) -> Any:
        if split.dim < 0:
            return grad
        return dataclasses.replace(split, part=_sum_and_split(grad, split.dim))

    x, params, later, softmax = grads
    arrived = softmax.part if isinstance(softmax, Gathered) else None
    if arrived is not None and not params:  # after the last layer
        return x, params, later, softmax._replace(part=_sum_and_split(softmax.whole, 1))
    # The device waits for what was sent at the boundary before this one.
    x, params, later, arrived = jax.lax.platform_dependent(
        (x, params, later, arrived),
        cpu=lambda grads: grads,
        default=jax.lax.optimization_barrier,
    )
    if arrived is not None:
        softmax = softmax._replace(part=arrived)
    return x, _map_split(send, splits, params), later, softmax


_layer_boundary.defvjp(_layer_boundary_fwd, _layer_boundary_bwd)


def softmax_rows(softmax: jax.Array | Gathered) -> jax.Array:
    """The matrix that scores the last layer: [V, D]."""
    return softmax.whole if isinstance(softmax, Gathered) else softmax


def _is_split(value: Any) -> bool:
    return isinstance(value, Part | Gathered | SplitTable)


_map_split = functools.partial(jax.tree.map, is_leaf=_is_split)


def _mapped_axis() -> str:
    """The batch axis; inside `_map_batch`."""
    return jax.sharding.get_abstract_mesh().axis_names[0]


def _sum_and_split(array: jax.Array, dim: int) -> jax.Array:
    """The sum of the devices' arrays, of which each gets its part; in `_map_batch`."""

    def scattered(array: jax.Array) -> jax.Array:
        axis = _mapped_axis()
        return jax.lax.psum_scatter(array, axis, scatter_dimension=dim, tiled=True)

    received = functools.partial(_sum_received, dim=dim)
    return jax.lax.platform_dependent(array, tpu=received, default=scattered)


def _sum_received(array: jax.Array, dim: int) -> jax.Array:
    """Sends each device its part, and sums those that arrive.

    A TPU computes while it sends all-to-all. Its own reduce-scatter keeps it waiting,
    and is a whole all-reduce on some slices.
    """
    if dim == 0:
        return _sum_received_rows(array)
    # Of an embedding, columns. If all rows went at once, and were no whole tiles of a
    # TPU, XLA would transpose them in a kernel of its own, and again what arrives.
    tiles = len(array) - len(array) % 128
    blocks = [block for block in jnp.split(array, [tiles]) if len(block)]
    return jnp.concatenate([_sum_received_rows(block.T).T for block in blocks])


def _sum_received_rows(array: jax.Array) -> jax.Array:
    axis = _mapped_axis()
    devices = jax.sharding.get_abstract_mesh().shape[axis]
    parts = array.reshape(devices, len(array) // devices, *array.shape[1:])
    received = jax.lax.all_to_all(parts, axis, 0, 0)
    # One kernel adds all; XLA has a slower one for a sum over an axis.
    total = functools.reduce(jnp.add, [received[n] for n in range(devices)])
    # The barrier keeps the layout of the small sum from being that of all parts.
    return jax.lax.optimization_barrier(total)


# Options with which a compiler lets devices compute while they exchange. A GPU's puts
# arrays together up to a size: about a layer, not all.
_EXCHANGE_OPTIONS: dict[str, dict[str, bool | str]] = {
    "tpu": {
        "xla_tpu_enable_async_all_to_all": True,
        # By default on a v5e, but not on a v6e:
        "xla_enable_async_all_gather": True,
        "xla_tpu_enable_async_collective_fusion": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    },
    "gpu": {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_all_gather_combine_threshold_bytes": str(16 * 2**20),
        "xla_gpu_reduce_scatter_combine_threshold_bytes": str(32 * 2**20),
    },
}


def exchange_options(mesh: Mesh) -> dict[str, bool | str]:
    """Compiler options for a training step; {} where the compiler knows them not."""
    platform = mesh.devices.flat[0].platform
    options = _EXCHANGE_OPTIONS.get(platform, {}) if mesh.size > 1 else {}
    if not options:
        return {}
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
    try:
        jax.jit(lambda x: x).lower(scalar).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        warnings.warn(f"Devices may wait while they exchange: {reason}", stacklevel=2)
        return {}
    return options


def split_units(x: jax.Array, dim: int | None) -> jax.Array:
    """Tells XLA how devices that share a part of the batch split an array.

    Args:
      x: an array of the model.
      dim: the dimension that they split; None if each has all of it.

    Returns:
      `x`; without such devices, this does nothing.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if _TENSOR_AXIS not in mesh.axis_names:
        return x
    spec = _spec(-1 if dim is None else dim, _TENSOR_AXIS)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def _batch_axis(mesh: Mesh) -> str:
    return mesh.axis_names[0]


def _map_batch(
    mesh: Mesh, function: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`jax.shard_map` over the batch axis; the tensor axis is left to the compiler."""
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names={_batch_axis(mesh)},
        check_vma=False,
    )


def _gather(params: Any, dims: Any) -> Any:
    """Makes a device's parts of the parameters whole; inside `_map_batch`."""

    def gather(part: jax.Array, dim: int) -> jax.Array:
        return Part(part, dim, None).gather() if dim >= 0 else part

    return jax.tree.map(gather, params, dims)


def _is_embedding(name: str) -> bool:
    return name.rpartition("/")[2] == "wte"


def _split_by_batch(mesh: Mesh, arrays: Any) -> Any:
    """The dimension of each array that the batch axis splits, or -1."""
    if _TENSOR_AXIS in mesh.axis_names:
        return jax.tree.map(lambda _: -1, arrays)
    return _split_dimensions(mesh, arrays)


def _split_dimensions(mesh: Mesh, arrays: Any) -> Any:
    """The dimension of each array that the mesh splits, or -1.

    The batch axis splits the first dimension of a matrix that it can, for its parts lie
    in one piece in memory; of an embedding the last one (see `SplitTable`). Vectors are
    a thousandth of the parameters and not worth a message of their own.
    """
    axis, parts = _batch_axis(mesh), data_parallelism(mesh)

    def split(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> int:
        name = "/" + jax.tree_util.keystr(path, simple=True, separator="/")
        if _TENSOR_AXIS in mesh.axis_names:
            ends = (end for end in _TENSOR_DIMENSIONS if name.endswith(f"/{end}"))
            return _TENSOR_DIMENSIONS.get(next(ends, ""), -1)
        if axis == "data" or (axis == "zero" and not name.startswith("/opt_state/")):
            return -1
        dims = [dim for dim, size in enumerate(leaf.shape) if size % parts == 0]
        if not dims or len(leaf.shape) == 1:
            return -1
        return dims[-1] if _is_embedding(name) else dims[0]

    return jax.tree.map_with_path(split, arrays)


def _batch_specs(mesh: Mesh, dims: Any) -> Any:
    return jax.tree.map(lambda dim: _spec(dim, _batch_axis(mesh)), dims)


def _spec(dim: int, axis: str) -> PartitionSpec:
    """Splits dimension `dim` over an axis; splits nothing if `dim` is -1."""
    return PartitionSpec(*(None,) * dim, axis) if dim >= 0 else PartitionSpec()


def check_batch_size(key: str, batch_size: int, mesh: Mesh, parts: int = 1) -> None:
    """Refuses a batch that the devices cannot share evenly.

    Args:
      key: the configuration key of the batch size.
      batch_size: sequences over all devices.
      mesh: the device mesh.
      parts: the number of gradient accumulation steps.

    Raises:
      ValueError: if they cannot; names the key and the next size that works.
    """
    groups, together = data_parallelism(mesh), tensor_parallelism(mesh)
    unit = groups * parts
    if batch_size % unit:
        raise UserError(
            f"{key}={batch_size} must be a multiple of the {groups} "
            + (f"groups of {together} devices" if together > 1 else "devices")
            + (f" times {parts} accumulation steps" if parts > 1 else "")
            + f"; use --{key}={-(-batch_size // unit) * unit}."
        )


def check_tensor_parallelism(mesh: Mesh, shared_units: Mapping[str, int]) -> None:
    """Refuses a model that the devices cannot share evenly.

    Args:
      mesh: the device mesh.
      shared_units: how many heads and MLP units there are, by configuration key; empty
        if a model has none to share.

    Raises:
      ValueError: if they cannot.
    """
    parts = tensor_parallelism(mesh)
    if parts > 1 and not shared_units:
        raise UserError(
            f"config.mesh.tensor_parallelism={parts} splits a Transformer's heads and "
            "MLP units, and an LSTM has none; use 1, with config.mesh.sharding='full' "
            "if memory is short."
        )
    for key, units in shared_units.items():
        if units % parts:
            raise UserError(
                f"config.mesh.tensor_parallelism={parts} must divide config.model."
                f"{key}={units}; use a divisor of it."
            )


def to_global_batch(local: Any, mesh: Mesh) -> Any:
    """Puts this process's rows of a batch on its devices.

    Args:
      local: arrays [B / processes, ...], the rows that `host_rows` names.
      mesh: the device mesh.

    Returns:
      The same tree of arrays [B, ...], split over the devices; the copy is
      asynchronous.
    """
    sharding = batch_sharding(mesh)
    return jax.tree.map(
        lambda rows: jax.make_array_from_process_local_data(sharding, rows), local
    )
