"""The files of checkpoints: saved steps, metadata, checksums, scores, shapes.

Orbax writes a checkpoint (`runs/checkpoints.py`). This module reads and writes what
lies beside its arrays, and finds, deletes and sets aside whole checkpoints:

  checkpoints/STEP/manifest.json      SHA-256 of every file; without it, no checkpoint
  checkpoints/STEP/metadata/metadata  what the state belongs to, and how far it is
  checkpoints/STEP/score.json      its score, once it has been evaluated
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import (
    create,
    files_below,
    is_remote,
    json_digest,
    make_folder,
    move,
    sha256,
    write_json,
    write_whole,
)
from gpt1_jax.errors import TryAgain, UserError
from gpt1_jax.parallel.processes import eventually, gather, is_main_process
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import megabytes
from gpt1_jax.runs.resume import digests_record, saved_digests

DAMAGED_FOLDER = "damaged_checkpoints"
MANIFEST_FILE = "manifest.json"
SCORE_FILE = "score.json"
# The name of a checkpoint's manifest once the checkpoint is no longer kept.
_DELETED_FILE = "deleted.json"
# Orbax writes this file last to a checkpoint on gs://, where nothing can be renamed.
_COMMITTED_FILE = "commit_success.txt"
_METADATA_FILE = "metadata/metadata"  # where orbax puts a JSON item of that name


class Damaged(Exception):
    """The files of a checkpoint are not as they were saved; says what is wrong."""


class NoCheckpoint(FileNotFoundError):
    """A run folder does not, or no longer, hold a step."""


# --- saved steps ----------------------------------------------------------------------


def saved_steps(folder: epath.Path) -> list[int]:
    """The steps that a run folder holds, in order.

    A checkpoint whose deletion was interrupted does not count.
    """
    return sorted(int(path.name) for path in _named_by_step(folder) if is_saved(path))


def is_saved(checkpoint: epath.Path) -> bool:
    """Whether a checkpoint is there, and nobody is deleting it."""
    return checkpoint.is_dir() and not _is_deleted(checkpoint)


@contextlib.contextmanager
def still_saved(checkpoint: epath.Path) -> Iterator[None]:
    """Says so if the block fails because the checkpoint has been deleted meanwhile.

    Raises:
      NoCheckpoint: in place of any exception, if it is no longer there.
    """
    try:
        yield
    except Exception as error:
        if is_saved(checkpoint):
            raise
        raise NoCheckpoint(
            f"The checkpoint {checkpoint} was deleted while it was read: a training is "
            "at work there, which keeps the newest, the best and its milestones. Name "
            "one of these."
        ) from error


def _named_by_step(folder: epath.Path) -> list[epath.Path]:
    directory = folder / "checkpoints"
    found = directory.iterdir() if directory.exists() else ()
    return sorted(path for path in found if re.fullmatch("[0-9]+", path.name))


def _is_deleted(checkpoint: epath.Path) -> bool:
    """Whether a folder is only what a deletion, or a save on gs://, has left."""
    if (checkpoint / MANIFEST_FILE).exists():
        return False
    if is_remote(checkpoint) and not (checkpoint / _COMMITTED_FILE).exists():
        return True
    try:
        return (checkpoint / _DELETED_FILE).exists() or not any(checkpoint.iterdir())
    except FileNotFoundError:
        return True


def clear_steps(folder: epath.Path) -> list[int]:
    """Clears a run folder of checkpoints that a quick look shows to be incomplete.

    The main process finishes deletions and saves that a kill interrupted, and sets
    aside checkpoints that lack a file or have unreadable metadata. Call this as the
    owner of the folder, on all processes, before anything else reads the steps.

    Returns:
      The saved steps in order, the same on all processes.

    Raises:
      ValueError: if there were checkpoints and none is left.
      TryAgain: if this process does not see the files that the main one sees.
    """
    if is_main_process():
        for path in _named_by_step(folder):
            if path.is_dir() and _is_deleted(path):
                delete_checkpoint(path)
                continue
            try:
                check_files(path, lambda names: {_METADATA_FILE})
            except Damaged as damage:
                set_aside(folder, path, str(damage))
                continue
            if is_remote(path) and not (path / _COMMITTED_FILE).exists():
                create(path / _COMMITTED_FILE, "")  # all else was written
    steps: list[int] = json.loads(gather(json.dumps(saved_steps(folder)))[0])
    if not eventually(lambda: saved_steps(folder) == steps):
        raise TryAgain(
            f"This process sees the steps {saved_steps(folder)} in {folder}, process "
            f"0 sees {steps}. Run the same command again once the disk shows all "
            "processes the same."
        )
    refuse_lost(folder, steps)
    return steps


