"""One process per machine prepares data; the others wait, and say for whom."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

LOCK_FILE = ".lock"
_POLL_SECONDS = 0.2
_REMIND_SECONDS = 60.0
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def exclusive(
    folder: Path, say: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Keeps other processes out of a folder while the block runs.

    The system frees the lock when its process ends, however that happens. On a file
    system without locks, none is taken.

    Args:
      folder: the folder to write to; it exists.
      say: shows a line to the waiting user.

    Yields:
      A function that notes what this process is doing, for those who wait.
    """
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
        _acquire(file, folder, say)
        try:
            yield lambda doing: _note(file, doing)
        finally:
            _note(file, "")


def _acquire(file: IO[str], folder: Path, say: Callable[[str], None]) -> None:
    began, said = time.monotonic(), 0
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        waited = time.monotonic() - began
        if waited >= max(_POLL_SECONDS, said * _REMIND_SECONDS):
            say(f"{folder} is in use by {_holder(file)}; waiting ({waited:.0f} s).")
            said = int(waited // _REMIND_SECONDS) + 1
        time.sleep(_POLL_SECONDS)


def _holder(file: IO[str]) -> str:
    """Who holds the lock and what for, as far as the file tells."""
    try:
        file.seek(0)
        note = json.load(file)
        return f"process {note['pid']} on {note['host']}, {note['doing']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"


def _note(file: IO[str], doing: str) -> None:
    """Writes who holds the lock; nothing when nobody does."""
    with contextlib.suppress(OSError):  # a full disk must not stop the run here
        file.seek(0)
        file.truncate()
        if doing:
            note = {"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}
            file.write(json.dumps(note))
        file.flush()
