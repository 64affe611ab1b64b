"""Shows lines, and progress as a bar or as an occasional line."""

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import tqdm

from gpt1_jax.data.text import printable

LINE_SECONDS = 10.0  # between two lines where there is no terminal, at least


def show_line(text: str, end: str = "\n", *, beside_output: bool = False) -> None:
    """Shows a line without breaking a progress bar; control characters are escaped.

    Args:
      text: the line.
      end: the text that follows it.
      beside_output: whether the line goes to standard error, because a job's output
        may be on standard output.
    """
    stream = sys.stderr if beside_output else sys.stdout
    tqdm.tqdm.write(printable(text), file=stream, end=end)
    stream.flush()


def without_bars() -> bool:
    """Whether standard error is not a terminal, or one that cannot move its cursor.

    A notebook's terminal, for example, cannot: its TERM is dumb.
    """
    return not sys.stderr.isatty() or os.environ.get("TERM") == "dumb"


@contextlib.contextmanager
def said_if_long(text: str) -> Iterator[None]:
    """Shows a line on standard error if the block takes more than ten seconds."""
    timer = threading.Timer(
        LINE_SECONDS, show_line, [text], kwargs={"beside_output": True}
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Bar(tqdm.tqdm):
    """A bar on standard error or, where none can be drawn, a line now and then.

    Lines come every ten seconds, or every 1 % of the time if the work takes more than
    17 minutes.

    Args:
      what: the work, as "validate".
      total: its units.
      unit: the name of one, or with `unit_scale=True` their symbol, as "B".
      active: whether to show anything.
      further: arguments of `tqdm.tqdm`, such as `initial`.

    Attributes:
      in_lines: whether it shows lines.
      seconds_each: the seconds that a unit takes, if known; otherwise the mean so far
        is shown.
    """

    last_print_t: float
    mininterval: float

    def __init__(
        self, what: str, total: int, unit: str, *, active: bool = True, **further: Any
    ):
        self.in_lines = without_bars()
        self.seconds_each: float | None = None
        if self.in_lines:  # tqdm keeps the time, and neither writes nor clears
            further |= dict(file=io.StringIO(), mininterval=LINE_SECONDS, miniters=1)
        super().__init__(
            desc=what, total=total, unit=unit, disable=not active, **further
        )

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Draws the bar, or shows a line; tqdm calls it when it is time."""
        if not self.in_lines:
            return super().display(msg, pos)
        now = self._time()
        begun = self.n > self.initial and not self.disable
        if begun and now - self.last_print_t >= self.mininterval:
            self.last_print_t = now
            self.mininterval = max(LINE_SECONDS, (now - self.start_t) / 100)
            show_line(self._line(), beside_output=True)
        return True

    def begin_at(self, done: int) -> None:
        """Leaves the work done so far out of the mean and the estimated time left."""
        self.n = self.initial = done
        self.start_t = self._time()
        self.said()

    def said(self) -> None:
        """Puts the next line off: the caller has just shown how far the work is."""
        if not self.disable:
            self.last_print_t = self._time()

    def _line(self) -> str:
        units = f"{self.unit}{'es' if self.unit.endswith('ch') else 's'}"
        done, total = f"{self.n:,}", f"{self.total:,} {units}"
        if self.unit_scale:
            done = self.format_sizeof(self.n, self.unit)
            total = self.format_sizeof(self.total, self.unit)
        mean = (self._time() - self.start_t) / (self.n - self.initial)
        left = max(0, self.total - self.n) * (self.seconds_each or mean)
        return f"{self.desc}: {done} of {total}, {self.format_interval(left)} left."
