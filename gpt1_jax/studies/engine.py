"""Scores of saved steps, each kept in a file of its own, so that a job can resume.

A study scores runs, and perhaps baselines beside them, at one or several saved steps,
on one or several tasks (`score_steps`). A score is kept with the content digests of the
checkpoint and of the items: the same command resumes where it was stopped, and refuses
checkpoints or items that have changed since.
"""

import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from etils import epath

from gpt1_jax.config.checks import split_paths
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import (
    json_digest,
    sha256,
    write_json,
    write_json_lines,
    write_whole,
)
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.records import read_rows
from gpt1_jax.data.tables import format_table
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import UserError
from gpt1_jax.formats import KEPT_SCORE, RESULTS
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.parallel import devices
from gpt1_jax.report.plots import figure_path, save_figure
from gpt1_jax.report.studies import Study
from gpt1_jax.report.study_scores import BASELINE, RUN, long_table, shown
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock, signals
from gpt1_jax.runs.checkpoint_files import manifest_digest
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.outputs import check_figure, refuse_used
from gpt1_jax.runs.resume import begin_run
from gpt1_jax.runs.saved_steps import each_step, open_steps
from gpt1_jax.runs.scoring_model import scoring_model


class Scorable(Protocol):
    """The items of a task, as a model reads them."""

    @property
    def all_windows(self) -> Sequence[ReadingWindow]: ...

    def content_digest(self) -> str: ...


Items = TypeVar("Items", bound=Scorable)
# Keys of a kept score: the checksum of all else in it, and those of its predictions.
_CHECKSUM, _PREDICTIONS = "sha256", "predictions"


class ScoredRun(NamedTuple, Generic[Items]):
    """A run, the steps at which it is scored, and the tasks that it is scored on."""

    name: str  # names its folders: "run", "baseline", or "run_2" of several
    init_from: str  # the run folder, as the configuration has it
    opened: TrainedRun  # at the first of the steps
    steps: Sequence[int]
    tasks: Mapping[str, Items]  # by name, their items as the run reads them
    revisions: Mapping[int, str] = {}  # the names of steps, if they have names


# Opens the runs that a configuration names, and reads their tasks.
Load = Callable[[Any], Sequence[ScoredRun[Items]]]
# The tasks as a run reads them, by name; from the configuration, the run and the runs
# before it, whose tasks alone are loaded.
LoadTasks = Callable[[Any, TrainedRun, Sequence[ScoredRun[Items]]], Mapping[str, Items]]


def score_steps(
    study: Study, config: Any, workdir: str, load: Load[Items]
) -> "KeptScores[Items]":
    """Scores runs at their steps, and writes results.json, results.md and the figure.

    Each score is kept; the same command goes on from there.

    Args:
      study: what is scored, and how scores are shown.
      config: the job's configuration.
      workdir: the folder to make, or to go on in.
      load: opens the runs that the configuration names, and reads the tasks;
        `runs_and_baselines` makes it for runs beside a baseline.

    Returns:
      All scores.

    Raises:
      FileExistsError: if the folder holds something else.
      UserError: if it holds scores of another configuration, of other checkpoints or of
        other items; if a batch does not fit into memory.
      Stopped: after a signal, once the scores at hand are saved.
    """
    folder = run_folder.locate_run(workdir)
    if (folder / run_folder.CONFIG_FILE).exists():
        config = begin_run(folder, config)
    else:
        refuse_used(folder, run_folder.NAMES)
    if study.figure:
        check_figure(config.figure)
    runs = load(config)
    devices.configure("default", compilation_cache(config.compilation_cache_dir))

    def make_scorer(run: TrainedRun) -> Scorer:
        model = scoring_model(run.model_in(config.dtype))
        return Scorer(model, run.tokenizer.vocab_size, config.batch_tokens)

    for run in runs:
        scorer = make_scorer(run.opened)
        for items in run.tasks.values():
            scorer.check_memory(items.all_windows)
    kept = KeptScores(folder, runs, study)
    with lock.owned(folder):
        config = begin_run(folder, config)
        run_folder.write_config(folder, config)
        with signals.catch() as stop, stop.deferred():
            if not kept.score_missing(config, make_scorer, stop.received):
                raise signals.Stopped(
                    f"stopped by a signal; {kept.num_kept} of {kept.total} scores are "
                    "saved."
                )
        _write_results(study, config, folder, kept.of_runs())
    return kept


