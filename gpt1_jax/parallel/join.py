"""Joins the processes of a run, and lets one that has failed leave.

JAX finds them: its cluster environments know TPU pods, SLURM, Open MPI and Kubernetes.
A process that is alone joins and awaits no others, and keeps all devices of its
machine.
"""

import os
import socket
import sys
import time
import warnings
from typing import Any, NamedTuple

import jax

from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import (
    EXIT_AGAIN,
    Watchdog,
    is_joined,
    is_main_process,
)

_OWN_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_ALONE = "--distributed=off runs this process alone."
# JAX ends the process with a stack trace once its own limit is over; ours comes first.
_MARGIN_SECONDS = 60
_LINGER_SECONDS = 3.0


class Waits(NamedTuple):
    """How long the processes of a run wait for each other, in seconds.

    Attributes:
      initialization: until all of them have joined.
      heartbeat: without a sign of life from one of them, after that.
      shutdown: until all of them have left.
    """

    initialization: int = 300
    heartbeat: int = 100
    shutdown: int = 300


def initialize_processes(mode: str, waits: Waits) -> None:
    """Joins the other processes of a run; call before any other use of JAX.

    Args:
      mode: "auto" joins if a launcher has started several processes, or if the
        variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say so;
        "on" always joins, or fails; "off" never joins.
      waits: ends the process with one line and exit code 75 when joining takes longer.

    Raises:
      ValueError: if neither variables nor launcher identify the processes.
    """
    if mode == "on" or count_processes(mode) > 1:
        named = _named_processes()
        address = named.get("coordinator_address", "the address the launcher gave")
        late = (
            f"the other processes did not all join at {address} within "
            f"config.distributed.initialization_seconds={waits.initialization}. Start "
            "the same command on all of them, let them reach process 0, and run again."
        )
        with Watchdog(waits.initialization, late, EXIT_AGAIN):
            _join(named, waits)
            jax.process_index()  # they tell each other which devices they have


def count_processes(mode: str) -> int:
    """The number of processes to join, this one included.

    Args:
      mode: as for `initialize_processes`; "off" counts only this one.

    Raises:
      ValueError: if neither variables nor launcher identify the processes.
    """
    if mode == "off":
        return 1
    count = _named_processes().get("num_processes") or _count_in_cluster()
    if count is None and "JAX_COORDINATOR_ADDRESS" in os.environ:
        raise UserError(
            "JAX_COORDINATOR_ADDRESS is set without JAX_NUM_PROCESSES and "
            f"JAX_PROCESS_ID, and no launcher was found; set both. {_ALONE}"
        )
    return count or 1


def _named_processes() -> dict[str, Any]:
    """The arguments of `jax.distributed.initialize` that our variables name.

    Empty if they name no process; a lone address is read by JAX itself.
    """
    address, count, index = (os.environ.get(name, "") for name in _OWN_VARIABLES)
    if not (count or index):
        return {}
    found = " ".join(f"{name}={os.environ.get(name, '')!r}" for name in _OWN_VARIABLES)
    known = count.isdecimal() and index.isdecimal() and int(index) < int(count)
    if not (known and address.rpartition(":")[0] and address[-1].isdecimal()):
        raise UserError(
            f"{found} do not name a process; set all three, as HOST:PORT of process 0, "
            f"the number of processes, and this one's number, counted from 0. {_ALONE}"
        )
    return {
        "coordinator_address": address,
        "num_processes": int(count),
        "process_id": int(index),
    }


def _count_in_cluster() -> int | None:
    """How many processes a launcher started, as JAX detects it; None without one.

    The only public way to ask is `initialize`. That would also join a lone process, and
    would leave it one GPU of its machine if a launcher has numbered it.
    """
    try:
        from jax._src.clusters import ClusterEnv

        # Given an address, a number and devices, it neither seeks nor awaits them.
        _, count, _, _ = ClusterEnv.auto_detect_unset_distributed_params(
            "given", None, 0, [0], None, None
        )
        return count
    except OSError as error:  # TPU chips, but no metadata server: not a cloud machine
        problem = f"no metadata server to ask ({error})"
    except (ImportError, AttributeError, TypeError) as error:
        problem = f"a version of JAX that cannot be asked ({error})"
    except Exception as error:
        raise UserError(
            f"JAX finds a launcher, but not its processes: {error}. {_ALONE}"
        ) from error
    warnings.warn(
        f"Running alone: {problem}. To join others, use --distributed=on.", stacklevel=2
    )
    return None


def _check_port(address: str) -> None:
    """Refuses a port of this machine that is in use, where JAX would crash."""
    try:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()
    except OSError as error:
        raise UserError(
            f"Process 0 cannot listen at JAX_COORDINATOR_ADDRESS={address!r} "
            f"({error.strerror}); stop the program that does, or name another port."
        ) from error


def _join(named: dict[str, Any], waits: Waits) -> None:
    if named.get("process_id") == 0:
        _check_port(named["coordinator_address"])
    limits: dict[str, Any] = {
        "initialization_timeout": waits.initialization + _MARGIN_SECONDS,
        "heartbeat_timeout_seconds": waits.heartbeat,
        "shutdown_timeout_seconds": waits.shutdown,
    }
    try:
        jax.distributed.initialize(**named, **limits)
    except Exception as error:
        raise UserError(
            f"Joining the other processes failed: {error!r}. Without a launcher that "
            f"JAX knows, set {', '.join(_OWN_VARIABLES)}; {_ALONE}"
        ) from error


def leave(code: int) -> None:
    """Ends a process that has failed; does nothing if it has joined no others.

    On any other exit, JAX waits for all processes, and some may be waiting for this
    one. The main process leaves last: its end also ends the others, which may still be
    about to report an error.
    """
    if not is_joined():
        return
    if is_main_process():
        time.sleep(_LINGER_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
