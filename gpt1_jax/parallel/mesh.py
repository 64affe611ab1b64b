"""The device mesh and how arrays are laid out on it; only this file names its axes.

The first axis splits the batch; its name says what else it splits:

  data  nothing; parameters and optimizer state are whole on each device.
  zero  the optimizer state. Each device updates its part of the parameters, and all
        gather the result (ZeRO, stage 1: Rajbhandari et al. 2020).
  fsdp  the parameters too. All gather them for each step (ZeRO, stage 3), layer by
        layer, and send a layer's gradients while they compute the preceding layer's:
        see `layer_boundary`.

A mesh of `data` may have a second axis, `tensor`: its devices share the work on one
part of the batch, and split heads, MLP units and softmax rows (Shoeybi et al. 2019).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
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
      sharding: what the mesh splits besides the batch: nothing ("replicated"), the
        optimizer's state ("optimizer"), or the parameters too ("full"). "auto" is
        "full" on several accelerators without tensor parallelism, where it is the
        fastest, and otherwise "replicated".
      tensor_parallelism: devices that share a part of the batch.
      devices: by default all devices of all processes.

    Raises:
      ValueError: if the number of devices per process does not allow it.
    """
    devices = jax.devices() if devices is None else devices
    if sharding == "auto":
        apart = len(devices) > 1 and devices[0].platform != "cpu"
        sharding = "full" if apart and tensor_parallelism == 1 else "replicated"
    if tensor_parallelism == 1:
        return Mesh(np.asarray(devices), (_BATCH_AXES[sharding],))
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
    return mesh.shape[batch_axis(mesh)]


def tensor_parallelism(mesh: Mesh) -> int:
    """The number of devices that share each part."""
    return mesh.size // data_parallelism(mesh)


def optimizer_share(mesh: Mesh) -> float:
    """The share of the optimizer's state that the batch axis leaves to a device."""
    return 1 if batch_axis(mesh) == "data" else 1 / data_parallelism(mesh)


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
    """The sharding of every array of a batch: axis 0 is split over the devices."""
    return NamedSharding(mesh, _spec(0, batch_axis(mesh)))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of scalars and metrics: the same value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def gathered(mesh: Mesh, params: Any) -> Any:
    """The whole parameters on each device; all processes must call this."""
    if all(param.is_fully_replicated for param in jax.tree.leaves(params)):
        return params
    return _gather(replicated(mesh))(params)


@functools.lru_cache(maxsize=1)
def _gather(sharding: NamedSharding) -> Callable[[Any], Any]:
    return jax.jit(lambda x: x, out_shardings=sharding)


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


def batch_axis(mesh: Mesh) -> str:
    """The name of the axis that splits the batch."""
    return mesh.axis_names[0]


def map_batch(
    mesh: Mesh, function: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`jax.shard_map` over the batch axis; the tensor axis is left to the compiler."""
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names={batch_axis(mesh)},
        check_vma=False,
    )


def is_embedding(name: str) -> bool:
    """Whether a parameter, by its path, is the token embedding."""
    return name.rpartition("/")[2] == "wte"


def split_by_batch(mesh: Mesh, arrays: Any) -> Any:
    """The dimension of each array that the batch axis splits, or -1."""
    if _TENSOR_AXIS in mesh.axis_names:
        return jax.tree.map(lambda _: -1, arrays)
    return _split_dimensions(mesh, arrays)


def _split_dimensions(mesh: Mesh, arrays: Any) -> Any:
    """The dimension of each array that the mesh splits, or -1.

    The batch axis splits the first dimension of a matrix that it can, as its parts are
    contiguous in memory; of an embedding the last one (see `exchange.SplitTable`).
    Vectors are a thousandth of the parameters and not worth separate messages. In the
    optimizer's state, arrays that belong to a parameter and have its shape are split
    like it; all others, such as sums over rows, are whole on each device.
    """
    axis, parts = batch_axis(mesh), data_parallelism(mesh)
    shapes = {
        _path_name(path).removeprefix("/params"): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(arrays)
        if _path_name(path).startswith("/params/")
    }

    def split(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> int:
        name = _path_name(path)
        if name.startswith("/opt_state/"):
            ends = (name[i:] for i, letter in enumerate(name) if letter == "/")
            parameter = next((end for end in ends if end in shapes), "")
            if shapes.get(parameter) != leaf.shape:
                return -1
        if _TENSOR_AXIS in mesh.axis_names:
            ends = (end for end in _TENSOR_DIMENSIONS if name.endswith(f"/{end}"))
            return _TENSOR_DIMENSIONS.get(next(ends, ""), -1)
        if axis == "data" or (axis == "zero" and not name.startswith("/opt_state/")):
            return -1
        if len(leaf.shape) == 1:
            return -1
        dims = [dim for dim, size in enumerate(leaf.shape) if size % parts == 0]
        if is_embedding(name):
            dims = [dim for dim in dims if dim == 1]
        return dims[0] if dims else -1

    return jax.tree.map_with_path(split, arrays)


def _path_name(path: jax.tree_util.KeyPath) -> str:
    return "/" + jax.tree_util.keystr(path, simple=True, separator="/")


def batch_specs(mesh: Mesh, dims: Any) -> Any:
    """The specs of arrays whose given dimensions the batch axis splits."""
    return jax.tree.map(lambda dim: _spec(dim, batch_axis(mesh)), dims)


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
