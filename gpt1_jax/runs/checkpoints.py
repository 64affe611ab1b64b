"""Saves, restores and deletes the checkpoints of a run; only this module uses orbax.

A checkpoint is a folder `checkpoints/STEP/` with the train state and the files that
`runs/checkpoint_files.py` describes. `_delete_old` decides which are deleted: the
latest, the best and the milestones stay. Once a run of a suite has finished, the
fine-tuning job deletes all of its checkpoints.

How a run resumes, in order:
 1. If there is no checkpoint, it starts at step 0.
 2. It uses the newest checkpoint whose files match its manifest. One that does not
    match is moved to `damaged_checkpoints/` with a warning, and the one before it is
    tried. Nothing is deleted. The main process decides for all.
 3. If there were checkpoints and all of them are damaged, it refuses to start.
 4. If the checkpoint belongs to another configuration, tokenizer or text, it refuses to
    start, naming each difference, and changes nothing.
 5. Otherwise state and data position are those of the checkpoint, bit for bit.

A save is written in threads, under a temporary name, and renamed once it is whole,
manifest included. A deletion is a rename to a temporary name, then a removal. When
training begins again, orbax removes what a killed process left under such names.
"""

import contextlib
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from gpt1_jax.config.checks import BEST, NEWEST
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import CheckpointConfig
from gpt1_jax.data.files import FULL
from gpt1_jax.errors import TryAgain, UserError
from gpt1_jax.parallel.devices import check_platform
from gpt1_jax.parallel.processes import eventually, gather, is_main_process
from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
    SCORE_FILE,
    Best,
    Damaged,
    NoCheckpoint,
    best_first,
    best_step,
    check_files,
    delete_checkpoint,
    first_difference,
    is_saved,
    manifest_digest,
    read_metadata,
    read_scores,
    refuse_lost,
    saved_steps,
    set_aside,
    state_bytes,
    write_manifest,
    write_metadata,
    write_score,
)
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import check_room, megabytes, no_room
from gpt1_jax.runs.milestones import read_milestone
from gpt1_jax.runs.records import METRICS_FILE, by_step, read_metrics
from gpt1_jax.runs.resume import tree_digest

Read = TypeVar("Read")


