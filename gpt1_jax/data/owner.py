"""Lets one process at a time own a folder: of a run, of a cache.

On one machine, the system's lock on `.lock` shows whether another process owns the
folder. But buckets and some disks have no locks, and of machines that share a disk,
each may see only its own. So the owner also keeps a lease: a file with its host, its
process and a counter. It keeps raising the counter, and removes the file at the end. A
process that finds a lease takes the folder at once if the lease's owner was killed on
the same machine. If the owner is on another machine, the process first waits to see
that the counter no longer changes. An owner that was paused for so long has lost the
folder (`taken_over`).
"""

import contextlib
import errno
import functools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from gpt1_jax.data.files import is_remote, read_record, remove_partial, write_json

LOCK_FILE = ".lock"
LEASE_FILE = ".lock.json"  # of a cache
BEAT_SECONDS = 20.0  # between increments of the owner's counter
PATIENCE_SECONDS = 60.0  # how long another machine's counter may go unchanged
_POLL_SECONDS = 0.2
_REMIND_SECONDS = 60.0
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)
_SINCE = time.strftime("%Y-%m-%d %H:%M:%S")
_IMPORTED = secrets.token_hex(16)
_confirmed: dict[epath.Path, float] = {}  # when each lease was last seen to be ours


class Held(Exception):
    """Another process owns the folder.

    Args:
      owner: what its lease says, if that is known.
    """

    def __init__(self, owner: Mapping[str, Any] | None = None):
        super().__init__(name_owner(owner or {}))
        self.owner = owner or {}


@contextlib.contextmanager
def system_lock(path: Path, seconds: float = 0.0) -> Iterator[bool]:
    """Holds the system's lock on a file while the block runs.

    The system frees it when this process ends, however that happens.

    Args:
      path: the file, made if missing, in a folder that exists.
      seconds: how long to wait for another process.

    Yields:
      Whether the file system has locks; without them, nobody is kept out.

    Raises:
      Held: if another process still holds it.
    """
    import filelock  # imported here so that --help starts without asyncio

    # filelock's substitute, a file that stays behind, would lock out all other hosts.
    lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=seconds, poll_interval=_POLL_SECONDS / 4)
    except filelock.Timeout as error:
        raise Held from error
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def own(
    folder: epath.PathLike,
    lease_file: str,
    watching: Callable[[Mapping[str, Any]], None],
    seconds: float = _POLL_SECONDS,
) -> Iterator[None]:
    """Owns a folder while the block runs.

    Args:
      folder: the folder, which exists.
      lease_file: the name of the lease in it.
      watching: called with a lease whose owner may still be at work, before waiting to
        find out.
      seconds: how long to wait for another owner on this machine.

    Raises:
      Held: if another owner is at work.
      OSError: if nothing can be written there.
    """
    lease = epath.Path(folder) / lease_file
    with contextlib.ExitStack() as stack:
        locked = False
        if not is_remote(folder):
            lock = system_lock(Path(folder) / LOCK_FILE, seconds)
            try:
                locked = stack.enter_context(lock)
            except Held:
                raise Held(read_record(lease)) from None
        _refuse_kept(lease, locked, watching)
        remove_partial(folder, lease_file, older_than=0)
        stack.callback(_confirmed.pop, lease, None)
        _write(lease, 0)
        if not locked:
            time.sleep(PATIENCE_SECONDS / 60)  # others may have seen no lease either
        if not is_ours(held := read_record(lease)):
            raise Held(held)
        stack.enter_context(_kept(lease))
        yield


@contextlib.contextmanager
def exclusive(folder: epath.PathLike, say: Callable[[str], None]) -> Iterator[None]:
    """Owns a folder of a cache while the block runs; waits for other owners first.

    Args:
      folder: the folder, which exists.
      say: shows a line to the waiting user.
    """
    began, said = time.monotonic(), -_REMIND_SECONDS

    def tell(owner: Mapping[str, Any]) -> None:
        nonlocal said
        waited = time.monotonic() - began
        if waited - said >= _REMIND_SECONDS:
            said = waited
            who = name_owner(owner)
            say(f"{folder} is in use by {who}; waiting ({waited:.0f} s).")

    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(own(folder, LEASE_FILE, tell))
                break
            except Held as error:
                tell(error.owner)
                time.sleep(_POLL_SECONDS)
        yield


def taken_over() -> tuple[epath.Path, dict[str, Any]] | None:
    """A lease of ours that another process has taken, and what it says; None if none.

    That happens to an owner that was paused for long, for example while its machine
    slept. The check costs no time while the counter goes up.
    """
    for lease, confirmed in list(_confirmed.items()):
        if time.time() - confirmed < PATIENCE_SECONDS / 2:
            continue
        held = read_record(lease)
        if "owner" in held and not is_ours(held):
            return lease, held
        _confirmed[lease] = time.time()
    return None


def name_owner(lease: Mapping[str, Any]) -> str:
    """The owner that a lease names, for messages."""
    if not {"pid", "host"} <= lease.keys():
        return "another process"
    return f"process {lease['pid']} on {lease['host']}"


def is_ours(lease: Mapping[str, Any]) -> bool:
    """Whether a lease names this process as the owner."""
    return lease.get("owner") == _this_process()


def _this_process() -> str:
    """An id that not even the forks of this process have."""
    return f"{_IMPORTED}-{os.getpid()}"


@functools.cache
def machine_id() -> str:
    """An id of this machine since it was started, if Linux gives one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _write(lease: epath.Path, count: int) -> None:
    record = {
        "owner": _this_process(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": machine_id(),
        "since": _SINCE,
        "count": count,
    }
    write_json(lease, record)
    _confirmed[lease] = time.time()


def _refuse_kept(
    lease: epath.Path, locked: bool, watching: Callable[[Mapping[str, Any]], None]
) -> None:
    """Raises Held if the owner that a lease names is at work.

    Args:
      lease: the file.
      locked: whether this process holds the system's lock, so that no other process
        on this machine owns the folder.
      watching: as in `own`.
    """
    held = read_record(lease)
    if not held and lease.exists():  # perhaps it is being written
        time.sleep(PATIENCE_SECONDS / 120)
        held = read_record(lease)
    if is_ours(held):
        raise Held(held)
    if not held or (locked and held.get("machine") == machine_id()):
        return
    watching(held)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(PATIENCE_SECONDS / 60)
        if not lease.exists():
            return
        if read_record(lease).get("count") != held.get("count"):
            raise Held(held)


@contextlib.contextmanager
def _kept(lease: epath.Path) -> Iterator[None]:
    """Raises a lease's counter while the block runs, then removes it, while it is ours.

    Args:
      lease: the file, which this process has written.
    """
    stop = threading.Event()

    def beat() -> None:
        count = 0
        while not stop.wait(BEAT_SECONDS):
            count += 1
            with contextlib.suppress(OSError):  # the next beat may get through
                if is_ours(read_record(lease)):
                    _write(lease, count)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with contextlib.suppress(OSError):
            if is_ours(read_record(lease)):
                lease.unlink(missing_ok=True)