def _write_results(
    study: Study, config: Any, folder: epath.Path, runs: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the figure, results.md and, last, results.json with everything."""
    scores = long_table(runs, study.rows)
    table = study.table(scores, config)
    said = f"Results: {folder / 'results.md'}"
    if draw := study.figure:
        path = figure_path(folder, config.job, config.figure)
        if save_figure(lambda: draw(scores), path, scores):
            said += f"\nPlot: {path}"
    write_whole(folder / "results.md", table)
    versions = {name: importlib.metadata.version(name) for name in study.packages}
    whole = {"config": config.to_dict(), "versions": versions, "runs": runs}
    write_json(folder / run_folder.RESULTS_FILE, {**RESULTS.stamp(), **whole})
    say(f"{table}\n{said}")


def runs_and_baselines(load_tasks: LoadTasks[Items]) -> Load[Items]:
    """A function that opens runs and any baselines, then reads the tasks of each."""

    def load(config: Any) -> list[ScoredRun[Items]]:
        opened = {}
        named = {RUN: config.init_from, BASELINE: config.baseline_init_from}
        for name, places in named.items():
            for number, place in enumerate(filter(None, split_paths(places)), 1):
                key = f"{name}_{number}" if number > 1 else name
                opened[key] = (place, *open_steps(place, config.step))
        runs: list[ScoredRun[Items]] = []
        for name, (place, first, steps) in opened.items():
            if isinstance(first.config, FinetuneConfig):
                say(
                    f"{first.folder} is fine-tuned; its language model answers, not "
                    "its head."
                )
            alike = (run.tasks for run in runs if read_alike(run.opened, first))
            # Data that is missing here is missing for the other runs, too: say so once.
            tasks = next(alike, None) or load_tasks(config, first, runs)
            runs.append(ScoredRun(name, place, first, steps, tasks))
        return runs

    return load


def read_alike(one: TrainedRun, other: TrainedRun) -> bool:
    """Whether texts become the same tokens for two runs."""
    return (
        one.tokenizer.digest == other.tokenizer.digest
        and one.model.max_seq_len == other.model.max_seq_len
    )


class _KeptScore(NamedTuple):
    """A score: where it and the predictions behind it are kept, and what it is of."""

    file: epath.Path
    predictions: epath.Path
    digests: Mapping[str, str]  # of the contents of "checkpoint" and "examples"

    def is_kept(self) -> bool:
        """Whether it is there and intact; a score of something else is refused."""
        if not (self.file.exists() and self.digests["checkpoint"]):
            return False
        try:
            saved = self.read()
        except UserError as damage:
            say(f"WARNING: {damage}")
            return False
        for key, digest in self.digests.items():
            if saved.get(key) != digest:
                what = {"checkpoint": "checkpoint", "examples": "set of examples"}[key]
                raise UserError(
                    f"{self.file} holds scores of another {what} than the one there "
                    "now; delete it to have that scored, or name another --workdir."
                )
        return True

    def read(self) -> dict[str, Any]:
        """Its record, unless that or the predictions are not as they were written."""
        path, saved = self.file, read_json(self.file)
        KEPT_SCORE.check(saved, path)
        intact = saved.pop(_CHECKSUM, None) == json_digest(saved) and "scores" in saved
        for name, digest in saved.get(_PREDICTIONS, {}).items() if intact else ():
            path = self.predictions.with_name(name)
            if not (path.exists() and sha256(path) == digest):
                intact = False
                break
        if not intact:
            raise UserError(
                f"{path} is missing, changed or damaged; the same command scores that "
                "again."
            )
        return saved

    def write(
        self, scores: Mapping[str, Any], predictions: Sequence[Mapping[str, Any]]
    ) -> None:
        """Writes scores last: where they are, nothing else of the task is missing."""
        lock.check_owned()
        file = self.predictions
        if file.suffix == ".jsonl":
            write_json_lines(file, predictions)
        else:
            write_whole(file, format_table(predictions, file.suffix))
        record = {
            **KEPT_SCORE.stamp(),
            **self.digests,
            "scores": scores,
            _PREDICTIONS: {file.name: sha256(file)},
        }
        record = json.loads(json.dumps(record))  # as it will be read: keys are texts
        write_json(self.file, {**record, _CHECKSUM: json_digest(record)})


class KeptScores(Generic[Items]):
    """The scores of runs at some steps on some tasks.

    Args:
      folder: the job's folder: scores/RUN/STEP/TASK.json, predictions/.../TASK.jsonl.
      runs: the runs.
      study: how they are scored.

    Raises:
      UserError: if a score is of another checkpoint, or of other items, than those
        there now.
    """

    def __init__(
        self, folder: epath.Path, runs: Sequence[ScoredRun[Items]], study: Study
    ):
        self.folder, self.runs = folder, runs
        self._study = study
        self._scores: dict[tuple[str, int, str], _KeptScore] = {}
        # As they were when the steps were found: the training may delete checkpoints.
        checkpoints = {
            (run.name, step): _checkpoint_digest(run.opened, step)
            for run in runs
            for step in run.steps
        }
        for run in runs:
            for task, items in run.tasks.items():
                examples = items.content_digest()
                for step in run.steps:
                    name = f"{run.name}/{step}/{task}"
                    checkpoint = checkpoints[run.name, step]
                    self._scores[run.name, step, task] = _KeptScore(
                        folder / run_folder.SCORES_FOLDER / f"{name}.json",
                        folder / _PREDICTIONS / f"{name}{study.suffix}",
                        {"checkpoint": checkpoint, "examples": examples},
                    )
        self._missing = {k for k, score in self._scores.items() if not score.is_kept()}

    @property
    def total(self) -> int:
        """How many scores there will be."""
        return len(self._scores)

    @property
    def num_kept(self) -> int:
        """How many of the scores exist already."""
        return self.total - len(self._missing)

    def steps(self, run: ScoredRun) -> list[int]:
        """The steps of a run that are scored: not those deleted meanwhile."""
        left = {(name, step) for name, step, _ in self._scores}
        return [step for step in run.steps if (run.name, step) in left]

    def score_missing(
        self,
        config: Any,
        make_scorer: Callable[[TrainedRun], Scorer],
        stopped: Callable[[], bool],
    ) -> bool:
        """Scores what is missing; each score is kept before the next begins.

        Args:
          config: the job's configuration.
          make_scorer: makes the scorer of a run.
          stopped: whether to stop before the next score.

        Returns:
          Whether all is scored: False if `stopped()` became true.
        """
        if self.num_kept:
            at_hand = f"{self.num_kept} of {self.total} scores are at hand"
            done = "" if self._missing else "Nothing to do: "
            say(f"{done}{at_hand}, in {self.folder}.")
        with Bar(self._study.title, self.total, "score", initial=self.num_kept) as bar:
            for run in self.runs:
                scorer = make_scorer(run.opened)
                steps = [step for step in run.steps if self._missing_tasks(run, step)]
                deleted = set(steps)
                for trained in each_step(run.opened, steps):
                    deleted.remove(trained.step)
                    params = jax.tree.map(jnp.asarray, trained.language_model)
                    for task in self._missing_tasks(run, trained.step):
                        if stopped():
                            return False
                        scores, predictions = self._study.score(
                            config, run.tasks[task], scorer, params
                        )
                        key = run.name, trained.step, task
                        self._scores[key].write(scores, predictions)
                        self._missing.remove(key)
                        self._say(run, trained.step, task, scores)
                        bar.update()
                for step in deleted:  # before all of its tasks were scored
                    for task in run.tasks:
                        del self._scores[run.name, step, task]
                        self._missing.discard((run.name, step, task))
        return True

    def _say(
        self, run: ScoredRun, step: int, task: str, scores: Mapping[str, Any]
    ) -> None:
        """Shows the first of a task's scores in a line."""
        first = next(iter(self._study.rows(task, scores)))
        of = f"{run.name:<8}  " if len(self.runs) > 1 else ""
        score = shown(first["score"], first["error"], 2)
        say(f"{of}step {step:>7,}  {task:<26} {score}")

    def of_runs(self) -> list[dict[str, Any]]:
        """All scores, as `report.study_scores.long_table` takes them."""
        return [
            {
                "name": run.name,
                "init_from": run.init_from,
                "kind": run.opened.model.kind,
                "checkpoints": self.of_run(run),
            }
            for run in self.runs
        ]

    def of_run(self, run: ScoredRun) -> list[dict[str, Any]]:
        """All scores of a run: [{"step": .., "tasks": {task: scores}}, ..]."""
        return [
            {
                **({"revision": run.revisions[step]} if run.revisions else {}),
                "step": step,
                "tasks": {
                    task: self._scores[run.name, step, task].read()["scores"]
                    for task in run.tasks
                },
            }
            for step in self.steps(run)
        ]

    def predictions(self, run: ScoredRun, step: int, task: str) -> list[dict[str, Any]]:
        """The predictions behind a score."""
        file = self._scores[run.name, step, task].predictions
        return [cells for _, cells in read_rows(file)]

    def _missing_tasks(self, run: ScoredRun, step: int) -> list[str]:
        return [t for t in run.tasks if (run.name, step, t) in self._missing]


def _checkpoint_digest(opened: TrainedRun, step: int) -> str:
    """The content digest of a checkpoint, which may be deleted once it is open."""
    if step == opened.step and opened.digest:
        return opened.digest
    return manifest_digest(opened.folder / "checkpoints" / str(step))
