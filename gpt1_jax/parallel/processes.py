"""The processes of a run: how they find and join each other, and how a stuck one ends.

JAX finds them: its cluster environments know TPU pods, SLURM, Open MPI and Kubernetes.
A process that is alone joins nobody, waits for nobody, and keeps all devices of its
machine.
"""

import contextlib
import faulthandler
import inspect
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt1_jax.errors import UserError

EXIT_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command may be run again

PATIENCE_SECONDS = 10.0  # until one host sees what another has written

_OWN_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_ALONE = "--distributed=off runs this process alone."
# JAX ends the process with a stack trace once its own limit is over; ours comes first.
_MARGIN_SECONDS = 60
_LINGER_SECONDS = 3.0
# Of the watchdog: between two looks, and what counts as a stop (a busy machine is late
# by less).
_TICK_SECONDS = 1.0
_STOP_SECONDS = 5.0
# Parts of the messages when the other side of a collective or barrier is gone.
_LOST = ("gloo", "nccl", "by peer", "barrier", "coordination service", "unavailable")


class Waits(NamedTuple):
    """How long the processes of a run wait for each other, in seconds.

    Attributes:
      initialization: for all of them to join.
      heartbeat: for a sign of life of each, from then on.
      shutdown: for all of them to leave.
    """

    initialization: int = 300
    heartbeat: int = 100
    shutdown: int = 300


def initialize_processes(mode: str, waits: Waits) -> None:
    """Joins the other processes of a run; call before any other use of JAX.

    Args:
      mode: "auto" joins if a launcher has started several processes, or if the
        variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say so;
        "on" joins without asking, or fails; "off" never joins.
      waits: ends the process with one line and exit code 75 when joining takes longer.

    Raises:
      ValueError: if variables or launcher do not tell who is there.
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
      mode: as for `initialize_processes`; "off" does not ask.

    Raises:
      ValueError: if variables or launcher do not tell who is there.
    """
    if mode == "off":
        return 1
    count = _named_processes().get("num_processes") or _count_in_cluster()
    if count is None and "JAX_COORDINATOR_ADDRESS" in os.environ:
        raise UserError(
            "JAX_COORDINATOR_ADDRESS is set, but neither JAX_NUM_PROCESSES with "
            f"JAX_PROCESS_ID nor a launcher says who is there; set both. {_ALONE}"
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

    The only public way to ask is `initialize`. That would join a process that is alone
    too, and would leave it one GPU of its machine if a launcher has numbered it.
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
            f"({error.strerror}); end what does, or name another port."
        ) from error


def _join(named: dict[str, Any], waits: Waits) -> None:
    if named.get("process_id") == 0:
        _check_port(named["coordinator_address"])
    limits: dict[str, Any] = {
        "initialization_timeout": waits.initialization + _MARGIN_SECONDS,
        "heartbeat_timeout_seconds": waits.heartbeat,
        "shutdown_timeout_seconds": waits.shutdown,  # unknown to JAX 0.7
    }
    known = inspect.signature(jax.distributed.initialize).parameters
    limits = {name: limit for name, limit in limits.items() if name in known}
    try:
        jax.distributed.initialize(**named, **limits)
    except Exception as error:
        raise UserError(
            f"Joining the other processes failed: {error!r}. Without a launcher that "
            f"JAX knows, set {', '.join(_OWN_VARIABLES)}; {_ALONE}"
        ) from error


def is_joined() -> bool:
    """Whether this process has joined others."""
    return jax.distributed.is_initialized()


def leave(code: int) -> None:
    """Ends a process that has failed; does nothing if it has joined no others.

    On any other way out JAX waits for all processes, and some may be waiting for this
    one. The main process leaves last: its end also ends the others, which may still be
    about to say what is wrong.
    """
    if not is_joined():
        return
    if is_main_process():
        time.sleep(_LINGER_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_lost(error: BaseException | None) -> bool:
    """Whether an error, or its cause, looks like the end of another process."""
    if error is None or not is_joined():
        return False
    text = str(error)
    status = re.match("[A-Z_]+: ", text)  # of XLA, whatever the class of the error
    lost = status and any(sign in text.lower() for sign in _LOST)
    return bool(lost) or is_lost(error.__cause__ or error.__context__)


def is_main_process() -> bool:
    """Whether this process writes logs, records and plots."""
    return jax.process_index() == 0


def agree(value: bool) -> bool:
    """The main process's value, on every process."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def gather(text: str) -> list[str]:
    """The texts of all processes, in their order, on every process."""
    if jax.process_count() == 1:
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(own.size))
    padded = np.pad(own, (0, sizes.max() + 1 - own.size))
    rows = multihost_utils.process_allgather(padded)
    return [bytes(row[:n]).decode() for row, n in zip(rows, sizes, strict=True)]


def eventually(check: Callable[[], bool]) -> bool:
    """Whether a check succeeds; tried for some seconds if there are other processes.

    What one host writes to a network disk, another sees a little later.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS * (jax.process_count() > 1)
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def host_rows(batch_size: int) -> slice:
    """The rows of a global batch that this process loads."""
    size = batch_size // jax.process_count()
    return slice(jax.process_index() * size, (jax.process_index() + 1) * size)


class Watchdog(contextlib.AbstractContextManager):
    """Ends the process if it makes no progress for a while within the block.

    JAX's heartbeats would not notice: they come from a thread of their own, which goes
    on where the program hangs. Time in which the process is stopped, as by Ctrl-Z, does
    not count.

    Args:
      seconds: the longest silence; 0 watches nothing.
      message: the line to end with.
      code: the exit code.
      traces: whether to show first what each thread is doing.
    """

    def __init__(self, seconds: float, message: str, code: int, traces: bool = False):
        self._seconds = seconds
        self._message, self._code, self._traces = message, code, traces
        self._heard = 0.0
        self._over = threading.Event()

    def hear(self) -> None:
        """Notes that there is progress."""
        self._heard = time.monotonic()

    def __enter__(self) -> "Watchdog":
        if self._seconds > 0:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        self.hear()
        left, now = self._seconds, self._heard
        while not self._over.wait(wait := min(left, self._seconds / 8, _TICK_SECONDS)):
            before, now = now, time.monotonic()
            late = now - before - wait
            if late > min(self._seconds / 4, _STOP_SECONDS):  # the process was stopped
                self._heard = min(self._heard + late, now)
            left = self._heard + self._seconds - now
            if left <= 0:
                self._end()

    def _end(self) -> None:
        sys.stdout.flush()
        if self._traces:
            faulthandler.dump_traceback(all_threads=True)
        print(f"gpt1_jax: {self._message}", file=sys.stderr, flush=True)
        os._exit(self._code)  # whatever is stuck may hold up any other way out
