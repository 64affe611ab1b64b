"""Measures the time of a program: where it goes, and how fast a training is.

It imports nothing large, so that the time of all other imports is counted too.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

TRAINING = "training"  # the productive part


class WallTime:
    """Divides the time since its creation among named parts."""

    def __init__(self) -> None:
        self._now, self._since = "the rest", time.monotonic()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._before_lap: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Counts the time of the block for `what`, but not for an enclosing block."""
        before = self._turn_to(what)
        try:
            yield
        finally:
            self._turn_to(before)

    def _turn_to(self, what: str) -> str:
        now, before = time.monotonic(), self._now
        self._spent[before] += now - self._since
        self._now, self._since = what, now
        return before

    def lap(self) -> dict[str, float]:
        """Seconds of each part since the last lap, or since the creation."""
        self._turn_to(self._now)
        before, self._before_lap = self._before_lap, dict(self._spent)
        return {
            name: each - before.get(name, 0.0) for name, each in self._spent.items()
        }

    def summary(self) -> str:
        """A line with the time so far and its parts; empty without training."""
        self._turn_to(self._now)
        if TRAINING not in self._spent:
            return ""
        spent, total = dict(self._spent), sum(self._spent.values())
        share = spent.pop(TRAINING) / total
        longest = sorted(spent.items(), key=lambda part: part[1], reverse=True)
        parts = (f"{name} {seconds:,.0f} s" for name, seconds in longest)
        return (
            f"Time: {total:,.0f} s, {share:.0%} of it in training steps; "
            f"{', '.join(parts)}."
        )


class Chrono:
    """Measures how fast a training is, without its pauses.

    The first step, which is compiled, only starts the clock.

    Attributes:
      step_seconds: of a step, since the last lap; None until two are complete.
    """

    def __init__(self) -> None:
        self.step_seconds: float | None = None
        self._lap: tuple[int, float] | None = None  # step and time at its beginning
        self._last = (0, 0.0)  # step and time of the last one that is complete

    def step_done(self, step: int) -> None:
        """Notes that a step is complete, now."""
        self._last = step, time.perf_counter()
        if self._lap is None:
            self._lap = self._last
        elif step > self._lap[0]:
            self.step_seconds = (self._last[1] - self._lap[1]) / (step - self._lap[0])

    def lap(self) -> float | None:
        """`step_seconds`, which from now on is that of the steps to come."""
        self._lap = self._last
        return self.step_seconds

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the block out of the time of steps."""
        began = time.perf_counter()
        try:
            yield
        finally:
            if self._lap is not None:
                lost = time.perf_counter() - began
                self._lap = self._lap[0], self._lap[1] + lost
                self._last = self._last[0], self._last[1] + lost


PROGRAM = WallTime()  # since its first import; `main` imports it before all else
