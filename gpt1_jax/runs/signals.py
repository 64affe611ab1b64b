"""Stops a run between steps after a signal, once its state is saved.

Ctrl-C (SIGINT), SIGTERM, a terminal that is closed (SIGHUP) and the signals that SLURM
can send before a job's time is over (`--signal=USR1@60`) are caught once the imports
are done. A signal that the program was told to ignore, as nohup does with SIGHUP, stays
ignored.
"""

import contextlib
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from jax.experimental import multihost_utils

from gpt1_jax.parallel.processes import is_joined

# A person sends these again to quit at once; the others may come twice by themselves.
_BY_HAND = (signal.SIGINT, signal.SIGTERM)
_CAUGHT = (*_BY_HAND, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NOTICE = (
    b"\ngpt1_jax: stopping after this step, then saving; once more to quit at once "
    b"without saving.\n"
)


def _interrupt() -> None:
    raise KeyboardInterrupt


class Stopped(Exception):
    """The run was stopped by a signal, after its state was saved."""


class StopSignal:
    """Turns signals into a request to stop.

    Outside training a signal interrupts at once. While `deferred`, it is a request that
    the loop obeys between steps, and a second SIGINT or SIGTERM quits. Signals are
    remembered, since an interrupt may be lost in code that must not raise, such as
    JAX's garbage-collection callback: the loop obeys it once training begins.

    In runs of several processes JAX itself catches SIGTERM, and all processes agree on
    the step to stop after; while `deferred`, other signals are passed on as SIGTERM.

    Args:
      quit_at_once: called by the second signal.

    Attributes:
      requested: whether to stop after the step that was last asked about (`ask`).
    """

    def __init__(self, quit_at_once: Callable[[], None] = _interrupt) -> None:
        self._quit_at_once = quit_at_once
        self.requested = False
        self._received: int | None = None
        self._deferring = False
        self._quitting = False
        self._joint = False

    def receive(self, number: int, frame: types.FrameType | None) -> None:
        """The handler of the signals."""
        del frame
        again, self._received = self._received == number, number
        if again and self._deferring:
            if number not in _BY_HAND:
                return
            self._quit_at_once()
        if self._quitting:
            self._quit_at_once()
        if again or not self._deferring:
            raise KeyboardInterrupt
        with contextlib.suppress(OSError):
            os.write(2, _NOTICE)  # print is not safe in a handler
        if self._joint:
            os.kill(os.getpid(), signal.SIGTERM)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within this block signals are requests."""
        self._deferring, self._joint = True, is_joined()
        try:
            yield
        finally:
            self._deferring = self._joint = False

    @contextlib.contextmanager
    def quitting(self) -> Iterator[None]:
        """Within this block the first signal quits, as the second does elsewhere.

        It is for libraries that end an interrupted download only once it is done.
        """
        self._quitting = True
        try:
            yield
        finally:
            self._quitting = False

    def ask(self, step: int) -> None:
        """Asks whether to stop the run after this step; the same on all processes."""
        self.requested = (
            multihost_utils.reached_preemption_sync_point(step)
            if self._joint
            else self.received()
        )

    def received(self) -> bool:
        """Whether to stop before the next step; never so in several processes."""
        return self._received is not None and not self._joint


_catching: StopSignal | None = None  # the program's


@contextlib.contextmanager
def catch(quit_at_once: Callable[[], None] = _interrupt) -> Iterator[StopSignal]:
    """The program's stop signal; installs it unless an outer block has done so."""
    global _catching
    if _catching is not None or threading.current_thread() != threading.main_thread():
        yield _catching or StopSignal()
        return
    _catching = StopSignal(quit_at_once)
    previous: dict[int, Any] = {
        number: signal.signal(number, _catching.receive)
        for number in _CAUGHT
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield _catching
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _catching = None
