"""Helpers of the tests with several processes, joined on this machine."""

import concurrent.futures
import os
import socket

import forked
from tiny_run import ROOT

OURS = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
LAUNCHERS = (*OURS, "SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "KUBERNETES_", "GCE_")


def free_port():
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def addresses(count=2):
    """The variables with which processes join, for each of them."""
    port = free_port()
    return [
        dict(zip(OURS, (f"localhost:{port}", str(count), str(index)), strict=True))
        for index in range(count)
    ]


def together(run, count=2):
    """`run(variables)` for each of several processes at once; what each returned."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, addresses(count)))


def start_script(script, *arguments, **variables):
    """Starts a Python script without any launcher's variables but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    own = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables}
    return forked.start(["-c", script, *map(str, arguments)], ROOT, {**kept, **own})
