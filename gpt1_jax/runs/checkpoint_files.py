"""The files of checkpoints: saved steps, metadata, checksums, scores, shapes.

Orbax writes a checkpoint (`runs/checkpoints.py`). This module reads and writes what
lies beside its arrays, and finds, deletes and sets aside whole checkpoints:

  checkpoints/STEP/manifest.json      SHA-256 of every file; without it, no checkpoint
  checkpoints/STEP/metadata/metadata  what the state belongs to, and how far it is
  checkpoints/STEP/score.json         its score, once it has been evaluated
"""

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import (
    files_below,
    is_remote,
    make_folder,
    move,
    sha256,
    write_json,
)
from gpt1_jax.errors import UserError
from gpt1_jax.runs.console import say
from gpt1_jax.runs.resume import DIGESTS

DAMAGED_FOLDER = "damaged_checkpoints"
MANIFEST_FILE = "manifest.json"
SCORE_FILE = "score.json"
# Orbax writes this file last to a checkpoint on gs://, where nothing can be renamed.
_COMMITTED_FILE = "commit_success.txt"
# Not in the manifest, as they are written after it.
UNHASHED = {"_CHECKPOINT_METADATA", _COMMITTED_FILE, SCORE_FILE}
# Orbax removes folders of this name when training begins again.
_TEMPORARY = ".orbax-checkpoint-tmp"
_METADATA_FILE = "metadata/metadata"  # where version 1.0 had orbax put it
_METADATA_KINDS: Mapping[str, type] = {
    "config": dict,
    "tokenizer": str,
    "params_digest": str,
    DIGESTS: dict,
    "data": dict,
    "text_read": dict,
}


class Damaged(Exception):
    """The files of a checkpoint are not as they were saved; says what is wrong."""


class NoCheckpoint(FileNotFoundError):
    """A run folder does not, or no longer, hold a step."""


# --- saved steps ----------------------------------------------------------------------


def saved_steps(folder: epath.Path) -> list[int]:
    """The steps that a run folder holds, in order."""
    directory = folder / "checkpoints"
    found = directory.iterdir() if directory.exists() else ()
    named = (path for path in found if re.fullmatch("[0-9]+", path.name))
    return sorted(int(path.name) for path in named if is_saved(path))


def is_saved(checkpoint: epath.Path) -> bool:
    """Whether a checkpoint is there: completely written, and not being deleted."""
    if is_remote(checkpoint):
        return (checkpoint / _COMMITTED_FILE).exists()
    return checkpoint.is_dir()


def set_aside(folder: epath.Path, step: int, problem: str) -> None:
    """Says that a checkpoint is damaged, then moves it out of the way.

    The message names the problem.
    """
    number = 0
    while (target := folder / DAMAGED_FOLDER / f"{step}-{number}").exists():
        number += 1
    say(
        f"WARNING: the checkpoint of step {step} is damaged ({problem}); moving it to "
        f"{target}."
    )
    make_folder(target.parent)
    move(folder / "checkpoints" / str(step), target)


def refuse_lost(folder: epath.Path) -> None:
    """Refuses to start afresh where all checkpoints are damaged."""
    if (folder / DAMAGED_FOLDER).exists():
        raise UserError(
            f"All checkpoints of this run are damaged; they are in "
            f"{folder / DAMAGED_FOLDER}. Move that folder away and run the same "
            "command again to start afresh, or name another --workdir."
        )


def delete_checkpoint(checkpoint: epath.Path) -> None:
    """Deletes a checkpoint; a kill at any moment leaves all of it or nothing.

    If the checkpoint is a link, only the link is removed.
    """
    if os.path.islink(checkpoint):
        checkpoint.unlink()
    elif is_remote(checkpoint):
        (checkpoint / _COMMITTED_FILE).unlink()
        checkpoint.rmtree()
    else:
        checkpoint.rename(checkpoint.with_name(checkpoint.name + _TEMPORARY)).rmtree()


# --- metadata -------------------------------------------------------------------------


def read_metadata(folder: epath.Path, step: int) -> dict[str, Any]:
    """The record saved beside the state of a step: its run and its progress.

    Raises:
      UserError: if it cannot be read, or holds something else.
    """
    file = folder / "checkpoints" / str(step) / _METADATA_FILE
    metadata = read_json(file)
    for key, kind in _METADATA_KINDS.items():
        if not isinstance(metadata.get(key, kind()), kind):
            raise UserError(
                f"{file} has {key}={metadata[key]!r:.40}, which is not what this "
                "program saves beside a state. Name another step, or another run."
            )
    return metadata


def write_metadata(checkpoint: epath.Path, metadata: Mapping[str, Any]) -> None:
    """Writes the record that `read_metadata` reads."""
    write_json(checkpoint / _METADATA_FILE, metadata)


def saved_metadata(folder: epath.Path) -> dict[int, dict[str, Any]]:
    """The metadata of all saved steps, in order.

    Raises:
      ValueError: if one cannot be read.
    """
    return {
        step: metadata
        for step in saved_steps(folder)
        if (metadata := _unless_deleted(read_metadata, folder, step))
    }


