"""Devices that hold parts of the parameters compute while they exchange them.

Each layer's parameters are gathered just before it runs, and its gradients are sent as
soon as they are ready. To look tokens up, devices exchange the tokens and the vectors,
not the table. The results are those of `exchange`, which reaches this module by name.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from gpt1_jax.parallel.exchange import gather, mapped_axis
from gpt1_jax.parallel.mesh import is_embedding

# --- parameters, as the model takes them ---------------------------------------------


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["part"],
    meta_fields=["dim", "dtype"],
)
@dataclasses.dataclass(frozen=True)
class LayerPart:
    """A device's part of a parameter that is gathered when its layer runs."""

    part: Any  # None if it only says how a parameter is split
    dim: int  # the split dimension; -1 if each device has all of it
    dtype: Any  # the dtype to send it in; None for its own


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SplitTable:
    """An embedding [V, D] of which a device holds some columns."""

    columns: jax.Array  # [V, D / devices], this device's
    softmax: jax.Array  # [V, D], gathered, and rounded as it is for the softmax
    # Like `columns`, and used only for its gradient: that of `softmax`, summed by
    # `layer_boundary`. None if it is summed after the backward pass.
    sent: jax.Array | None

    def __getitem__(self, tokens: jax.Array) -> jax.Array:
        """The rows of tokens, [...] -> [..., D].

        Each device looks up all devices' tokens in its own columns.
        """
        axis = mapped_axis()
        everyones = jax.lax.all_gather(tokens, axis)  # [devices, ...]
        parts = self.columns[everyones]  # [devices, ..., D / devices]
        return jax.lax.all_to_all(parts, axis, 0, parts.ndim - 1, tiled=True)[0]


def prepare(
    parts: Any, dims: Any, rounded: Callable[[str], Any], by_layer: bool
) -> Any:
    """The parameters in the form that a model run by `LayerByLayer` takes.

    Args:
      parts: this device's parts of them.
      dims: the dimension that devices split of each, or -1.
      rounded, by_layer: as for `exchange.gradients_by_device`. Unless by layer, all
        but the embedding is gathered now.
    """

    def prepared(path: jax.tree_util.KeyPath, part: jax.Array, dim: int) -> Any:
        if dim < 0:
            return part
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        dtype = rounded(name)
        if by_layer and any(each.startswith("h_") for each in name.split("/")):
            return LayerPart(part, dim, dtype)
        whole = gather(part, dim, dtype)
        if dtype is not None and is_embedding(path):
            return SplitTable(part, whole, part if by_layer else None)
        return whole

    return jax.tree.map_with_path(prepared, parts, dims)


def sums(grads: Any, dims: Any) -> Any:
    """The sums of the devices' gradients, split like the parameters.

    Args:
      grads: with respect to what `prepare` returned.
      dims: the dimension that devices split of each, or -1.
    """

    def total(grad: Any, dim: int) -> jax.Array:
        if isinstance(grad, LayerPart):  # `layer_boundary` has summed it
            return grad.part
        if isinstance(grad, SplitTable):  # the gradients of lookups have been summed
            sent = grad.sent
            if sent is None:
                sent = _sum_and_split(grad.softmax, dim)
            return sent + grad.columns
        if dim < 0:
            return jax.lax.psum(grad, mapped_axis())
        return _sum_and_split(grad, dim)

    return jax.tree.map(total, grads, dims, is_leaf=_is_split)


def _is_split(value: Any) -> bool:
    return isinstance(value, LayerPart | SplitTable)


# --- layer by layer ------------------------------------------------------------------


class LayerByLayer:
    """An execution of a model that exchanges its layers one by one.

    It leaves everything else to another execution, and layers, too, if nothing is
    split.

    Args:
      how: that execution, a `model.execution.Execution`.
    """

    def __init__(self, how: Any):
        self._how = how
        self._rows: jax.Array | None = None  # of the softmax, from a `SplitTable`
        self._sent: jax.Array | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._how, name)

    def look_up(self, wte: Any, tokens: jax.Array) -> jax.Array:
        """The vectors of tokens, whose table is kept for the softmax if it is split."""
        if isinstance(wte, SplitTable):
            self._rows, self._sent = wte.softmax, wte.sent
        return self._how.look_up(wte, tokens)

    def run_layers(self, block: Any, layers: list[Any], h: jax.Array) -> jax.Array:
        """h_l = block(h_{l-1}), each between two boundaries."""
        if not any(map(_is_split, jax.tree.leaves(layers, is_leaf=_is_split))):
            return self._how.run_layers(block, layers, h)
        run = jax.checkpoint(block) if self._how.model.remat else block
        softmax, params = (self._rows, self._sent), layers[0]
        for layer, following in enumerate([*layers[1:], {}]):
            h, whole, params, softmax = layer_boundary(h, params, following, softmax)
            h = run(h, whole, layer)
        h, _, _, (self._rows, _) = layer_boundary(h, {}, {}, softmax)
        return h

    def unembedding(self, wte: Any, wpe: jax.Array | None = None) -> jax.Array:
        """The rows of the softmax, gathered before the layers ran if they are split."""
        if self._rows is not None:
            return self._rows
        return self._how.unembedding(wte, wpe)


