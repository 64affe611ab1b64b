"""The device mesh and how arrays lie on it: the only file that names its axes.

Parameters and optimizer state are replicated and batches are split over all devices of
all processes: data parallelism. One `jax.jit` with these shardings does what `pmap` and
`pjit` once did.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_DATA_AXIS = "data"


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of these devices; by default all devices of all processes."""
    devices = jax.devices() if devices is None else devices
    return Mesh(np.asarray(devices), (_DATA_AXIS,))


def data_parallelism(mesh: Mesh) -> int:
    """The number of parts into which the mesh splits a batch."""
    return mesh.shape[_DATA_AXIS]


def state_sharding(mesh: Mesh, abstract_state: Any) -> Any:
    """The sharding of each array in a train state, by its parameter's path.

    Today every array is replicated.

    Args:
      mesh: the device mesh.
      abstract_state: parameters, or a state that holds them, as returned by
        `jax.eval_shape`.

    Returns:
      A `NamedSharding` for each array.
    """

    def sharding(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> Any:
        del path, leaf
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree.map_with_path(sharding, abstract_state)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For every array of a batch: axis 0 split over the devices."""
    return NamedSharding(mesh, PartitionSpec(_DATA_AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    """For scalars and metrics: the same on every device."""
    return NamedSharding(mesh, PartitionSpec())


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
    unit = data_parallelism(mesh) * parts
    if batch_size % unit:
        raise ValueError(
            f"{key}={batch_size} must be a multiple of the {data_parallelism(mesh)} "
            "devices"
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