def refuse_name(folder: epath.PathLike, *, to_save: bool) -> None:
    """Refuses a path that TensorStore or orbax does not take as it is.

    TensorStore reads and writes `a/b` where the path says `a\\b`. Orbax looks for the
    files that it has just saved with the whole path as a pattern: it misses them, or
    finds those of another run.

    Raises:
      UserError: naming the character.
    """
    taken = {"\\": "TensorStore takes it for /"}
    if to_save:
        taken |= dict.fromkeys("*?[", "orbax takes it for a pattern")
    for character in taken:
        if character in os.fspath(folder):
            raise UserError(
                f"{folder}: checkpoints cannot be {'saved' if to_save else 'read'} "
                f"below a folder whose name holds {character}, as {taken[character]}; "
                + ("name another --workdir=DIR." if to_save else "rename the folder.")
            )


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
      folder: the run folder, local or gs://.
      config: how many checkpoints to keep.
      best: the metric that ranks them; the best are kept beside the latest.

    Attributes:
      saved_at: when the last save began, by `time.monotonic`; at first, when the
        checkpoints were opened.
    """

    def __init__(
        self, folder: epath.Path, config: CheckpointConfig, best: Best = LOWEST_LOSS
    ):
        self._folder, self._config, self._best = folder, config, best
        self._directory = folder / "checkpoints"
        self.saved_at = time.monotonic()
        self._saving: int | None = None
        self._state_bytes = 0
        self._metadata: Mapping[str, Any] = {}  # of the save under way
        self._steps = set(saved_steps(folder))
        scores = {step: self._read_score(step) for step in self._steps}
        self._scores = {step: each for step, each in scores.items() if each is not None}
        self._for_good = {step for step in self._steps if _is_for_good(folder, step)}
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=None,  # `_delete_old` deletes, safe from a kill
                cleanup_tmp_directories=True,
                async_options=ocp.AsyncOptions(
                    post_finalization_callback=self._complete
                ),
            ),
        )

    def _read_score(self, step: int) -> float | None:
        """The score of a saved step; if its file is damaged, from the metrics."""
        try:
            return read_scores(self._folder, step).get(self._best)
        except UserError as damage:
            say(f"WARNING: {damage}")
        checkpoint, metric = self._directory / str(step), self._best.metric
        records = read_metrics(self._folder / METRICS_FILE)
        found = by_step(records, metric).get(step)
        if is_main_process():
            (checkpoint / SCORE_FILE).unlink()
            if found is not None:
                write_score(checkpoint, self._best, found)
        return found

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> None:
        """Starts saving a state; returns before the files are written.

        Args:
          step: the state's step; if it is the latest saved, nothing is done.
          state: the state to save; may be donated afterwards.
          metadata: JSON values that say what the state belongs to, and whether it is
            a milestone. The content digest of the parameters, as they are on disk, is
            added as `params_digest`.

        Raises:
          OSError: if the disk has no room for it, or had none for the save before.
        """
        self.wait()
        if step == max(self._steps, default=None):
            return
        self._state_bytes = state_bytes(state)
        check_room(self._directory, self._state_bytes, f"the checkpoint of step {step}")
        self._saving, self.saved_at = step, time.monotonic()
        self._scores.pop(step, None)
        if read_milestone(metadata):
            self._for_good.add(step)
        self._metadata = metadata
        state_args = ocp.args.StandardSave(_one_copy(state))
        self._manager.save(step, args=ocp.args.Composite(state=state_args), force=True)

    def add_score(self, step: int, score: float) -> None:
        """Records a score if its step is saved; deletes checkpoints no longer kept."""
        self.wait()
        if step not in self._steps or not math.isfinite(score):
            return
        self._scores[step] = score
        if is_main_process():
            write_score(self._directory / str(step), self._best, score)
        self._delete_old()

    def restore(
        self, target: Any, check: Callable[[Mapping[str, Any]], None]
    ) -> Any | None:
        """The state to resume from, by the rules at the top of this file.

        Args:
          target: shapes, dtypes and shardings of the state (`jax.ShapeDtypeStruct`).
          check: raises a ValueError if the metadata belongs to another run.

        Returns:
          The restored state, or None if the run starts afresh.

        Raises:
          ValueError: if all checkpoints are damaged, or the newest is not this run's.
          TryAgain: if a process does not see what the main one sees.
        """
        if is_main_process():
            self._set_damaged_aside()
        self._steps = set(json.loads(gather(json.dumps(sorted(self._steps)))[0]))
        if not eventually(lambda: self._steps <= set(saved_steps(self._folder))):
            raise TryAgain(
                f"This process sees the steps {saved_steps(self._folder)} in "
                f"{self._folder}, process 0 sees {sorted(self._steps)}. Run the same "
                "command again once all processes see the same files."
            )
        self._manager.reload()
        if not self._steps:
            refuse_lost(self._folder)
            return None
        step = max(self._steps)
        check(read_metadata(self._folder, step))
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
        with _explained_reading(self._directory / str(step)):
            return self._manager.restore(step, args=args).state

    def _set_damaged_aside(self) -> None:
        """Sets the newest checkpoints aside, down to one whose files are sound."""
        for step in sorted(self._steps, reverse=True):
            try:
                check_files(self._directory / str(step))
                return
            except Damaged as damage:
                set_aside(self._folder, step, str(damage))
                self._steps.remove(step)
                self._for_good.discard(step)

    def wait(self) -> None:
        """Returns once the save under way is whole on disk.

        Raises:
          OSError: if the disk had no room for it.
        """
        with self._explained():
            self._manager.wait_until_finished()
        if self._saving is not None:
            self._steps.add(self._saving)
            self._saving = None
            self._delete_old()

    def close(self) -> None:
        """Waits for the save under way and frees the manager."""
        with self._explained():
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns the error of a save into one line if the disk is full."""
        saving = self._saving
        try:
            yield
        except Exception as error:
            self._saving = None
            said = f"{error} {error.__cause__}"
            if not any(os.strerror(code) in said for code in FULL):
                raise
            what = f"the checkpoint of step {saving}"
            message = no_room(self._directory, what, megabytes(self._state_bytes))
            raise OSError(message) from error

    def _complete(self) -> None:
        """Called by orbax when all arrays are written, before the final rename."""
        if not is_main_process():
            return
        for folder in self._directory.iterdir():  # its name is still a temporary one
            if folder.name.partition(".")[0] == str(self._saving):
                digest = tree_digest(_restore_params(folder))
                write_metadata(folder, {**self._metadata, "params_digest": digest})
                write_manifest(folder)

    def _delete_old(self) -> None:
        """Deletes all checkpoints but the latest, the best and the milestones."""
        kept = set(sorted(self._steps)[-self._config.keep_latest :]) | self._for_good
        scores = {s: value for s, value in self._scores.items() if s in self._steps}
        kept.update(best_first(scores, self._best.highest)[: self._config.keep_best])
        for step in self._steps - kept:
            self._steps.remove(step)
            if is_main_process():
                delete_checkpoint(self._directory / str(step))


def _is_for_good(folder: epath.Path, step: int) -> bool:
    """Whether a saved step is a milestone, or too damaged to tell."""
    try:
        return read_milestone(read_metadata(folder, step)) is not None
    except ValueError:
        return True


