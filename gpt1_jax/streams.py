"""Standard streams to which printing cannot fail.

A job that writes its results to files must not end because its output cannot be shown.
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

    Characters that their encoding lacks are escaped. Writing to a full disk or a closed
    pipe raises an error once on standard output, until `output_may_fail` is called;
    from then on, and on standard error, it does nothing. Streams other than the
    interpreter's own, as in a notebook, are left alone.
    """
    atexit.register(output_may_fail)  # nothing can catch an error of the last flush
    if sys.stdin is None:
        sys.stdin = open(os.devnull)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _reopened(sys.stdout, 1, _OUTPUT)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _reopened(sys.stderr, 2, _ERROR)


def _reopened(stream: io.TextIOBase | None, fd: int, name: str) -> io.TextIOWrapper:
    if stream is None:
        # It is closed, so the next file opened would get its number. A folder takes the
        # number, as nothing can be written to one, not even under the name /dev/stdout.
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
            except BlockingIOError:  # a full, non-blocking pipe
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
    """Lets the job continue if standard output fails: its results are elsewhere."""
    _required.clear()