def _unless_deleted(
    read: Callable[[epath.Path, int], dict[Any, Any]], folder: epath.Path, step: int
) -> dict[Any, Any]:
    """What `read` returns for a saved step; empty if it has just been deleted."""
    try:
        return read(folder, step)
    except UserError:
        if is_saved(folder / "checkpoints" / str(step)):
            raise
        return {}


def newest_metadata(folder: epath.Path) -> Mapping[str, Any]:
    """The newest readable metadata of a run's checkpoints; empty if there is none."""
    for step in reversed(saved_steps(folder)):
        with contextlib.suppress(UserError):
            return read_metadata(folder, step)
    return {}


# --- checksums ------------------------------------------------------------------------


def write_manifest(checkpoint: epath.Path) -> None:
    """Writes the checksums of all files of a checkpoint, the last of its own files."""
    manifest = {
        path.relative_to(checkpoint).as_posix(): sha256(path)
        for path in sorted(files_below(checkpoint))
        if path.name not in {MANIFEST_FILE, *UNHASHED}
    }
    write_json(checkpoint / MANIFEST_FILE, manifest)


def check_files(checkpoint: epath.Path) -> None:
    """Checks that the files of a checkpoint are as they were saved.

    Raises:
      Damaged: naming the file, and what is wrong with it.
    """
    if not (checkpoint / MANIFEST_FILE).exists():
        raise Damaged(f"{MANIFEST_FILE} is missing")
    try:
        manifest = read_json(checkpoint / MANIFEST_FILE)
    except UserError as error:
        raise Damaged(f"{MANIFEST_FILE} cannot be read") from error
    if not manifest:
        raise Damaged(f"{MANIFEST_FILE} lists no files")
    for name, digest in sorted(manifest.items()):
        if not (checkpoint / name).is_file():
            raise Damaged(f"{name} is missing")
        try:
            intact = sha256(checkpoint / name) == digest
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error
        if not intact:
            raise Damaged(f"{name} differs from what was saved")


def manifest_digest(checkpoint: epath.Path) -> str:
    """A digest that identifies a checkpoint; empty if it has no manifest."""
    try:
        return sha256(checkpoint / MANIFEST_FILE)
    except FileNotFoundError:
        return ""


# --- scores ---------------------------------------------------------------------------


class Best(NamedTuple):
    """The metric that ranks checkpoints."""

    metric: str
    highest: bool  # whether the highest value is the best, or the lowest


LOWEST_LOSS = Best("valid_loss", highest=False)


def write_score(checkpoint: epath.Path, best: Best, score: float) -> None:
    """Notes the score of a saved step in its folder."""
    write_json(checkpoint / SCORE_FILE, {**best._asdict(), "value": score})


def read_scores(folder: epath.Path, step: int) -> dict[Best, float]:
    """The score of a saved step by its metric; empty if it was not evaluated.

    Raises:
      UserError: if its file holds something else.
    """
    file = folder / "checkpoints" / str(step) / SCORE_FILE
    if not file.exists():
        return {}
    with contextlib.suppress(UserError):
        match read_json(file):
            case {"metric": str(metric), "highest": bool(highest), "value": value} if (
                isinstance(value, int | float) and math.isfinite(value)
            ):
                return {Best(metric, highest): float(value)}
    raise UserError(
        f"{file} is damaged; it holds the score of step {step}. Name a step by its "
        "number, or run the training command again, which has a copy of the score."
    )


def best_step(folder: epath.Path) -> int:
    """The saved step with the best score; the newest if none has a score.

    Raises:
      UserError: if a score cannot be read.
    """
    steps = saved_steps(folder)
    scores = {step: _unless_deleted(read_scores, folder, step) for step in steps}
    best = next((each for found in scores.values() for each in found), None)
    if best is None:
        return steps[-1]
    by_step = {step: found[best] for step, found in scores.items() if best in found}
    return best_first(by_step, best.highest)[0]


def best_first(scores: Mapping[int, float], highest: bool) -> list[int]:
    """Steps by score, best first; of equally good ones, the earliest first."""
    sign = -1 if highest else 1
    return sorted(scores, key=lambda step: (sign * scores[step], step))


def since_best(scores: Mapping[int, float], highest: bool) -> list[int]:
    """The evaluated steps in order, from the one with the best finite score on."""
    finite = {step: score for step, score in scores.items() if math.isfinite(score)}
    first = best_first(finite, highest)[0] if finite else 0
    return [step for step in sorted(scores) if step >= first]


# --- shapes ---------------------------------------------------------------------------


def abstract_state(state: Any, sharding: Any) -> Any:
    """Shapes and dtypes of a state, each placed by its sharding in a tree like it."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, sharding
    )


def state_bytes(state: Any) -> int:
    """The size of a state: arrays, or their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def first_difference(found: Any, wanted: Any) -> str | None:
    """The first array, by name, that does not have the shape wanted; None if all do.

    For example "h_0/ln_1/bias of shape None, not (768,)", where None stands for an
    array that is missing. Both are trees of arrays, or of anything with shapes.
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