@contextlib.contextmanager
def _explained_reading(folder: epath.Path) -> Iterator[None]:
    """Turns orbax's errors about files that it does not understand into one line."""
    check_platform()  # orbax needs a device: one that is missing is no damage
    hook = sys.unraisablehook
    sys.unraisablehook = functools.partial(_leave_out_late_reads, hook)
    try:
        yield
        sys.unraisablehook = hook
    except (OSError, UserError, MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(
            f"orbax {ocp.__version__} cannot read the checkpoint {folder} "
            f"({reason:.200}), though its files are as they were saved. Read it with "
            "the version of orbax that wrote it, or name another step or run."
        ) from error


def _leave_out_late_reads(hook: Callable[[Any], Any], unraisable: Any) -> None:
    """Shows what a thread could not raise, unless it comes from a failed read.

    Once a read has failed, orbax closes the event loop that the other reads report to,
    and each of them leaves a traceback at any moment until the program ends.
    """
    if "Event loop is closed" not in str(unraisable.exc_value):
        hook(unraisable)


def _one_copy(state: Any) -> Any:
    """One device's copy of each array that is the same on all devices of one process.

    Orbax would otherwise have every device write a part of the array, and compile a
    program for each part. For small arrays that takes longer than writing them.
    """

    def one(array: Any) -> Any:
        same = isinstance(array, jax.Array) and array.is_fully_replicated
        return array.addressable_data(0) if same else array

    return state if jax.process_count() > 1 else jax.tree.map(one, state)


# --- reading, by other jobs -----------------------------------------------------------


class SavedParams(NamedTuple):
    """The parameters of a saved step; its fields are some of `TrainedRun`'s."""

    step: int
    params: Any  # nested dict of float32 numpy arrays
    metadata: Mapping[str, Any]
    digest: str  # as `manifest_digest`


def read_params(folder: epath.Path, step: int | str = NEWEST) -> SavedParams:
    """Reads only the parameters, and changes nothing in the run folder.

    The run may still be training, and delete checkpoints.

    Args:
      folder: the run folder, local or gs://.
      step: the number of a saved step, `NEWEST`, or `BEST` by the run's own metric.

    Raises:
      NoCheckpoint: if there is no such step, or no longer.
      ValueError: if the step's files are not as they were saved.
    """

    def read(checkpoint: epath.Path) -> SavedParams:
        number, digest = int(checkpoint.name), manifest_digest(checkpoint)
        params = _restore_params(checkpoint)
        return SavedParams(number, params, read_metadata(folder, number), digest)

    return _read_sound(folder, step, read)


def read_state(folder: epath.Path, step: int | str, target: Any) -> Any:
    """Reads a whole state, and changes nothing in the run folder.

    Args:
      folder, step: as for `read_params`.
      target: shapes and dtypes of the state (`jax.ShapeDtypeStruct`).

    Returns:
      The state as numpy arrays, in the types of `target`.

    Raises:
      As `read_params`, and a ValueError if the step holds another state.
    """

    def read(checkpoint: epath.Path) -> Any:
        saved = ocp.PyTreeCheckpointHandler().metadata(checkpoint / "state").tree
        if wrong := first_difference(saved, target):
            raise UserError(f"{checkpoint} does not hold the state asked for: {wrong}.")
        return _restore(checkpoint, target)

    return _read_sound(folder, step, read)


def _read_sound(
    folder: epath.Path, step: int | str, read: Callable[[epath.Path], Read]
) -> Read:
    """Reads a checkpoint, and checks that its files are as they were saved.

    If the newest or best is deleted meanwhile, the one that replaces it is read.
    """
    refuse_name(folder, to_save=False)
    checkpoint = folder / "checkpoints" / str(_find_step(folder, step))
    try:
        check_files(checkpoint)
        with _explained_reading(checkpoint):
            return read(checkpoint)
    except Exception as error:
        if not is_saved(checkpoint):  # a training is at work there
            return _read_sound(folder, step, read)
        if not isinstance(error, Damaged):
            raise
        others = [step for step in saved_steps(folder) if str(step) != checkpoint.name]
        raise UserError(
            f"The checkpoint {checkpoint} is damaged: {error}. Other steps there: "
            f"{others or 'none'}."
        ) from error


def _find_step(folder: epath.Path, step: int | str) -> int:
    """The number of a saved step."""
    steps = saved_steps(folder)
    if not steps:
        raise NoCheckpoint(
            f"{folder} holds no checkpoint; name the folder of a run that has saved "
            "one. A suite keeps those of its runs with "
            "--config.suite.keep_checkpoints=True."
        )
    if step == BEST:
        return best_step(folder)
    if step == NEWEST:
        return steps[-1]
    if int(step) not in steps:
        raise NoCheckpoint(
            f"{folder} has no checkpoint of step {step}; it has {steps}. (A training "
            "at work there keeps the newest, the best and its milestones.)"
        )
    return int(step)


def _restore_params(checkpoint: epath.Path) -> Any:
    """The parameters of a saved state, as numpy arrays."""
    names = {"params": _saved_names(checkpoint)["params"]}
    return _restore(checkpoint, names)["params"]


def _restore(checkpoint: epath.Path, target: Any) -> Any:
    """The part of a saved state that `target` names, as numpy arrays."""
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    state = ocp.args.PyTreeRestore(target, as_numpy, partial_restore=True)
    return ocp.PyTreeCheckpointHandler().restore(checkpoint / "state", args=state)


def _saved_names(folder: epath.Path) -> Any:
    """A saved state, with 0 for each array: orbax would open all, to tell its shape."""
    tree: dict[str, Any] = {}
    for saved in read_json(folder / "state" / "_METADATA")["tree_metadata"].values():
        place, (*above, name) = tree, (key["key"] for key in saved["key_metadata"])
        for key in above:
            place = place.setdefault(key, {})
        place[name] = 0
    return tree
