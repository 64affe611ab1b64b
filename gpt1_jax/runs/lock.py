"""One run folder, one owner.

The owner writes `run.lock` (its host, its process and a counter that it keeps raising)
and removes it at the end. A lock from this machine is taken over at once if its process
is gone; one from another machine, once its counter has stood still for a while. No
operating-system lock is used, so this works on gs:// and network disks too. In a run of
several processes the main one owns the folder for all of them.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from gpt1_jax.data.files import refuse_links, write_json
from gpt1_jax.parallel.processes import agree, is_main_process
from gpt1_jax.runs.console import say

LOCK_FILE = "run.lock"
BEAT_SECONDS = 20.0  # between increments of the owner's counter
PATIENCE_SECONDS = 60.0  # how long another machine's counter may stand still


class FolderInUse(OSError):
    """Another process is using the run folder."""


@contextlib.contextmanager
def owned(folder: epath.Path) -> Iterator[None]:
    """Owns a run folder while the block runs.

    Args:
      folder: the run folder, created if missing.

    Raises:
      FolderInUse: if another owner is still at work; names it.
      PermissionError: if nothing can be written there.
      ValueError: if it holds a link.
    """
    refuse_links(folder)
    problem = _acquire(folder / LOCK_FILE) if is_main_process() else None
    if agree(problem is not None):
        raise problem or FolderInUse(f"The run folder {folder} cannot be used.")
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(folder / LOCK_FILE, stop), daemon=True)
    if is_main_process():
        beat.start()
    try:
        yield
    finally:
        stop.set()
        if is_main_process():
            beat.join()
            if _read(folder / LOCK_FILE).get("owner") == _owner():
                (folder / LOCK_FILE).unlink(missing_ok=True)


_IMPORTED = uuid.uuid4().hex


def _owner() -> str:
    """Tells this process from any other on any machine, its own forks included."""
    return f"{_IMPORTED}-{os.getpid()}"


def _acquire(path: epath.Path) -> OSError | None:
    """Takes the lock; returns what prevents it, if anything does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if "://" not in str(path) and _create(path):
            return None
        if path.exists() and (held := _owner_at_work(path)):
            return _in_use(path, held)
        write_json(path, _record(0))
        if (held := _read(path)).get("owner") != _owner():  # another took it meanwhile
            return _in_use(path, held)
    except OSError as error:
        return PermissionError(
            f"The run folder {path.parent} cannot be written ({error.strerror}); name "
            "another with --workdir=DIR."
        )
    return None


def _create(path: epath.Path) -> bool:
    """Makes the lock if there is none; only one of several processes succeeds."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with open(file, "w") as lock:
        json.dump(_record(0), lock)
    return True


def _owner_at_work(path: epath.Path) -> dict[str, Any]:
    """The record of the owner that a lock names; empty if it is no longer at work."""
    held = _read(path)
    if not held:  # perhaps it is being written
        time.sleep(0.5)
        held = _read(path)
    if held.get("owner") == _owner():
        return held
    if held.get("host") == socket.gethostname():
        pid = held.get("pid")
        runs = isinstance(pid, int) and _started(pid) == held.get("started")
        return held if runs else {}
    if held:
        say(
            f"{path} is held by process {held.get('pid')} on {held.get('host')}; "
            f"waiting up to {PATIENCE_SECONDS:.0f} s to see whether it still runs."
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while held and time.monotonic() < deadline:
        time.sleep(min(1.0, PATIENCE_SECONDS))
        if not path.exists():
            return {}
        if _read(path).get("count") != held.get("count"):
            return held
    return {}


def _in_use(path: epath.Path, held: Mapping[str, Any]) -> FolderInUse:
    return FolderInUse(
        f"The run folder {path.parent} is in use by process {held.get('pid')} on "
        f"{held.get('host')}, since {held.get('since')}. Wait for it, name another "
        f"--workdir, or, if that process is no longer running, delete {path}."
    )


def _beat(path: epath.Path, stop: threading.Event) -> None:
    """Counts up while the owner is at work, unless another process took the lock."""
    count = 0
    while not stop.wait(BEAT_SECONDS):
        count += 1
        with contextlib.suppress(OSError):
            if _read(path).get("owner") == _owner():
                write_json(path, _record(count))


def _record(count: int) -> dict[str, Any]:
    return {
        "owner": _owner(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "since": _SINCE,
        "count": count,
    }


_SINCE = time.strftime("%Y-%m-%d %H:%M:%S")


def _started(pid: int) -> str | None:
    """When a process on this machine started; None if there is no such process.

    Process numbers are reused, so the number alone would not identify it. A zombie, as
    a killed process stays in a container that reaps none, is no longer a process.
    """
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        with contextlib.suppress(OSError, IndexError):
            state, *fields = stat.read_text().rpartition(")")[2].split()
            return None if state in "ZX" else fields[18]
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return "alive"


def _read(path: epath.Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}
