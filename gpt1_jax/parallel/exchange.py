"""Exchanges between devices in a step: parameters, gradients, looked-up vectors.

If devices hold parts of the parameters (`mesh.sharding="full"`), each layer's are
gathered just before it runs, and its gradients are sent as soon as they are ready, so
that communication overlaps with computation.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from gpt1_jax.parallel.mesh import (
    batch_axis,
    batch_sharding,
    is_embedding,
    specs,
    split_dimensions,
)


def rows_by_device(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes each device compute its rows of a batch.

    Args:
      mesh: the device mesh.
      function: (params, *arrays) -> arrays; axis 0 of all is the batch axis.

    Returns:
      The function of whole batches; to be jitted.
    """
    if mesh.size == 1:
        return function

    def on_all(params: Any, *arrays: jax.Array) -> Any:
        dims = split_dimensions(mesh, params)

        def on_device(params: Any, *rows: jax.Array) -> Any:
            return function(_gather(params, dims), *rows)

        rows = batch_sharding(mesh).spec
        in_specs = specs(mesh, dims), *(rows for _ in arrays)
        return _on_devices(mesh, on_device, in_specs, rows)(params, *arrays)

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
        axis 0 of `rows` is the batch axis, and `same` is shared by all rows. If the
        mesh splits the parameters, `wte` is a `SplitTable`.
      rounded: maps a parameter's path ("h_0/mlp/c_fc/kernel") to the dtype that the
        model rounds it to before each use, or None. It is sent in this dtype.
      by_layer: whether the model exchanges its layers ("h_0", "h_1", ..) itself, by
        `layer_boundary`; if not, all parameters are gathered before the forward pass
        and all gradients are sent after the backward pass.

    Returns:
      The function of whole batches; to be jitted. The gradients are split like the
      parameters and summed in float32.
    """
    if mesh.size == 1:
        return gradients
    axis, devices = batch_axis(mesh), mesh.size

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
        dims = split_dimensions(mesh, params)

        def prepare(path: jax.tree_util.KeyPath, part: jax.Array, dim: int) -> Any:
            """A parameter in the form that the model takes."""
            if dim < 0:
                return part
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            found = Part(part, dim, rounded(name))
            if by_layer and any(n.startswith("h_") for n in name.split("/")):
                return found
            if found.dtype is not None and is_embedding(path):
                held = part if by_layer else None
                return SplitTable(part, Gathered(found.gather(), held))
            return found.gather()

        def on_device(params: Any, rows: Any, same: Any) -> tuple[Any, Any]:
            prepared = jax.tree.map_with_path(prepare, params, dims)
            losses, grads = gradients(prepared, rows, same)
            grads = jax.tree.map(exchange, grads, dims, is_leaf=_is_split)
            return jax.lax.pmean(losses, axis), grads

        whole = PartitionSpec()
        in_specs = specs(mesh, dims), batch_sharding(mesh).spec, whole
        out_specs = whole, specs(mesh, dims)
        return _on_devices(mesh, on_device, in_specs, out_specs)(params, rows, same)

    return on_all


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["part"],
    meta_fields=["dim", "dtype"],
)
@dataclasses.dataclass(frozen=True)
class Part:
    """A device's part of a parameter; inside `_on_devices`."""

    part: Any  # None if it only says how a parameter is split
    dim: int  # the split dimension; -1 if each device has all of it
    dtype: Any  # the dtype to send it in; None for its own

    def gather(self) -> jax.Array:
        """The whole parameter, in the dtype of the part."""
        sent = self.part.astype(self.dtype or self.part.dtype)
        axis = _mapped_axis()
        whole = jax.lax.all_gather(sent, axis, axis=self.dim, tiled=True)
        return whole.astype(self.part.dtype)


class Gathered(NamedTuple):
    """A parameter split over the devices that has already been gathered."""

    whole: jax.Array
    # Used only for its gradient: that of the whole, summed by `layer_boundary`. None if
    # it is summed after the backward pass.
    part: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SplitTable:
    """An embedding [V, D] of which a device holds some columns.

    To look tokens up, devices exchange the tokens and the vectors, not the table.
    """

    columns: jax.Array  # [V, D / devices], this device's
    softmax: Gathered  # rounded as it is for the softmax

    def __getitem__(self, tokens: jax.Array) -> jax.Array:
        """The rows of tokens: [...] -> [..., D].

        Each device looks up all devices' tokens in its own columns.
        """
        axis = _mapped_axis()
        everyones = jax.lax.all_gather(tokens, axis)  # [devices, ...]
        parts = self.columns[everyones]  # [devices, ..., D / devices]
        return jax.lax.all_to_all(parts, axis, 0, parts.ndim - 1, tiled=True)[0]


