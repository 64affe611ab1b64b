"""The device mesh and how arrays are laid out on it; only this file names its axis.

All devices share a batch. The axis that splits it is named after what else it splits:

  data  nothing; parameters and optimizer state are whole on each device.
  fsdp  parameters and optimizer state. Each device updates its part of them, and all
        gather the whole for each step (ZeRO, stage 3: Rajbhandari et al. 2020).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from gpt1_jax.errors import UserError

_AXES = {"replicated": "data", "full": "fsdp"}


def make_mesh(
    sharding: str = "replicated", devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh of devices.

    Args:
      sharding: what the mesh splits besides the batch: nothing ("replicated"), or
        parameters and optimizer state ("full"). "auto" is "full" on several
        accelerators, where it is the fastest, and otherwise "replicated".
      devices: by default all devices of all processes.
    """
    devices = jax.devices() if devices is None else devices
    if sharding == "auto":
        several = len(devices) > 1 and devices[0].platform != "cpu"
        sharding = "full" if several else "replicated"
    return Mesh(np.asarray(devices), (_AXES[sharding],))


def splits_state(mesh: Mesh) -> bool:
    """Whether each device holds a part of parameters and optimizer state."""
    return batch_axis(mesh) == _AXES["full"]


def batch_axis(mesh: Mesh | AbstractMesh) -> str:
    """The name of the axis that splits the batch."""
    return mesh.axis_names[0]


def split_dimensions(mesh: Mesh, state: Any) -> Any:
    """The dimension of each array that the mesh splits, or -1.

    A matrix is split along the first dimension that can be, as its parts are then
    contiguous in memory; the embedding [V, D] along its last or not at all, so that
    devices can exchange the vectors that they look up instead of the table. Vectors are
    a thousandth of the parameters and not worth separate messages. In the optimizer's
    state, arrays with the shape of a parameter are split like it; all others, such as
    sums over rows, are whole on each device.

    Args:
      mesh: the device mesh.
      state: parameters, or a state that holds them as `params`; arrays or their shapes.
    """
    if not splits_state(mesh):
        return jax.tree.map(lambda _: -1, state)
    dims: dict[tuple[int, ...], int] = {}
    params = jax.tree.leaves_with_path(getattr(state, "params", state))
    for path, leaf in sorted(params, key=lambda param: is_embedding(param[0])):
        able = [dim for dim, size in enumerate(leaf.shape) if size % mesh.size == 0]
        if is_embedding(path):  # the last of them: its shape is not another's
            able = [dim for dim in able if dim == 1]
        dims[leaf.shape] = able[0] if able and len(leaf.shape) > 1 else -1
    return jax.tree.map(lambda leaf: dims.get(leaf.shape, -1), state)


def is_embedding(path: jax.tree_util.KeyPath) -> bool:
    """Whether a parameter is the token embedding."""
    return jax.tree_util.keystr(path[-1:], simple=True) == "wte"


def specs(mesh: Mesh, dims: Any) -> Any:
    """The specs of arrays whose given dimensions the devices split."""
    return jax.tree.map(lambda dim: _spec(mesh, dim), dims)


def _spec(mesh: Mesh, dim: int) -> PartitionSpec:
    """Splits dimension `dim` over the devices; nothing if it is -1."""
    if dim < 0:
        return PartitionSpec()
    return PartitionSpec(*(None,) * dim, batch_axis(mesh))


def state_sharding(mesh: Mesh, state: Any) -> Any:
    """The `NamedSharding` of each array of a state: see `split_dimensions`."""
    dims = split_dimensions(mesh, state)
    return jax.tree.map(lambda dim: NamedSharding(mesh, _spec(mesh, dim)), dims)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of every array of a batch: axis 0 is split over the devices."""
    return NamedSharding(mesh, _spec(mesh, 0))


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
    unit = mesh.size * parts
    if batch_size % unit:
        raise UserError(
            f"{key}={batch_size} must be a multiple of the {mesh.size} devices"
            + (f" times {parts} accumulation steps" if parts > 1 else "")
            + f"; use --{key}={-(-batch_size // unit) * unit}."
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
