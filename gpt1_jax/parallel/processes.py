"""The processes of a run: how they communicate, and how a stuck one is ended."""

import contextlib
import faulthandler
import os
import re
import sys
import threading
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

EXIT_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command may be run again

PATIENCE_SECONDS = 10.0  # until one host sees a file that another has written

# For the watchdog: the time between two checks, and the delay that counts as a stop (a
# busy machine delays them by less).
_TICK_SECONDS = 1.0
_STOP_SECONDS = 5.0
# Parts of the messages when the other side of a collective or barrier is gone.
_LOST = ("gloo", "nccl", "by peer", "barrier", "coordination service", "unavailable")


def is_joined() -> bool:
    """Whether this process has joined others."""
    return jax.distributed.is_initialized()


def is_lost(error: BaseException | None) -> bool:
    """Whether an error, or its cause, suggests that another process has ended."""
    if error is None or not is_joined():
        return False
    text = str(error)
    status = re.match("[A-Z_]+: ", text)  # XLA's, whatever the class of the error
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
    """Whether a check succeeds; retried for some seconds if there are other processes.

    A file on a network disk appears to other hosts a little later.
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

    JAX's heartbeats would not notice: they come from a separate thread, which goes on
    when the program hangs. Time in which the process is stopped, as by Ctrl-Z, does not
    count.

    Args:
      seconds: the longest time without progress; 0 switches the watchdog off.
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
