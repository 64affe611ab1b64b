"""The standard streams of a program: printing to them cannot fail.

A job whose results are in files does not end because nobody can read what it prints.
"""

import atexit
import io
import os
import select
import sys
from typing import Any

from gpt1_jax.data.progress import failed_streams

_OUTPUT, _ERROR = "standard output", "standard error"
_required = {_OUTPUT}  # a failure to write here ends the program


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
        if self.name in failed_streams:
            return
        failed_streams[self.name] = problem
        problem = f"{self.name} cannot be written ({problem})"
        if self.name in _required:
            raise OSError(f"{problem}; write to a file, as with --config.output=FILE.")
        if self.name != _ERROR:
            print(f"gpt1_jax: {problem}; the job goes on.", file=sys.stderr)


def output_may_fail() -> None:
    """Lets the job go on if standard output fails: its results are elsewhere."""
    _required.clear()
