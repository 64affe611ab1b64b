"""What devices exchange in a step: parameters, gradients and losses.

Devices that hold parts of the parameters (`mesh.sharding="full"`) gather all of them
before they compute the gradients of their rows, and each gets its part of the sums
afterwards. The module `overlap` does so layer by layer, while they compute; it is
imported by name; without it, a step takes longer, and that is all.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from gpt1_jax.parallel.mesh import (
    batch_axis,
    batch_sharding,
    is_embedding,
    specs,
    split_dimensions,
    splits_state,
)

OVERLAP = "gpt1_jax.parallel.overlap"


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

        def on_device(parts: Any, *rows: jax.Array) -> Any:
            return function(jax.tree.map(gather, parts, dims), *rows)

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
      gradients: (params, rows, same, wrap) -> (losses, gradients), means over the rows;
        axis 0 of `rows` is the batch axis, and `same` is shared by all rows. The model
        runs by `wrap` of its `Execution`, if it is given.
      rounded: maps a parameter's path ("h_0/mlp/c_fc/kernel") to the dtype that the
        model rounds it to before each use, or None. It is sent in this dtype.
      by_layer: whether the model's layers ("h_0", "h_1", ..) may be exchanged one by
        one, while it runs.

    Returns:
      The function (params, rows, same) of whole batches; to be jitted. The gradients
      are split like the parameters and summed in float32.
    """
    if mesh.size == 1:
        return gradients

    def on_all(params: Any, rows: Any, same: Any) -> tuple[Any, Any]:
        dims = split_dimensions(mesh, params)
        overlap = _find_overlap() if splits_state(mesh) else None

        def whole(path: jax.tree_util.KeyPath, part: jax.Array, dim: int) -> jax.Array:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            # Vectors that are looked up in the embedding are not rounded.
            return gather(part, dim, None if is_embedding(path) else rounded(name))

        def on_device(parts: Any, rows: Any, same: Any) -> tuple[Any, Any]:
            if overlap:
                prepared = overlap.prepare(parts, dims, rounded, by_layer)
                losses, grads = gradients(prepared, rows, same, overlap.LayerByLayer)
                sums = overlap.sums(grads, dims)
            else:
                prepared = jax.tree.map_with_path(whole, parts, dims)
                losses, grads = gradients(prepared, rows, same)
                sums = jax.tree.map(_sum, grads, dims)
            means = jax.tree.map(lambda total: total / mesh.size, sums)
            return jax.lax.pmean(losses, batch_axis(mesh)), means

        everywhere = PartitionSpec()
        in_specs = specs(mesh, dims), batch_sharding(mesh).spec, everywhere
        out_specs = everywhere, specs(mesh, dims)
        return _on_devices(mesh, on_device, in_specs, out_specs)(params, rows, same)

    return on_all


def compiler_options(mesh: Mesh) -> dict[str, bool | str]:
    """Compiler options for a training step, so that devices compute while they send."""
    overlap = _find_overlap()
    return overlap.compiler_options(mesh) if overlap and mesh.size > 1 else {}


def gather(part: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
    """The whole of an array that devices split along `dim`; inside `_on_devices`.

    Args:
      part: this device's part, or the whole array if `dim` is -1.
      dim: the dimension.
      dtype: to send the parts in; None for their own.
    """
    if dim < 0:
        return part
    sent = part.astype(dtype or part.dtype)
    whole = jax.lax.all_gather(sent, mapped_axis(), axis=dim, tiled=True)
    return whole.astype(part.dtype)


def _sum(array: jax.Array, dim: int) -> jax.Array:
    """The sum of the devices' arrays: each one's part along `dim`, all of it if -1."""
    if dim < 0:
        return jax.lax.psum(array, mapped_axis())
    return jax.lax.psum_scatter(array, mapped_axis(), scatter_dimension=dim, tiled=True)


def mapped_axis() -> str:
    """The name of the batch axis; inside `_on_devices`."""
    return batch_axis(jax.sharding.get_abstract_mesh())


def _on_devices(
    mesh: Mesh, function: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`function` on each device's parts of its arguments."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def _find_overlap() -> ModuleType | None:
    """The module that overlaps the exchange; None where it is not there."""
    try:
        return importlib.import_module(OVERLAP)
    except ModuleNotFoundError as error:
        if error.name != OVERLAP:
            raise
        return None
