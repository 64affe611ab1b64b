"""What a program shows: lines, and progress as a bar or as a line now and then.

A job whose results are in files does not end because nobody can read what it prints.
"""

import atexit
import io
import os
import select
import sys
import time
from typing import Any

import tqdm

from gpt1_jax.data.text import printable

LINE_SECONDS = 20.0  # between two lines where there is no terminal

_OUTPUT, _ERROR = "standard output", "standard error"
_required = {_OUTPUT}  # a failure to write here ends the program
_failures: dict[str, str] = {}  # the first of each stream


def open_streams() -> None:
    """Opens this program's standard streams again, so that printing cannot fail.

    What their encoding lacks is escaped. Writing to a full disk or to a pipe that has
    ended is an error once on standard output, until `output_may_fail`; from then on,
    and on standard error, it does nothing. Streams that are not the interpreter's own,
    as in a notebook, stay as they are.
    """
    atexit.register(output_may_fail)  # the interpreter's last flush has no caller
    if sys.stdin is None:
        sys.stdin = open(os.devnull)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _reopened(sys.stdout, 1, _OUTPUT)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _reopened(sys.stderr, 2, _ERROR)


def _reopened(stream: io.TextIOBase | None, fd: int, name: str) -> io.TextIOWrapper:
    if stream is None:
        # It is closed, and the next file would get its number. Nothing can be written
        # to a folder, not even under the name /dev/stdout.
        folder = os.open(os.sep, os.O_RDONLY)
        if folder != fd:
            os.dup2(folder, fd)
            os.close(folder)
    return io.TextIOWrapper(
        _StandardStream(fd, name),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


class _StandardStream(io.RawIOBase):
    """The bytes of a standard stream; see `open_streams`."""

    def __init__(self, fd: int, name: str):
        super().__init__()
        self._fd, self.name = fd, name

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # it is full, and set not to wait
                select.select((), (self._fd,), ())
            except OSError as error:
                self._fail(str(error.strerror))
                break
        return len(data)

    def _fail(self, problem: str) -> None:
        if self.name in _failures:
            return
        _failures[self.name] = problem
        problem = f"{self.name} cannot be written ({problem})"
        if self.name in _required:
            raise OSError(f"{problem}; write to a file, as with --config.output=FILE.")
        if self.name != _ERROR:
            print(f"gpt1_jax: {problem}; the job goes on.", file=sys.stderr)


def output_may_fail() -> None:
    """Lets the job go on if standard output fails: its results are elsewhere."""
    _required.clear()


def failed_streams() -> dict[str, str]:
    """The standard streams that could not be written, and the first problem of each."""
    return dict(_failures)


def show_line(text: str, end: str = "\n", *, beside_output: bool = False) -> None:
    """Shows a line without breaking a progress bar; control characters are escaped.

    Args:
      text: the line.
      end: what follows it.
      beside_output: whether the line goes to standard error, because a job's output
        may be on standard output.
    """
    stream = sys.stderr if beside_output else sys.stdout
    tqdm.tqdm.write(printable(text), file=stream, end=end)
    stream.flush()


def without_bars() -> bool:
    """Whether standard error is not a terminal, or one that cannot move its cursor.

    A notebook's, for example, cannot: TERM is dumb there.
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
