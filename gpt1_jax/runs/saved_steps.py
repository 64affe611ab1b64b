"""The saved steps of a run: which there are, the best, and the one asked for."""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import create, is_remote, make_folder
from gpt1_jax.errors import TryAgain, UserError
from gpt1_jax.parallel.processes import eventually, gather, is_main_process
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import megabytes
from gpt1_jax.runs.identity import saved_digests
from gpt1_jax.runs.manifest import MANIFEST_FILE, find_damage, num_bytes

DAMAGED_FOLDER = "damaged_checkpoints"
# What the manifest of a checkpoint is called from the moment it is no longer kept.
_DELETED_FILE = "deleted.json"
# What orbax writes last to a checkpoint on gs://, where nothing can be renamed.
_COMMITTED_FILE = "commit_success.txt"
_METADATA_FILE = "metadata/metadata"  # where orbax puts a JSON item of that name


class Best(NamedTuple):
    """The metric that ranks checkpoints."""

    metric: str
    highest: bool  # whether the highest value is the best, or the lowest


LOWEST_LOSS = Best("valid_loss", highest=False)


def saved_steps(workdir: epath.Path) -> list[int]:
    """The steps that a run folder holds, in order.

    A checkpoint that was being deleted when its program was killed is none.
    """
    return sorted(
        int(path.name)
        for path in _named_by_step(workdir)
        if path.is_dir() and not _is_deleted(path)
    )


def _named_by_step(workdir: epath.Path) -> list[epath.Path]:
    directory = workdir / "checkpoints"
    found = directory.iterdir() if directory.exists() else ()
    return sorted(path for path in found if re.fullmatch("[0-9]+", path.name))


def _is_deleted(folder: epath.Path) -> bool:
    """Whether a folder is only what a deletion, or a save on gs://, has left."""
    if (folder / MANIFEST_FILE).exists():
        return False
    if is_remote(folder) and not (folder / _COMMITTED_FILE).exists():
        return True
    return (folder / _DELETED_FILE).exists() or not any(folder.iterdir())


def delete_checkpoint(folder: epath.Path) -> None:
    """Deletes a checkpoint; killed at any moment, it leaves all of it or none.

    First the manifest gets another name, without which a folder is no checkpoint; the
    file of that name goes last.
    """
    if (folder / MANIFEST_FILE).exists():
        (folder / MANIFEST_FILE).rename(folder / _DELETED_FILE)
    for path in folder.iterdir():
        if path.is_dir():
            path.rmtree()
        elif path.name != _DELETED_FILE:
            path.unlink()
    folder.rmtree()


def clear_steps(workdir: epath.Path) -> list[int]:
    """Makes every saved step of a run a checkpoint, as far as a glance can tell.

    The main process finishes deletions and saves that a kill has interrupted, and sets
    aside what lacks a file or has unreadable metadata. Call it as the owner of the
    folder, on all processes, before anything else reads the steps.

    Returns:
      The saved steps in order, the same on all processes.

    Raises:
      ValueError: if there were checkpoints and none is left.
      TryAgain: if this process does not see what the main one sees.
    """
    if is_main_process():
        for path in _named_by_step(workdir):
            if path.is_dir() and _is_deleted(path):
                delete_checkpoint(path)
            elif problem := find_damage(path, lambda names: {_METADATA_FILE}):
                set_aside(workdir, path, problem)
            elif is_remote(path) and not (path / _COMMITTED_FILE).exists():
                create(path / _COMMITTED_FILE, "")  # all else was written
    steps: list[int] = json.loads(gather(json.dumps(saved_steps(workdir)))[0])
    if not eventually(lambda: saved_steps(workdir) == steps):
        raise TryAgain(
            f"This process sees the steps {saved_steps(workdir)} in {workdir}, process "
            f"0 sees {steps}. Run the same command again once the disk shows all "
            "processes the same."
        )
    refuse_lost(workdir, steps)
    return steps


def refuse_lost(workdir: epath.Path, steps: Collection[int]) -> None:
    """Refuses to start afresh where all checkpoints are damaged."""
    if not steps and (workdir / DAMAGED_FOLDER).exists():
        raise UserError(
            f"All checkpoints of this run are damaged; they are in "
            f"{workdir / DAMAGED_FOLDER}. Move that folder away and run the same "
            "command again to start afresh, or name another --workdir."
        )


def set_aside(workdir: epath.Path, path: epath.Path, problem: str) -> None:
    """Moves a damaged checkpoint, or a part of it, out of the way.

    Says so before, as a kill may come after.
    """
    step, *part = path.relative_to(workdir / "checkpoints").parts
    name = "-".join([step, *part])
    number = 0
    while (target := workdir / DAMAGED_FOLDER / f"{name}-{number}").exists():
        number += 1
    size = megabytes(num_bytes(path))
    say(
        f"WARNING: the checkpoint of step {step} is damaged ({problem}); moving "
        f"{'/'.join(part) or 'it'}, {size}, to {target}."
    )
    make_folder(target.parent)
    path.rename(target)


def read_metadata(workdir: epath.Path, step: int) -> dict[str, Any]:
    """What was saved beside the state of a step: what it belongs to, how far it is.

    Raises:
      ValueError: if it cannot be read.
    """
    return read_json(workdir / "checkpoints" / str(step) / _METADATA_FILE)


def newest_digests(workdir: epath.Path) -> dict[str, str]:
    """The content digests of what a run was made from; none if it holds none."""
    for step in reversed(saved_steps(workdir)):
        with contextlib.suppress(UserError):
            return saved_digests(read_metadata(workdir, step))
    return {}


def best_first(scores: Mapping[int, float], highest: bool) -> list[int]:
    """Steps by score, best first; of equally good ones, the earliest first."""
    sign = -1 if highest else 1
    return sorted(scores, key=lambda step: (sign * scores[step], step))