class LayerByLayer:
    """An execution of a model whose layers are exchanged one by one.

    What it does not do itself it leaves to another execution; so does it if nothing is
    split.

    Args:
      how: that execution.
    """

    def __init__(self, how: Any):
        self._how, self._softmax = how, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._how, name)

    def look_up(self, wte: Any, tokens: jax.Array) -> jax.Array:
        if isinstance(wte, SplitTable):
            self._softmax = wte.softmax
        return self._how.look_up(wte, tokens)

    def run_layers(self, block: Any, layers: list[Any], h: jax.Array) -> jax.Array:
        if not any(map(_is_split, jax.tree.leaves(layers, is_leaf=_is_split))):
            return self._how.run_layers(block, layers, h)
        run = jax.checkpoint(block) if self._how.model.remat else block
        softmax, later = self._softmax, layers[0]
        for layer, following in enumerate([*layers[1:], {}]):
            h, params, later, softmax = layer_boundary(h, later, following, softmax)
            h = run(h, params, layer)
        h, _, _, self._softmax = layer_boundary(h, {}, {}, softmax)
        return h

    def unembedding(self, wte: Any, wpe: jax.Array | None = None) -> jax.Array:
        if self._softmax is not None:
            return self._softmax.whole
        return self._how.unembedding(wte, wpe)


def layer_boundary(
    x: jax.Array, params: Any, later: Any, softmax: Any
) -> tuple[jax.Array, Any, Any, Any]:
    """Exchanges a layer's parameters and gradients; to be called before the layer.

    In the forward pass it gathers the layer's parameters. In the backward pass, which
    gets here when the layer's gradients are ready, it sends them. They have until the
    next boundary to arrive, while the device computes the preceding layer. The largest
    gradient, the softmax's, is sent first, after the last layer.

    Args:
      x: the activations that the layer reads.
      params: the layer's parameters, each a `Part` if devices hold parts; {} after the
        last layer.
      later: the parameters of the next layer; {} if there is none.
      softmax: the matrix that scores the last layer; `Gathered` if split.

    Returns:
      The arguments, to be used from here on, with the layer's parameters gathered;
      unchanged if nothing is split.
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


def _is_split(value: Any) -> bool:
    return isinstance(value, Part | Gathered | SplitTable)


_map_split = functools.partial(jax.tree.map, is_leaf=_is_split)


def _mapped_axis() -> str:
    """The name of the batch axis; inside `_on_devices`."""
    return jax.sharding.get_abstract_mesh().axis_names[0]


def _sum_and_split(array: jax.Array, dim: int) -> jax.Array:
    """The sum of the devices' arrays, of which each gets its part; in `_on_devices`."""

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
    # An embedding is split by columns. If all rows were sent at once without filling
    # whole TPU tiles, XLA would transpose them separately, and again on arrival.
    tiles = len(array) - len(array) % 128
    blocks = [block for block in jnp.split(array, [tiles]) if len(block)]
    return jnp.concatenate([_sum_received_rows(block.T).T for block in blocks])


_MOST_ADDITIONS = 32  # devices; more operations take a compiler minutes


def _sum_received_rows(array: jax.Array) -> jax.Array:
    axis = _mapped_axis()
    devices = jax.sharding.get_abstract_mesh().shape[axis]
    parts = array.reshape(devices, len(array) // devices, *array.shape[1:])
    received = jax.lax.all_to_all(parts, axis, 0, 0)
    if devices > _MOST_ADDITIONS:
        total = received.sum(0)
    else:  # in one kernel; XLA has a slower one for a sum over an axis
        total = functools.reduce(jnp.add, [received[n] for n in range(devices)])
    # The barrier keeps the layout of the small sum from being that of all parts.
    return jax.lax.optimization_barrier(total)


# Options that overlap communication with computation. A GPU's compiler combines arrays
# up to these sizes: about a layer, not all.
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


# On a v5e-256 libtpu refuses whole steps with this option, and most groups of devices.
_LIMITED = {"xla_tpu_enable_async_all_to_all": 128}  # devices at most


def exchange_options(mesh: Mesh) -> dict[str, bool | str]:
    """Compiler options for a training step.

    Options that the compiler does not know, or cannot apply on these devices, are left
    out; a warning names them.
    """
    platform = mesh.devices.flat[0].platform
    options = {
        name: value
        for name, value in _EXCHANGE_OPTIONS.get(platform, {}).items()
        if 1 < mesh.size <= _LIMITED.get(name, mesh.size)
    }
    if not options or not _refusal(mesh, options):
        return options
    refusals = {name: _refusal(mesh, {name: value}) for name, value in options.items()}
    refused = "; ".join(f"{name}: {why}" for name, why in refusals.items() if why)
    warnings.warn(f"Devices may wait while they exchange: {refused}", stacklevel=2)
    return {name: options[name] for name, why in refusals.items() if not why}


def _refusal(mesh: Mesh, options: dict[str, bool | str]) -> str:
    """Why a small exchange does not compile with some options; empty if it does."""

    def exchange(x: jax.Array) -> list[jax.Array]:
        axes = mesh.axis_names
        sent = [jax.lax.all_to_all(x, axis, 0, 0, tiled=True) for axis in axes]
        return sent + [jax.lax.all_gather(x, axis, tiled=True) for axis in axes]

    spec = PartitionSpec(mesh.axis_names)
    x = jax.ShapeDtypeStruct((mesh.size**2, 128), "float32")
    exchanged = jax.shard_map(
        exchange, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    try:
        jax.jit(exchanged).lower(x).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _on_devices(
    mesh: Mesh, function: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`function` on each device's parts of its arguments."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def _gather(params: Any, dims: Any) -> Any:
    """Makes a device's parts of the parameters whole; inside `_on_devices`."""

    def gather(part: jax.Array, dim: int) -> jax.Array:
        return Part(part, dim, None).gather() if dim >= 0 else part

    return jax.tree.map(gather, params, dims)
