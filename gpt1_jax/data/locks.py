"""One process at a time in a folder: the system's lock on a file in it."""

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from gpt1_jax.data.files import write_json

LOCK_FILE = ".lock"
NOTE_FILE = ".lock.json"  # who holds the lock and what for
_POLL_SECONDS = 0.2
_REMIND_SECONDS = 60.0
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)


class Held(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def system_lock(path: Path, seconds: float = 0.0) -> Iterator[bool]:
    """Holds the system's lock on a file while the block runs.

    The system frees it when this process ends, however that happens.

    Args:
      path: the file, made if missing, in a folder that exists.
      seconds: how long to wait for another process.

    Yields:
      Whether there is such a lock: not all file systems have them.

    Raises:
      Held: if another process still holds it.
    """
    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=seconds, poll_interval=_POLL_SECONDS)
    except filelock.Timeout as error:
        raise Held(str(path)) from error
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _UNSUPPORTED:
            raise
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive(
    folder: Path, say: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Keeps other processes out of a folder while the block runs.

    Args:
      folder: the folder to write to; it exists.
      say: shows a line to the waiting user.

    Yields:
      A function that notes what this process is doing, for those who wait.
    """
    with contextlib.ExitStack() as stack:
        began, patience = time.monotonic(), _POLL_SECONDS
        while True:
            try:
                stack.enter_context(system_lock(folder / LOCK_FILE, patience))
                break
            except Held:
                waited = time.monotonic() - began
                holder = _holder(folder)
                say(f"{folder} is in use by {holder}; waiting ({waited:.0f} s).")
                patience = _REMIND_SECONDS
        try:
            yield lambda doing: _note(folder, doing)
        finally:
            (folder / NOTE_FILE).unlink(missing_ok=True)


def _holder(folder: Path) -> str:
    """Who holds the lock and what for, as far as the note tells."""
    try:
        note = json.loads((folder / NOTE_FILE).read_text(encoding="utf-8"))
        return f"process {note['pid']} on {note['host']}, {note['doing']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"


def _note(folder: Path, doing: str) -> None:
    note = {"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}
    with contextlib.suppress(OSError):  # a full disk must not stop the run here
        write_json(folder / NOTE_FILE, note)
