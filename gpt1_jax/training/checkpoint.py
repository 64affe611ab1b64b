"""Checkpoints of a run, and the rules by which it resumes.

This is the only file that imports orbax. A checkpoint is one folder a step under
`checkpoints/`: the train state, a metadata record (configuration, tokenizer, corpus,
data position) and `manifest.json`, the SHA-256 of every file.

Resume policy, in order:
 1. No checkpoint: the run starts at step 0.
 2. The newest checkpoint whose files match its manifest is used. One that does not
    match, or has none, is moved to `damaged_checkpoints/`, loudly, and the one before
    it is tried. Nothing is deleted.
 3. If there were checkpoints and all of them are damaged, the run refuses to start.
 4. If the checkpoint belongs to another configuration, tokenizer or corpus, the run
    refuses to start, naming each difference, and touches nothing.
 5. Otherwise state and data position are those of the checkpoint, bit for bit.

A save is written under a temporary name and renamed once it is whole, manifest
included, so a process killed in the middle of a save leaves the checkpoints before it.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from gpt1_jax.config import CheckpointConfig
from gpt1_jax.parallel import processes
from gpt1_jax.training.state import TrainState

_MANIFEST = "manifest.json"
# Not in the manifest: itself, and what orbax still writes after it.
_UNHASHED = {_MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt"}


class Best(NamedTuple):
    """The metric by which the best checkpoint is told."""

    metric: str
    highest: bool


LOWEST_LOSS = Best("valid_loss", highest=False)
NEWEST, BEST = -1, -2  # in place of a step


class Checkpoints:
    """Saves and restores the train state of one run folder.

    Args:
      workdir: the run folder, local or gs://.
      config: how many to keep.
      say: shows a message to the user.
      best: what the best ones have; they are kept too.
    """

    def __init__(
        self,
        workdir: epath.Path,
        config: CheckpointConfig,
        say: Callable[[str], None],
        best: Best = LOWEST_LOSS,
    ):
        self.best = best
        self._directory = workdir / "checkpoints"
        self._damaged = workdir / "damaged_checkpoints"
        self._say = say
        self._saving: int | None = None
        self._measured: dict[int, float] = {}  # of the steps on disk
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=_LatestAndBest(config, best, self._measured),
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._write_manifest
            ),
        )
        self._manager = self._open()
        self._measured.update(_read_measured(self._directory, best.metric))

    def _open(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(self._directory, options=self._options)

    def latest_step(self) -> int | None:
        """The newest step saved or being saved."""
        return self._manager.latest_step()

    def save(
        self,
        state: TrainState,
        metadata: Mapping[str, Any],
        measured: float | None = None,
    ) -> None:
        """Starts saving a state; returns before the files are written.

        Args:
          state: to save; may be donated afterwards.
          metadata: JSON values that say what the state belongs to.
          measured: the best metric at this step, if it was measured. A step that is
            saved already is saved again if it was not measured before.
        """
        self._manager.wait_until_finished()
        step = int(state.step)
        if step == self._manager.latest_step():
            if measured is None or step in self._measured:
                return
            self._manager.delete(step)
        self._saving = step
        metrics = {}
        self._measured.pop(step, None)
        if measured is not None and math.isfinite(measured):
            metrics = {self.best.metric: measured}
            self._measured[step] = measured
        saved = self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                metadata=ocp.args.JsonSave({**metadata, "metrics": metrics}),
            ),
        )
        if not saved:
            raise RuntimeError(
                f"The checkpoint of step {step} was not saved: {self._directory} "
                f"already holds step {self._manager.latest_step()}."
            )

    def restore(
        self, target: TrainState, check: Callable[[Mapping[str, Any]], None]
    ) -> TrainState | None:
        """The state to go on from, by the policy at the head of this file.

        Args:
          target: shapes, dtypes and shardings of the state (`jax.ShapeDtypeStruct`).
          check: raises a ValueError if the metadata is another run's.

        Returns:
          The restored state, or None if the run starts afresh.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            problem = _find_damage(self._directory / str(step))
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
            raise ValueError(
                f"All checkpoints of this run (steps {steps}) are damaged; they are in "
                f"{self._damaged}. Start afresh by running the same command again, or "
                "name another --workdir."
            )
        return None

    def wait(self) -> None:
        """Returns once the save under way is whole on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the save under way and frees the manager."""
        self._manager.close()

    def _write_manifest(self) -> None:
        """Called by orbax when all files are written, before the final rename."""
        if not processes.is_main_process():
            return
        for folder in self._directory.glob(f"{self._saving}*"):
            manifest = {
                str(file.relative_to(folder)): _sha256(file) for file in _files(folder)
            }
            (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))

    def _set_aside(self, step: int, problem: str) -> None:
        number = 0
        while (target := self._damaged / f"{step}-{number}").exists():
            number += 1
        self._say(
            f"WARNING: the checkpoint of step {step} is damaged ({problem}); moved it "
            f"to {target} and trying the one before it."
        )
        if processes.is_main_process():
            self._damaged.mkdir(parents=True, exist_ok=True)
            (self._directory / str(step)).rename(target)
        self._measured.pop(step, None)
        self._manager.reload()


