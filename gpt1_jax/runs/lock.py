"""Lets one process at a time own a run folder.

On one machine the system's lock tells whether another process owns it. For gs://,
network disks and file systems without locks, the owner also writes `run.lock`, with its
host, its process and a counter that it keeps raising, and removes it at the end.
Another machine takes the folder over once the counter has stood still for a while. An
owner that stood still for so long that it lost its folder stops (`check_owned`). In a
run of several processes the main one owns the folder for all of them.
"""

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from gpt1_jax.data import files
from gpt1_jax.data.files import (
    Held,
    heartbeat,
    is_ours,
    is_remote,
    machine_id,
    make_folder,
    name_owner,
    read_record,
    refuse_links,
    remove_partial,
    system_lock,
    this_process,
    write_json,
)
from gpt1_jax.parallel.processes import agree, is_main_process
from gpt1_jax.runs.console import say

LOCK_FILE = "run.lock"
BEAT_SECONDS = 20.0  # between increments of the owner's counter
PATIENCE_SECONDS = 60.0  # how long another machine's counter may stand still
FILES = {LOCK_FILE, files.LOCK_FILE}
_SINCE = time.strftime("%Y-%m-%d %H:%M:%S")
_confirmed: dict[epath.Path, float] = {}  # when each owned lock was last seen as ours


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
      UserError: if it holds a link.
    """
    refuse_links(folder)
    problem: OSError | None = None
    path = folder / LOCK_FILE
    with contextlib.ExitStack() as held:
        held.callback(_confirmed.pop, path, None)
        if is_main_process():
            try:
                _acquire(folder, held)
            except OSError as error:
                problem = error
        if agree(problem is not None):
            raise problem or FolderInUse(f"The run folder {folder} cannot be used.")
        if is_main_process():
            record = functools.partial(_record, path)
            held.enter_context(heartbeat(path, record, BEAT_SECONDS))
            remove_partial(folder)
        yield


def check_owned() -> None:
    """Refuses to go on if another process has taken over a folder that this one owned.

    That happens to an owner that stood still for long, as when its machine slept. It
    costs no time while the counter goes up.

    Raises:
      FolderInUse: naming the new owner.
    """
    for path, confirmed in list(_confirmed.items()):
        if time.time() - confirmed < PATIENCE_SECONDS / 2:
            continue
        held = read_record(path, OSError)
        if "owner" in held and not is_ours(held):
            raise FolderInUse(
                f"This process stood still, and {name_owner(held)} took over the run "
                f"folder {path.parent}; stopped, and wrote nothing more."
            )
        _confirmed[path] = time.time()


def _acquire(folder: epath.Path, stack: contextlib.ExitStack) -> None:
    """Takes the lock; the stack frees the system's lock.

    Raises:
      FolderInUse, PermissionError: as `owned`.
    """
    path = folder / LOCK_FILE
    try:
        make_folder(folder)
        locked = False
        if not is_remote(folder):
            lock = system_lock(Path(folder) / files.LOCK_FILE)
            locked = stack.enter_context(lock)
        if path.exists() and (held := _owner_at_work(path, locked)):
            raise _in_use(path, held)
        write_json(path, _record(path, 0))
        if not is_ours(held := read_record(path, OSError)):  # another took it meanwhile
            raise _in_use(path, held)
    except Held:
        raise _in_use(path, read_record(path, OSError)) from None
    except FolderInUse:
        raise
    except OSError as error:
        raise PermissionError(
            f"The run folder {path.parent} cannot be written "
            f"({error.strerror or error}); name another with --workdir=DIR."
        ) from error


def _owner_at_work(path: epath.Path, locked: bool) -> dict[str, Any]:
    """The record of the owner that a lock names; empty if it is no longer at work.

    Args:
      path: the lock.
      locked: whether this process holds the system's lock, so that no other process
        on this machine owns the folder.
    """
    held = read_record(path, OSError)
    if not held:  # perhaps it is being written
        time.sleep(PATIENCE_SECONDS / 120)
        held = read_record(path, OSError)
    if is_ours(held):
        return held
    if locked and held.get("machine") == machine_id():
        return {}
    if held:
        say(
            f"{path} is held by {name_owner(held)}; waiting up to "
            f"{PATIENCE_SECONDS:.0f} s to see whether it still runs."
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while held and time.monotonic() < deadline:
        time.sleep(PATIENCE_SECONDS / 60)
        if not path.exists():
            return {}
        if read_record(path, OSError).get("count") != held.get("count"):
            return held
    return {}


def _in_use(path: epath.Path, held: Mapping[str, Any]) -> FolderInUse:
    return FolderInUse(
        f"The run folder {path.parent} is in use by {name_owner(held)}, since "
        f"{held.get('since')}. Wait for it, name another --workdir, or, if that "
        f"process is no longer running, delete {path}."
    )


def _record(path: epath.Path, count: int) -> dict[str, Any]:
    """What the owner writes, having seen that the lock is its own."""
    _confirmed[path] = time.time()
    return this_process(machine=machine_id(), since=_SINCE, count=count)
