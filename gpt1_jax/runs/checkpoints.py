"""Checkpoints of a run, and the rules by which it resumes.

This is the only file that imports orbax. A checkpoint is one folder per step under
`checkpoints/`: the train state, a metadata record (configuration, tokenizer, corpus,
data position) and `manifest.json`, the SHA-256 of every file. `measured.json` joins
them once the state has been evaluated. The latest steps stay, the best, and those whose
metadata says that they are kept for good.

Resume policy, in order:
 1. No checkpoint: the run starts at step 0.
 2. The newest checkpoint whose files match its manifest is used. One that does not
    match, or has none, is moved to `damaged_checkpoints/` with a warning, and the one
    before it is tried. Nothing is deleted.
 3. If there were checkpoints and all of them are damaged, the run refuses to start.
 4. If the checkpoint belongs to another configuration, tokenizer or corpus, the run
    refuses to start, naming each difference, and touches nothing.
 5. Otherwise state and data position are those of the checkpoint, bit for bit.

A save is written under a temporary name and renamed once it is whole, manifest
included, so a process killed in the middle of a save leaves earlier checkpoints intact.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from gpt1_jax.config import CheckpointConfig
from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import is_main_process
from gpt1_jax.runs import measured
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import check_room, megabytes, no_room
from gpt1_jax.runs.kept_steps import kept_at
from gpt1_jax.runs.manifest import find_damage, write_manifest
from gpt1_jax.runs.measured import MEASURED_FILE
from gpt1_jax.runs.saved_steps import (
    BEST,
    LOWEST_LOSS,
    NEWEST,
    Best,
    best_first,
    read_metadata,
    saved_steps,
)
from gpt1_jax.runs.shapes import difference, num_bytes

# Written after the manifest, by orbax or by `Checkpoints.measured`; so not in it.
_UNHASHED = {"_CHECKPOINT_METADATA", "commit_success.txt", MEASURED_FILE}


class Checkpoints:
    """Saves and restores the train state of one run folder.

    Args:
      workdir: the run folder, local or gs://.
      config: how many to keep.
      best: the metric that ranks them; the best are kept beside the latest.
    """

    def __init__(
        self, workdir: epath.Path, config: CheckpointConfig, best: Best = LOWEST_LOSS
    ):
        self.best = best
        self._directory = workdir / "checkpoints"
        self._damaged = workdir / "damaged_checkpoints"
        self._saving: int | None = None
        self._state_bytes = 0
        self._scores: dict[int, float] = {}  # of the steps on disk
        self._kept: set[int] = set()  # for good
        self._policy = _LatestAndBest(config, best, self._scores, self._kept)
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._write_manifest
            ),
        )
        self._manager = ocp.CheckpointManager(self._directory, options=self._options)
        self._scores.update(measured.read_scores(workdir, best.metric))
        self._kept.update(_kept_for_good(workdir))

    def latest_step(self) -> int | None:
        """The newest step saved or being saved."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> None:
        """Starts saving a state; returns before the files are written.

        Args:
          step: the state's step; if it is the latest saved, nothing is done.
          state: the state to save; may be donated afterwards.
          metadata: JSON values that say what the state belongs to, and whether it is
            kept for good (`kept_steps`).

        Raises:
          OSError: if the disk has no room for it, or had none for the save before.
        """
        self.wait()
        if step == self._manager.latest_step():
            return
        self._state_bytes = num_bytes(state)
        check_room(self._directory, self._state_bytes, f"the checkpoint of step {step}")
        self._saving = step
        self._scores.pop(step, None)
        if kept_at(metadata):
            self._kept.add(step)
        saved = self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_one_copy(state)),
                metadata=ocp.args.JsonSave(metadata),
            ),
        )
        if not saved:
            raise RuntimeError(
                f"The checkpoint of step {step} was not saved: {self._directory} "
                f"already holds step {self._manager.latest_step()}."
            )

    def measured(self, step: int, score: float) -> None:
        """Records the score of a saved step; deletes checkpoints no longer to be kept.

        Args:
          step: the step that was evaluated; ignored if it is not saved.
          score: its value of `best.metric`.
        """
        self.wait()
        if step not in self._manager.all_steps() or not math.isfinite(score):
            return
        self._scores[step] = score
        if is_main_process():
            measured.write(self._directory / str(step), self.best, score)
        steps = sorted(self._manager.all_steps())
        for each, kept in zip(steps, self._policy.keeps(steps), strict=True):
            if not kept:
                self._manager.delete(each)

    def restore(
        self, target: Any, check: Callable[[Mapping[str, Any]], None]
    ) -> Any | None:
        """The state to resume from, by the policy at the top of this file.

        Args:
          target: shapes, dtypes and shardings of the state (`jax.ShapeDtypeStruct`).
          check: raises a ValueError if the metadata is another run's.

        Returns:
          The restored state, or None if the run starts afresh.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            problem = find_damage(self._directory / str(step))
            if problem:
                self._set_aside(step, problem)
                continue
            items = self._manager.restore(
                step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())
            )
            check(items.metadata)
            return self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
            ).state
        if steps:
            raise UserError(
                f"All checkpoints of this run (steps {steps}) are damaged; they are in "
                f"{self._damaged}. Start afresh by running the same command again, or "
                "name another --workdir."
            )
        return None

    def wait(self) -> None:
        """Returns once the save under way is whole on disk.

        Raises:
          OSError: if the disk had no room for it.
        """
        with self._explained():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the save under way and frees the manager."""
        with self._explained():
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns the error of a save into one line if the disk is full."""
        try:
            yield
        except Exception as error:
            if "No space left" not in f"{error} {error.__cause__}":
                raise
            what = f"the checkpoint of step {self._saving}"
            message = no_room(self._directory, what, megabytes(self._state_bytes))
            raise OSError(message) from error

    def _write_manifest(self) -> None:
        """Called by orbax when all files are written, before the final rename."""
        if not is_main_process():
            return
        for folder in self._directory.glob(f"{self._saving}*"):
            write_manifest(folder, leave_out=_UNHASHED)

    def _set_aside(self, step: int, problem: str) -> None:
        number = 0
        while (target := self._damaged / f"{step}-{number}").exists():
            number += 1
        say(
            f"WARNING: the checkpoint of step {step} is damaged ({problem}); moved it "
            f"to {target} and trying the one before it."
        )
        if is_main_process():
            self._damaged.mkdir(parents=True, exist_ok=True)
            (self._directory / str(step)).rename(target)
        self._scores.pop(step, None)
        self._kept.discard(step)
        self._manager.reload()


def _one_copy(state: Any) -> Any:
    """The copy on one device of each array that all devices of one process hold.

    Of the whole, orbax has every device write a part, and each cut is a program to
    compile: for small arrays that takes longer than writing them.
    """

    def one(array: Any) -> Any:
        if isinstance(array, jax.Array) and array.is_fully_replicated:
            return array.addressable_data(0)
        return array

    return state if jax.process_count() > 1 else jax.tree.map(one, state)


@dataclasses.dataclass
class _LatestAndBest(checkpoint_managers.PreservationPolicy):
    """Which steps to keep beside those kept for good; of equals, the earliest.

    Orbax itself forgets the scores it was given when the run ends.
    """

    config: CheckpointConfig
    best: Best
    scores: Mapping[int, float]
    for_good: Collection[int]

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        del context
        return self.keeps([checkpoint.step for checkpoint in checkpoints])

    def keeps(self, steps: Sequence[int]) -> list[bool]:
        """Whether each of the steps is kept."""
        kept = sorted(steps)[-self.config.keep_latest :]
        known = {s: self.scores[s] for s in steps if s in self.scores}
        kept += best_first(known, self.best.highest)[: self.config.keep_best]
        return [step in kept or step in self.for_good for step in steps]


class SavedParams(NamedTuple):
    """What another run can start from."""

    step: int
    params: Any  # nested dict of float32 numpy arrays
    metadata: Mapping[str, Any]


def read_params(workdir: epath.Path, step: int = NEWEST) -> SavedParams:
    """Reads only the parameters, and changes nothing in the run folder.

    Args:
      workdir: a run folder, local or gs://.
      step: a saved step, `NEWEST`, or `BEST` by the run's own metric.

    Raises:
      FileNotFoundError: if there is no such step.
      ValueError: if the step's files are not as they were saved.
    """
    folder = _sound_checkpoint(workdir, step)
    saved = _saved_shapes(folder)["params"]
    target = {
        "params": jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype), saved)
    }
    restored = _restore(folder, target)
    return SavedParams(int(folder.name), restored.state["params"], restored.metadata)


def read_state(workdir: epath.Path, step: int, target: Any) -> Any:
    """Reads a whole state, and changes nothing in the run folder.

    Args:
      workdir: a run folder, local or gs://.
      step: as for `read_params`.
      target: shapes and dtypes of the state (`jax.ShapeDtypeStruct`).

    Returns:
      The state as numpy arrays, in the types of `target`.

    Raises:
      As `read_params`, and a ValueError if the step holds another state.
    """
    folder = _sound_checkpoint(workdir, step)
    if wrong := difference(_saved_shapes(folder), target):
        raise UserError(
            f"The checkpoint {folder} does not hold the state asked for: {wrong}."
        )
    return _restore(folder, target).state


def _sound_checkpoint(workdir: epath.Path, step: int) -> epath.Path:
    """The folder of a checkpoint whose files are as they were saved."""
    directory = workdir / "checkpoints"
    steps = saved_steps(workdir)
    if not steps:
        raise FileNotFoundError(
            f"{workdir} holds no checkpoint; name the folder of a run that has saved "
            "one. A suite keeps those of its runs with "
            "--config.suite.keep_checkpoints=True."
        )
    if step == BEST:
        step = measured.best_step(workdir)
    chosen = steps[-1] if step == NEWEST else step
    if chosen not in steps:
        raise FileNotFoundError(
            f"{workdir} has no checkpoint of step {chosen}; it has {steps}."
        )
    folder = directory / str(chosen)
    if problem := find_damage(folder):
        others = [number for number in steps if number != chosen]
        raise UserError(
            f"The checkpoint {folder} is damaged: {problem}. Other steps there: "
            f"{others or 'none'}."
        )
    return folder


def _restore(folder: epath.Path, target: Any) -> Any:
    """The part of a checkpoint that `target` names, as numpy, and its metadata."""
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    state = ocp.args.PyTreeRestore(target, as_numpy, partial_restore=True)
    items = ocp.args.Composite(state=state, metadata=ocp.args.JsonRestore())
    return _reader().restore(folder, args=items)


def _saved_shapes(folder: epath.Path) -> Any:
    """What is known of each array of a saved state, without reading the arrays."""
    return _reader().metadata(folder).item_metadata["state"].tree


def _reader() -> ocp.Checkpointer:
    return ocp.Checkpointer(
        ocp.CompositeCheckpointHandler(
            state=ocp.PyTreeCheckpointHandler(), metadata=ocp.JsonCheckpointHandler()
        )
    )


def _kept_for_good(workdir: epath.Path) -> Iterator[int]:
    """The saved steps that are kept for good, or are too damaged to tell."""
    for step in saved_steps(workdir):
        try:
            if kept_at(read_metadata(workdir, step)):
                yield step
        except ValueError:
            yield step
