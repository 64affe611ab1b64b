"""Shows lines, and progress as a bar or as an occasional line."""

import os
import sys
import time

import tqdm

from gpt1_jax.data.text import printable

LINE_SECONDS = 20.0  # between two lines where there is no terminal

# The standard streams that could not be written, and the first problem of each.
failed_streams: dict[str, str] = {}


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


class Progress:
    """Counts the bytes of text that are tokenised.

    Args:
      total: bytes expected; compressed files hold more.
      active: whether to show anything.
    """

    def __init__(self, total: int, active: bool):
        self._total, self._done, self._active = total, 0, active
        self._began = self._said = time.monotonic()
        self._bar = tqdm.tqdm(
            total=total,
            unit="B",
            unit_scale=True,
            desc="tokenise",
            disable=not active or without_bars(),
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def update(self, num_bytes: int) -> None:
        """Counts further bytes as done."""
        self._done += num_bytes
        if not self._bar.disable:
            self._bar.update(num_bytes)
            return
        now = time.monotonic()
        if self._active and now - self._said >= LINE_SECONDS:
            self._said = now
            rate = self._done / (now - self._began)
            left = max(0, self._total - self._done) / rate
            show_line(
                f"Tokenised {self._done / 1e6:,.1f} of {self._total / 1e6:,.1f} MB, "
                f"{rate / 1e6:,.2f} MB/s, {left:,.0f} s left."
            )
