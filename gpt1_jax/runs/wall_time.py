"""Measures how much of a program's time is training, and where the rest goes.

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
        """Counts the time of the block for `what`, and not for a block around it."""
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


PROGRAM = WallTime()  # since its first import; `main` imports it before all else
