"""Ends a process that has got stuck, which neither it nor the others would notice.

JAX's heartbeats come from a thread of their own, so they go on where the program hangs.
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time

_TICK_SECONDS = 1.0
_STOP_SECONDS = 5.0  # a busy machine is late by less


class Watchdog(contextlib.AbstractContextManager):
    """Ends the process if nothing is heard within a time, while the block runs.

    Time in which the process is stopped, as by Ctrl-Z, does not count.

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
