"""The files of checkpoints: saved steps, their checksums, scores and array shapes."""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
    sha256,
    write_json,
    write_whole,
)
from gpt1_jax.errors import TryAgain, UserError
from gpt1_jax.parallel.processes import eventually, gather, is_main_process
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import megabytes
from gpt1_jax.runs.resume import saved_digests

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
    size = megabytes(folder_bytes(path))
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


MANIFEST_FILE = "manifest.json"


def write_manifest(folder: epath.Path, leave_out: Collection[str]) -> None:
    """Writes the checksums of all files below a folder.

    Args:
      folder: the folder of a complete checkpoint.
      leave_out: names of files that may still change.
    """
    manifest = {
        name: sha256(folder / name)
        for name in _files(folder)
        if name.rpartition("/")[2] not in {MANIFEST_FILE, *leave_out}
    }
    write_whole(folder / MANIFEST_FILE, json.dumps(manifest, indent=1))


def find_damage(
    folder: epath.Path,
    chosen: Callable[[Sequence[str]], Collection[str]] = lambda names: names,
) -> str:
    """What is wrong with the files of a checkpoint; empty if nothing is.

    Args:
      folder: the folder of the checkpoint.
      chosen: picks the files to compare with their checksums from the sorted names of
        all that are listed; all must be there in any case.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return f"{MANIFEST_FILE} is missing"
    try:
        manifest = {str(n): d for n, d in dict(json.loads(path.read_text())).items()}
    except (OSError, ValueError, TypeError, RecursionError):
        return f"{MANIFEST_FILE} cannot be read"
    if not manifest:
        return f"{MANIFEST_FILE} lists no files"
    found = set(_files(folder))
    names = sorted(manifest)
    for name in names:
        if name not in found:
            return f"{name} is missing"
        if os.path.islink(folder / name):
            return f"{name} is a link"
    for name in chosen(names):
        if name not in manifest:
            return f"{MANIFEST_FILE} does not list {name}"
        try:
            digest = sha256(folder / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if digest != manifest[name]:
            return f"{name} differs from what was saved"
    return ""


def manifest_digest(folder: epath.Path) -> str:
    """Tells a checkpoint from any other; empty if it has no manifest."""
    path = folder / MANIFEST_FILE
    return sha256(path) if path.exists() else ""


def folder_bytes(folder: epath.Path) -> int:
    """The size of all files below a folder, or of the file itself."""
    if not folder.is_dir():
        return folder.stat().length
    return sum((folder / name).stat().length for name in _files(folder))


def _files(folder: epath.Path) -> list[str]:
    """All files below a folder, by their names relative to it, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in files_below(folder))


MEASURED_FILE = "measured.json"


def write_score(checkpoint: epath.Path, best: Best, score: float) -> None:
    """Notes the score of a saved step in its folder, with a checksum."""
    record = {**best._asdict(), "value": score}
    write_json(checkpoint / MEASURED_FILE, {**record, "sha256": json_digest(record)})


def best_step(workdir: epath.Path) -> int:
    """The saved step with the best score; the newest if none was measured.

    Raises:
      ValueError: if a score is not as it was written.
    """
    steps = saved_steps(workdir)
    scores: dict[Best, dict[int, float]] = {}
    for step in steps:
        for best, value in read_scores(workdir, step).items():
            scores.setdefault(best, {})[step] = value
    if not scores:
        return steps[-1]
    best, by_step = next(iter(scores.items()))
    return best_first(by_step, best.highest)[0]


def read_scores(workdir: epath.Path, step: int) -> dict[Best, float]:
    """What was measured of one checkpoint; empty if nothing was.

    Raises:
      ValueError: if its file is not as it was written.
    """
    file = workdir / "checkpoints" / str(step) / MEASURED_FILE
    if not file.exists():
        return _read_metrics(workdir, step)
    try:
        record = read_json(file)
        # Versions before 24 November 2026 wrote no checksum.
        intact = record.pop("sha256", None) in (None, json_digest(record))
        value = float(record["value"])
        if intact and math.isfinite(value) and isinstance(record["metric"], str):
            return {Best(record["metric"], bool(record["highest"])): value}
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    raise UserError(
        f"{file} is damaged, which says how good step {step} is. Name a step by its "
        "number, or run the training command again: it has the score elsewhere too."
    )


def _read_metrics(workdir: epath.Path, step: int) -> dict[Best, float]:
    """Versions before 0.2 kept scores in the metadata, without the direction."""
    try:
        return {
            Best(name, highest=name != LOWEST_LOSS.metric): float(value)
            for name, value in read_metadata(workdir, step)["metrics"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


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


def difference(found: Any, wanted: Any) -> str | None:
    """The first array, by name, that is not as wanted; None if all are.

    Args:
      found: arrays, or anything with their shapes.
      wanted: the same.

    Returns:
      For example "h_0/ln_1/bias of shape None, not (768,)"; None is an array that is
      not there.
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