def refuse_lost(folder: epath.Path, steps: Collection[int]) -> None:
    """Refuses to start afresh where all checkpoints are damaged."""
    if not steps and (folder / DAMAGED_FOLDER).exists():
        raise UserError(
            f"All checkpoints of this run are damaged; they are in "
            f"{folder / DAMAGED_FOLDER}. Move that folder away and run the same "
            "command again to start afresh, or name another --workdir."
        )


def set_aside(folder: epath.Path, path: epath.Path, problem: str) -> None:
    """Moves a damaged checkpoint, or a part of it, out of the way.

    It is said before it is done, as the program may be killed in between.
    """
    step, *part = path.relative_to(folder / "checkpoints").parts
    name = "-".join([step, *part])
    number = 0
    while (target := folder / DAMAGED_FOLDER / f"{name}-{number}").exists():
        number += 1
    size = megabytes(files_bytes(path))
    say(
        f"WARNING: the checkpoint of step {step} is damaged ({problem}); moving "
        f"{'/'.join(part) or 'it'}, {size}, to {target}."
    )
    make_folder(target.parent)
    move(path, target)


def delete_checkpoint(checkpoint: epath.Path) -> None:
    """Deletes a checkpoint; killed at any moment, it leaves all of it or none.

    First the manifest gets another name, as a folder without one is no checkpoint; the
    file of that name is deleted last.
    """
    if (checkpoint / MANIFEST_FILE).exists():
        (checkpoint / MANIFEST_FILE).rename(checkpoint / _DELETED_FILE)
    for path in checkpoint.iterdir():
        if path.is_dir():
            path.rmtree()
        elif path.name != _DELETED_FILE:
            path.unlink()
    checkpoint.rmtree()


# --- metadata -------------------------------------------------------------------------


def read_metadata(folder: epath.Path, step: int) -> dict[str, Any]:
    """The record saved beside the state of a step: its run and its progress.

    Raises:
      ValueError: if it cannot be read, or is no such record.
    """
    file = folder / "checkpoints" / str(step) / _METADATA_FILE
    metadata = read_json(file)
    if not _is_metadata(metadata):
        raise UserError(
            f"{file} is not what this program saves beside a state; it is damaged or "
            "was not written by this program. Name another step, or another run."
        )
    return metadata


def _is_metadata(value: Mapping[str, Any]) -> bool:
    """Whether each part that a record has is of the right type."""
    texts = {"tokenizer": "", "params_digest": ""}
    tables: dict[str, Any] = {"config": {}, "data": {}, "text_read": {}}
    match {**texts, **tables, **digests_record({}), **value}:
        case {
            "tokenizer": str(),
            "params_digest": str(),
            "config": dict(),
            "data": dict(),
            "text_read": dict(),
            "content_digests": dict(digests),
        }:
            return all(isinstance(digest, str) for digest in digests.values())
    return False


def saved_metadata(folder: epath.Path) -> dict[int, dict[str, Any]]:
    """The metadata of all saved steps, in order.

    Raises:
      ValueError: if one cannot be read.
    """
    found = {}
    for step in saved_steps(folder):
        with (
            contextlib.suppress(NoCheckpoint),  # another process deletes it
            still_saved(folder / "checkpoints" / str(step)),
        ):
            found[step] = read_metadata(folder, step)
    return found


def newest_digests(folder: epath.Path) -> dict[str, str]:
    """The content digests in the newest readable metadata; none if there is none."""
    return saved_digests(newest_metadata(folder))


def newest_metadata(folder: epath.Path) -> Mapping[str, Any]:
    """The newest readable metadata of a run's checkpoints; empty if there is none."""
    for step in reversed(saved_steps(folder)):
        with contextlib.suppress(UserError):
            return read_metadata(folder, step)
    return {}


# --- checksums ------------------------------------------------------------------------


def write_manifest(checkpoint: epath.Path, leave_out: Collection[str]) -> None:
    """Writes the checksums of all files of a complete checkpoint.

    Args:
      checkpoint: its folder.
      leave_out: names of files that may still change.
    """
    manifest = {
        name: sha256(checkpoint / name)
        for name in _files(checkpoint)
        if name.rpartition("/")[2] not in {MANIFEST_FILE, *leave_out}
    }
    write_whole(checkpoint / MANIFEST_FILE, json.dumps(manifest, indent=1))


