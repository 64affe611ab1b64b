"""Lets one process at a time own a run folder: see `gpt1_jax.data.owner`.

The owner is named in `run.lock`. In a run of several processes the main one owns the
folder for all of them.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from gpt1_jax.data import owner
from gpt1_jax.data.files import make_folder, remove_partial
from gpt1_jax.parallel.processes import agree, is_main_process
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import refuse_dead_ends

LOCK_FILE = "run.lock"
FILES = {LOCK_FILE, owner.LOCK_FILE}


class FolderInUse(OSError):
    """Another process is using the run folder."""


@contextlib.contextmanager
def owned(folder: epath.Path, for_a_moment: bool = False) -> Iterator[None]:
    """Owns a run folder while the block runs.

    Args:
      folder: the run folder, created if missing.
      for_a_moment: whether to wait, for up to a minute, for another owner, and to leave
        unfinished files alone: folders below it may have owners at work.

    Raises:
      FolderInUse: if another owner is still at work; names it.
      PermissionError: if nothing can be written there.
      UserError: if a part of it cannot be read or written.
    """
    refuse_dead_ends(folder)
    problem: OSError | None = None
    watching = functools.partial(_say_watching, folder)
    seconds = {"seconds": owner.PATIENCE_SECONDS} if for_a_moment else {}
    with contextlib.ExitStack() as held:
        if is_main_process():
            try:
                make_folder(folder)
                for path in (folder / name for name in FILES):
                    if os.path.islink(path):  # locking would empty what it leads to
                        path.unlink()
                held.enter_context(owner.own(folder, LOCK_FILE, watching, **seconds))
            except owner.Held as error:
                problem = _in_use(folder, error.owner)
            except OSError as error:
                problem = PermissionError(
                    f"The run folder {folder} cannot be written "
                    f"({error.strerror or error}); name another with --workdir=DIR."
                )
                problem.__cause__ = error
        if agree(problem is not None):
            raise problem or FolderInUse(f"The run folder {folder} cannot be used.")
        if is_main_process() and not for_a_moment:
            remove_partial(folder, older_than=0)
        yield


def check_owned() -> None:
    """Refuses to go on if another process has taken over a folder that this one owned.

    Raises:
      FolderInUse: naming the new owner.
    """
    if taken := owner.taken_over():
        lease, held = taken
        raise FolderInUse(
            f"This process was paused for too long, and {owner.name_owner(held)} has "
            f"taken over the folder {lease.parent}. It stops here and writes nothing "
            "more; let the other process go on, or run this command again later."
        )


def _say_watching(folder: epath.Path, held: Mapping[str, Any]) -> None:
    say(
        f"{folder / LOCK_FILE} is held by {owner.name_owner(held)}; waiting up to "
        f"{owner.PATIENCE_SECONDS:.0f} s to see whether it still runs."
    )


def _in_use(folder: epath.Path, held: Mapping[str, Any]) -> FolderInUse:
    if owner.is_ours(held):
        return FolderInUse(
            f"The run folder {folder} is in use by this same process, in another "
            "job or thread; wait for it, or name another --workdir."
        )
    since = f", since {held['since']}" if "since" in held else ""
    return FolderInUse(
        f"The run folder {folder} is in use by {owner.name_owner(held)}{since}. Wait "
        "for it, name another --workdir, or, if that process is no longer running, "
        f"delete {folder / LOCK_FILE}."
    )
