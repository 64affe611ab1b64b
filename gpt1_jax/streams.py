"""Standard streams to which printing cannot fail.

A job that writes its results to files must not end because its output cannot be shown.
"""

import atexit
import io
import os
import select
import sys
from typing import Any

_OUTPUT, _ERROR = 1, 2  # their numbers
_may_fail = {_ERROR}  # what is printed there is lost once it cannot be written


def open_streams() -> None:
    """Opens this program's standard streams again, so that printing cannot fail.

    Characters that their encoding lacks are escaped. Standard output on a full disk
    raises an error, and a closed pipe ends the program, until `output_may_fail` is
    called; from then on, and on standard error, what cannot be written is lost. Streams
    other than the interpreter's own, as in a notebook, are left alone.
    """
    atexit.register(output_may_fail)  # nothing can catch an error of the last flush
    if sys.stdin is None:
        sys.stdin = open(os.devnull)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _reopened(sys.stdout, _OUTPUT)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _reopened(sys.stderr, _ERROR)


def output_may_fail() -> None:
    """Lets the job continue if standard output fails: its results are elsewhere."""
    _may_fail.add(_OUTPUT)


def _reopened(stream: io.TextIOBase | None, fd: int) -> io.TextIOWrapper:
    if stream is None:
        # It is closed, so the next file opened would get its number. Open a folder in
        # its place: nothing can be written to a folder, not even under the name
        # /dev/stdout.
        folder = os.open(os.sep, os.O_RDONLY)
        if folder != fd:
            os.dup2(folder, fd)
            os.close(folder)
    encoding = stream.encoding if stream else "utf-8"
    return io.TextIOWrapper(
        _Stream(fd), encoding, errors="backslashreplace", line_buffering=True
    )


class _Stream(io.RawIOBase):
    """The bytes of a standard stream; see `open_streams`."""

    def __init__(self, fd: int):
        super().__init__()
        self.name, self._fd, self._failed = f"<{fd}>", fd, False

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data)
        while left and not self._failed:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # a full, non-blocking pipe
                select.select((), (self._fd,), ())
            except OSError as error:
                self._failed = True
                self._report(error)
        return len(data)

    def _report(self, error: OSError) -> None:
        problem = f"standard output cannot be written ({error.strerror})"
        if self._fd not in _may_fail:
            if isinstance(error, BrokenPipeError):  # the reader has seen enough
                sys.exit(1)
            raise OSError(f"{problem}; write to a file, as with --config.output=FILE.")
        if self._fd == _OUTPUT:
            print(f"gpt1_jax: {problem}; the job goes on.", file=sys.stderr)