@jax.custom_vjp
def layer_boundary(
    h: jax.Array, params: Any, later: Any, softmax: tuple[Any, Any]
) -> tuple[jax.Array, Any, Any, tuple[Any, Any]]:
    """Exchanges a layer's parameters and gradients; to be called before the layer.

    In the forward pass it gathers the layer's parameters. In the backward pass, which
    gets here when the layer's gradients are ready, it sends them. They have until the
    next boundary to arrive, while the device computes the preceding layer. The largest
    gradient, the softmax's, is sent first, after the last layer.

    Args:
      h: the activations that the layer reads.
      params: the layer's parameters, each a `LayerPart` if devices hold parts; {} after
        the last layer.
      later: the parameters of the next layer; {} if there is none.
      softmax: the rows [V, D] of the softmax and `SplitTable.sent`, or None and None.

    Returns:
      The arguments, to be used from here on, with the layer's parameters gathered.
    """

    def whole(param: Any) -> jax.Array:
        if not isinstance(param, LayerPart):
            return param
        return gather(param.part, param.dim, param.dtype)

    return h, jax.tree.map(whole, params, is_leaf=_is_split), later, softmax


def _layer_boundary_fwd(
    h: jax.Array, params: Any, later: Any, softmax: tuple[Any, Any]
) -> Any:
    def split(param: Any) -> LayerPart:
        if isinstance(param, LayerPart):
            return dataclasses.replace(param, part=None)
        return LayerPart(None, -1, None)

    splits = jax.tree.map(split, params, is_leaf=_is_split)
    return layer_boundary(h, params, later, softmax), splits


def _layer_boundary_bwd(splits: Any, grads: Any) -> Any:
    def send(split: LayerPart, grad: jax.Array) -> Any:
        if split.dim < 0:
            return grad
        return dataclasses.replace(split, part=_sum_and_split(grad, split.dim))

    h, params, later, (rows, sent) = grads
    if sent is not None and not params:  # after the last layer
        return h, params, later, (rows, _sum_and_split(rows, 1))
    # The device waits for what was sent at the boundary before this one.
    h, params, later, sent = jax.lax.platform_dependent(
        (h, params, later, sent),
        cpu=lambda grads: grads,
        default=jax.lax.optimization_barrier,
    )
    params = jax.tree.map(send, splits, params, is_leaf=_is_split)
    return h, params, later, (rows, sent)


layer_boundary.defvjp(_layer_boundary_fwd, _layer_boundary_bwd)


# --- sums of gradients ---------------------------------------------------------------


def _sum_and_split(array: jax.Array, dim: int) -> jax.Array:
    """The sum of the devices' arrays, of which each gets its part along `dim`."""

    def scattered(array: jax.Array) -> jax.Array:
        axis = mapped_axis()
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
    axis = mapped_axis()
    devices = jax.lax.axis_size(axis)
    parts = array.reshape(devices, len(array) // devices, *array.shape[1:])
    received = jax.lax.all_to_all(parts, axis, 0, 0)
    if devices > _MOST_ADDITIONS:
        total = received.sum(0)
    else:  # in one kernel; XLA has a slower one for a sum over an axis
        total = functools.reduce(jnp.add, [received[n] for n in range(devices)])
    # The barrier keeps the layout of the small sum from being that of all parts.
    return jax.lax.optimization_barrier(total)


# --- options of the compiler ---------------------------------------------------------

# A GPU's compiler combines arrays up to these sizes: about a layer, not all.
_OPTIONS: dict[str, dict[str, bool | str]] = {
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


def compiler_options(mesh: Mesh) -> dict[str, bool | str]:
    """Options with which a step on several devices computes while it communicates.

    Options that the compiler does not know, or cannot apply on these devices, are left
    out; a warning names them.
    """
    options = {
        name: value
        for name, value in _OPTIONS.get(mesh.devices.flat[0].platform, {}).items()
        if mesh.size <= _LIMITED.get(name, mesh.size)
    }
    if not options or not _refusal(mesh, options):
        return options
    refusals = {name: _refusal(mesh, {name: value}) for name, value in options.items()}
    refused = "; ".join(f"{name}: {why}" for name, why in refusals.items() if why)
    warnings.warn(f"Devices may wait while they exchange: {refused}", stacklevel=3)
    return {name: options[name] for name, why in refusals.items() if not why}


def _refusal(mesh: Mesh, options: dict[str, bool | str]) -> str:
    """Why a small exchange does not compile with some options; empty if it does."""

    def exchange(x: jax.Array) -> list[jax.Array]:
        axis = mapped_axis()
        sent = jax.lax.all_to_all(x, axis, 0, 0, tiled=True)
        return [sent, jax.lax.all_gather(x, axis, tiled=True)]

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
