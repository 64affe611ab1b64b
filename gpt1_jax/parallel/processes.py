"""The processes of a run: one per host."""

import os

import jax
import numpy as np
from jax.experimental import multihost_utils

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
      mode: "auto" joins if a launcher has set its environment variables (TPU pod,
        SLURM, Open MPI, or JAX_COORDINATOR_ADDRESS); "on" always joins; "off" never.
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
        return "," in hosts  # a single host, as on Colab, needs no coordinator
    if found == ["SLURM_JOB_ID"]:
        return int(os.environ.get("SLURM_NTASKS", "1")) > 1
    return bool(found)


def is_main_process() -> bool:
    """Whether this process writes logs, records and plots."""
    return jax.process_index() == 0


def agree(value: bool) -> bool:
    """The main process's value, on every process."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def host_rows(batch_size: int) -> slice:
    """The rows of a global batch that this process loads."""
    size = batch_size // jax.process_count()
    return slice(jax.process_index() * size, (jax.process_index() + 1) * size)