def check_files(
    checkpoint: epath.Path,
    chosen: Callable[[Sequence[str]], Collection[str]] = lambda names: names,
) -> None:
    """Checks that the files of a checkpoint are as they were saved.

    Args:
      checkpoint: its folder.
      chosen: picks, from the sorted names in the manifest, the files whose checksums
        are compared; all files must be there in any case.

    Raises:
      Damaged: naming the file, and what is wrong with it.
    """
    path = checkpoint / MANIFEST_FILE
    if not path.exists():
        raise Damaged(f"{MANIFEST_FILE} is missing")
    try:
        manifest = {str(n): d for n, d in dict(json.loads(path.read_text())).items()}
    except (OSError, ValueError, TypeError, RecursionError):
        raise Damaged(f"{MANIFEST_FILE} cannot be read") from None
    if not manifest:
        raise Damaged(f"{MANIFEST_FILE} lists no files")
    found = set(_files(checkpoint))
    names = sorted(manifest)
    for name in names:
        if name not in found:
            raise Damaged(f"{name} is missing")
        if os.path.islink(checkpoint / name):
            raise Damaged(f"{name} is a link")
    for name in chosen(names):
        if name not in manifest:
            raise Damaged(f"{MANIFEST_FILE} does not list {name}")
        try:
            digest = sha256(checkpoint / name)
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error
        if digest != manifest[name]:
            raise Damaged(f"{name} differs from what was saved")


def manifest_digest(checkpoint: epath.Path) -> str:
    """A digest that identifies a checkpoint; empty if it has no manifest."""
    try:
        return sha256(checkpoint / MANIFEST_FILE)
    except FileNotFoundError:
        return ""


def files_bytes(path: epath.Path) -> int:
    """The size of all files below a folder, or of the file itself."""
    if not path.is_dir():
        return path.stat().length
    return sum((path / name).stat().length for name in _files(path))


def _files(folder: epath.Path) -> list[str]:
    """All files below a folder, by their names relative to it, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in files_below(folder))


# --- scores ---------------------------------------------------------------------------


class Best(NamedTuple):
    """The metric that ranks checkpoints."""

    metric: str
    highest: bool  # whether the highest value is the best, or the lowest


LOWEST_LOSS = Best("valid_loss", highest=False)


def write_score(checkpoint: epath.Path, best: Best, score: float) -> None:
    """Notes the score of a saved step in its folder, with a checksum."""
    record = {**best._asdict(), "value": score}
    write_json(checkpoint / SCORE_FILE, {**record, "sha256": json_digest(record)})


def read_scores(folder: epath.Path, step: int) -> dict[Best, float]:
    """The score of a saved step by its metric; empty if it was not evaluated.

    Raises:
      ValueError: if its file is not as it was written.
    """
    file = folder / "checkpoints" / str(step) / SCORE_FILE
    if not file.exists():
        return {}
    try:
        record = read_json(file)
        intact = record.pop("sha256", None) == json_digest(record)
        value = float(record["value"])
        if intact and math.isfinite(value) and isinstance(record["metric"], str):
            return {Best(record["metric"], bool(record["highest"])): value}
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    raise UserError(
        f"{file} is damaged, which says how good step {step} is. Name a step by its "
        "number, or run the training command again: it has the score elsewhere too."
    )


def best_step(folder: epath.Path) -> int:
    """The saved step with the best score; the newest if none has a score.

    Raises:
      ValueError: if a score is not as it was written.
    """
    steps = saved_steps(folder)
    scores: dict[Best, dict[int, float]] = {}
    for step in steps:
        with (
            contextlib.suppress(NoCheckpoint),  # another process deletes it
            still_saved(folder / "checkpoints" / str(step)),
        ):
            for best, value in read_scores(folder, step).items():
                scores.setdefault(best, {})[step] = value
    if not scores:
        return steps[-1]
    best, by_step = next(iter(scores.items()))
    return best_first(by_step, best.highest)[0]


def best_first(scores: Mapping[int, float], highest: bool) -> list[int]:
    """Steps by score, best first; of equally good ones, the earliest first."""
    sign = -1 if highest else 1
    return sorted(scores, key=lambda step: (sign * scores[step], step))


# --- shapes ---------------------------------------------------------------------------


def abstract_state(state: Any, sharding: Any) -> Any:
    """Shapes and dtypes of a state, placed by `sharding`, as `restore` takes them.

    Args:
      state: arrays, or their shapes.
      sharding: a tree like `state`, with the sharding of each array.
    """
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, sharding
    )


def state_bytes(state: Any) -> int:
    """The size of a state: arrays, or their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def first_difference(found: Any, wanted: Any) -> str | None:
    """The first array, by name, that does not have the shape wanted; None if all do.

    Args:
      found: arrays, or anything with their shapes.
      wanted: arrays, or anything with the shapes wanted.

    Returns:
      For example "h_0/ln_1/bias of shape None, not (768,)", where None stands for an
      array that is missing.
    """
    asked, held = (
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (wanted, found)
    )
    for name in sorted(asked.keys() | held.keys()):
        if asked.get(name) != held.get(name):
            return f"{name} of shape {held.get(name)}, not {asked.get(name)}"
    return None