def abstract_state(state: TrainState, sharding: jax.sharding.Sharding) -> TrainState:
    """Shapes and dtypes of a state, placed by `sharding`, as `restore` takes them."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state
    )


@dataclasses.dataclass
class _LatestAndBest(checkpoint_managers.PreservationPolicy):
    """Which steps to keep; of equally good ones the earliest.

    Orbax itself forgets what it was told was measured when the run ends.
    """

    config: CheckpointConfig
    best: Best
    measured: Mapping[int, float]

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        del context
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        kept = steps[-self.config.keep_latest :]
        known = {s: self.measured[s] for s in steps if s in self.measured}
        kept += _best_first(known, self.best.highest)[: self.config.keep_best]
        return [checkpoint.step in kept for checkpoint in checkpoints]


class SavedParams(NamedTuple):
    """What another run can start from."""

    step: int
    params: Any  # nested dict of float32 numpy arrays
    metadata: Mapping[str, Any]


def read_params(workdir: epath.Path, step: int = NEWEST) -> SavedParams:
    """Reads the parameters alone, and changes nothing in the run folder.

    Args:
      workdir: a run folder, local or gs://.
      step: a saved step, `NEWEST`, or `BEST` by the run's own metric.

    Raises:
      FileNotFoundError: if there is no such step.
      ValueError: if the files of the step are not those that were saved.
    """
    directory = workdir / "checkpoints"
    steps = _saved_steps(directory)
    if not steps:
        raise FileNotFoundError(
            f"{workdir} holds no checkpoint; name the folder of a run that has saved "
            "one. A suite keeps those of its runs with "
            "--config.suite.keep_checkpoints=True."
        )
    if step == BEST:
        step = _best_step(directory, steps)
    chosen = steps[-1] if step == NEWEST else step
    if chosen not in steps:
        raise FileNotFoundError(
            f"{workdir} has no checkpoint of step {chosen}; it has {steps}."
        )
    folder = directory / str(chosen)
    if problem := _find_damage(folder):
        others = [number for number in steps if number != chosen]
        raise ValueError(
            f"The checkpoint {folder} is damaged: {problem}. Other steps there: "
            f"{others or 'none'}."
        )
    reader = _reader()
    saved = reader.metadata(folder).item_metadata["state"].tree["params"]
    target = {
        "params": jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype), saved)
    }
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    state = ocp.args.PyTreeRestore(target, as_numpy, partial_restore=True)
    items = ocp.args.Composite(state=state, metadata=ocp.args.JsonRestore())
    restored = reader.restore(folder, args=items)
    return SavedParams(chosen, restored.state["params"], restored.metadata)


def _saved_steps(directory: epath.Path) -> list[int]:
    return sorted(
        int(path.name)
        for path in (directory.iterdir() if directory.exists() else ())
        if path.name.isdigit()
    )


def _reader() -> ocp.Checkpointer:
    return ocp.Checkpointer(
        ocp.CompositeCheckpointHandler(
            state=ocp.PyTreeCheckpointHandler(), metadata=ocp.JsonCheckpointHandler()
        )
    )


def _best_step(directory: epath.Path, steps: list[int]) -> int:
    """The step with the best measured metric; the newest where none was measured."""
    records = {step: _read_metadata(directory / str(step)) for step in steps}
    measured = {
        step: record["metrics"]
        for step, record in records.items()
        if record.get("metrics")
    }
    if not measured:
        return steps[-1]
    ((metric, _),) = next(iter(measured.values())).items()
    values = {step: metrics[metric] for step, metrics in measured.items()}
    return _best_first(values, highest=metric != LOWEST_LOSS.metric)[0]


def _best_first(measured: Mapping[int, float], highest: bool) -> list[int]:
    """Steps by their metric, of equally good ones the earliest first."""
    sign = -1 if highest else 1
    return sorted(measured, key=lambda step: (sign * measured[step], step))


def _read_measured(directory: epath.Path, metric: str) -> dict[int, float]:
    """A metric of all saved steps that have it; damaged ones are seen to later."""
    measured = {}
    for step in _saved_steps(directory):
        try:
            metrics = _read_metadata(directory / str(step)).get("metrics", {})
        except (OSError, ValueError, KeyError):
            continue
        if metric in metrics:
            measured[step] = metrics[metric]
    return measured


def _read_metadata(folder: epath.Path) -> Mapping[str, Any]:
    items = ocp.args.Composite(metadata=ocp.args.JsonRestore())
    return _reader().restore(folder, args=items).metadata


def _find_damage(folder: epath.Path) -> str:
    """What is wrong with the files of a checkpoint; empty if nothing is."""
    if not (folder / _MANIFEST).exists():
        return f"{_MANIFEST} is missing"
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
    except ValueError:
        return f"{_MANIFEST} cannot be read"
    for name, digest in manifest.items():
        if not (folder / name).exists():
            return f"{name} is missing"
        if _sha256(folder / name) != digest:
            return f"{name} differs from what was saved"
    return ""


def _files(folder: epath.Path) -> list[epath.Path]:
    return sorted(
        parent / name
        for parent, _, names in folder.walk()
        for name in names
        if name not in _UNHASHED
    )


def _sha256(path: epath.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 22):
            digest.update(data)
    return digest.hexdigest()
