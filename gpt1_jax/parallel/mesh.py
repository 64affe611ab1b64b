"""Data parallelism over a one-axis mesh: the only file that names a mesh axis.

Parameters and optimizer state are replicated; the batch axis of the data is
split over all devices of all processes. One `jax.jit` with these shardings is
what `pmap` and `pjit` were.
"""

import os

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA_AXIS = "data"

# Set by the launchers that `jax.distributed.initialize()` can read.
_CLUSTER_VARIABLES = (
    "JAX_COORDINATOR_ADDRESS",
    "SLURM_JOB_ID",
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
    "MEGASCALE_COORDINATOR_ADDRESS",
)


def initialize_processes(mode: str) -> None:
    """Joins the processes of a multi-host run; call before any other use of JAX.

    Args:
      mode: "auto" joins where a launcher has left its environment variables
        (TPU pod, SLURM, Open MPI, or JAX_COORDINATOR_ADDRESS); "on" always
        joins; "off" never does.
    """
    if mode == "on" or (mode == "auto" and _cluster_found()):
        address = os.environ.get("JAX_COORDINATOR_ADDRESS")
        if address and "JAX_PROCESS_ID" in os.environ:
            jax.distributed.initialize(
                address,
                int(os.environ["JAX_NUM_PROCESSES"]),
                int(os.environ["JAX_PROCESS_ID"]),
            )
        else:
            jax.distributed.initialize()


def _cluster_found() -> bool:
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    found = [name for name in _CLUSTER_VARIABLES if os.environ.get(name)]
    if found == ["TPU_WORKER_HOSTNAMES"]:
        return "," in hosts  # one host of its own, as on Colab, needs no coordinator
    if found == ["SLURM_JOB_ID"]:
        return int(os.environ.get("SLURM_NTASKS", "1")) > 1
    return bool(found)


def make_mesh() -> Mesh:
    """All devices of all processes along the data axis."""
    return Mesh(np.asarray(jax.devices()), (DATA_AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device: parameters, optimizer state, metrics."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Axis 0 split over the devices: every array of a batch."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def check_batch_size(key: str, batch_size: int, mesh: Mesh, parts: int = 1) -> None:
    """Refuses a batch that the devices cannot share evenly.

    Args:
      key: the configuration key the batch size stands under.
      batch_size: sequences over all devices.
      mesh: of the run.
      parts: gradient accumulation steps the batch is cut into.

    Raises:
      ValueError: naming the key and the next size that works.
    """
    unit = mesh.size * parts
    if batch_size % unit:
        raise ValueError(
            f"{key}={batch_size} must be a multiple of the {mesh.size} devices"
            + (f" times {parts} accumulation steps" if parts > 1 else "")
            + f"; use --{key}={-(-batch_size // unit) * unit}."
        )


def to_global_batch(local: np.ndarray, mesh: Mesh) -> jax.Array:
    """Puts this process's rows of a batch on its devices.

    Args:
      local: [B / processes, ...], the rows that `host_rows` names.
      mesh: of the run.

    Returns:
      [B, ...], split over the data axis; the copy is asynchronous.
    """
    return jax.make_array_from_process_local_data(batch_sharding(mesh), local)


def host_rows(batch_size: int) -> slice:
    """The rows of a global batch that this process loads."""
    size = batch_size // jax.process_count()
    return slice(jax.process_index() * size, (jax.process_index() + 1) * size)


def agree(value: bool) -> bool:
    """The main process's value, on every process."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def is_main_process() -> bool:
    """Whether this process writes logs, records and plots."""
    return jax.process_index() == 0


def memory_bytes() -> int:
    """Memory of one device; on a CPU its share of the machine's."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return stats.get("bytes_limit", machine // jax.local_device_count())


# Peak dense bfloat16 rate of one JAX device, FLOP/s, from the vendors' data sheets;
# matched against the start of `device_kind`, the longest match first.
_PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA L4": 121e12,
}


def peak_flops() -> float | None:
    """Peak bfloat16 FLOP/s of all devices; None where a device is not known."""
    kind = jax.devices()[0].device_kind
    known = [name for name in _PEAK_FLOPS if kind.startswith(name)]
    if not known:
        return None
    return _PEAK_FLOPS[max(known, key=len)] * jax.device_count()
