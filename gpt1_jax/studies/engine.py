"""Scores of saved steps, each kept in a file of its own, so that a job can resume.

A job scores a run, and perhaps a baseline beside it, at one or several saved steps, on
one or several tasks (`score_steps`). A score is kept with the content digests of the
checkpoint and of the examples: the same command resumes where it was stopped, and
refuses checkpoints or examples that have changed since.
"""

import dataclasses
import functools
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp
from etils import epath

from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import (
    format_json,
    json_digest,
    sha256,
    write_json,
    write_whole,
)
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.records import read_rows
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import UserError
from gpt1_jax.formats import KEPT_SCORE, RESULTS
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel import devices
from gpt1_jax.report.markdown import escape_strings
from gpt1_jax.report.plots import figure_path, save_figure
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock, signals
from gpt1_jax.runs.checkpoint_files import manifest_digest
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.outputs import check_figure, refuse_used
from gpt1_jax.runs.resume import begin_run
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.runs.steps import each_step, open_steps


class Scorable(Protocol):
    """The examples of a task, as a model reads them."""

    @property
    def all_windows(self) -> Sequence[ReadingWindow]: ...

    def content_digest(self) -> str: ...


Examples = TypeVar("Examples", bound=Scorable)
# Keys of a kept score: the checksum of all else in it, and those of its predictions.
_CHECKSUM, _PREDICTIONS = "sha256", "predictions"


@dataclasses.dataclass(frozen=True)
class ScoredRun(Generic[Examples]):
    """A run, the steps at which it is scored, and the tasks that it is scored on.

    Attributes:
      name: names its folders: "run" or "baseline".
      init_from: the run folder, as the configuration has it.
      opened: the run at the first of the steps.
      steps: the steps.
      tasks: by name, the examples of each task as the run reads them.
    """

    name: str
    init_from: str
    opened: TrainedRun
    steps: Sequence[int]
    tasks: Mapping[str, Examples]

    @functools.cached_property
    def digests(self) -> Mapping[str, str]:
        """By name, the content digest of each task's examples."""
        return {name: task.content_digest() for name, task in self.tasks.items()}


# Scores, ready for JSON, and a function that writes their predictions to a file.
Scored = tuple[Mapping[str, Any], Callable[[epath.Path], None]]
ScoreTask = Callable[[Examples, Scorer, Params], Scored]
Results = Sequence[Mapping[str, Any]]


def score_steps(
    config: Any,
    workdir: str,
    *,
    title: str,
    load: Callable[[Any], Sequence[ScoredRun[Examples]]],
    score: ScoreTask[Examples],
    describe: Callable[[str, Mapping[str, Any]], str],
    table: Callable[[Results], str],
    figure: Callable[[Results], Any] | None = None,
    packages: Sequence[str] = ("jax", "numpy"),
    results: "Callable[[StepScores[Examples]], Results] | None" = None,
    finish: "Callable[[epath.Path, Any, StepScores[Examples]], None] | None" = None,
) -> None:
    """Scores runs at their steps, and writes the results of all scores.

    Each score is kept; the same command goes on from there. A table, a figure and
    results.json follow once all is scored.

    Args:
      config: the job's configuration.
      workdir: the folder to make, or to go on in.
      title: a name for the scores, for the progress bar.
      load: opens the runs that the configuration names, and reads the tasks;
        `run_and_baseline` makes it for a run and a baseline.
      score: scores one task.
      describe: a line on the scores of a task, by its name.
      table: Markdown, from the results with all texts escaped, but not the keys of
        objects, such as the names of tasks.
      figure: a matplotlib figure, from the results as they are; None draws nothing.
      packages: packages whose versions results.json notes, beside ours.
      results: turns all scores into the results, ready for JSON, that are written and
        that table and figure show; by default `StepScores.of_runs`.
      finish: writes and prints everything else, once the results are written.

    Raises:
      FileExistsError: if the folder holds something else.
      UserError: if it holds scores of another configuration, of other checkpoints or of
        other examples; if a batch does not fit into memory.
      Stopped: after a signal, once the scores at hand are saved.
    """
    folder = run_folder.locate_run(workdir)
    if (folder / run_folder.CONFIG_FILE).exists():
        config = begin_run(folder, config)
    else:
        refuse_used(folder, run_folder.NAMES)
    if figure:
        check_figure(config.figure)
    runs = load(config)
    devices.configure("default", compilation_cache(config.compilation_cache_dir))

    def make_scorer(run: TrainedRun) -> Scorer:
        model = scoring_model(run.model_in(config.dtype))
        return Scorer(model, run.tokenizer.vocab_size, config.batch_tokens)

    for run in runs:
        scorer = make_scorer(run.opened)
        for examples in run.tasks.values():
            scorer.check_memory(examples.all_windows)
    scores = StepScores(folder, runs, title)
    with lock.owned(folder):
        config = begin_run(folder, config)
        run_folder.write_config(folder, config)
        with signals.catch() as stop, stop.deferred():
            if not scores.score_missing(make_scorer, score, describe, stop.received):
                raise signals.Stopped(
                    f"stopped by a signal; {scores.num_kept} of {scores.total} scores "
                    "are saved."
                )
        found = results(scores) if results else scores.of_runs()
        text = table(escape_strings(found))
        _write_results(folder, config, found, text, figure, packages)
        if finish:
            finish(folder, config, scores)


def _write_results(
    folder: epath.Path,
    config: Any,
    results: Results,
    table: str,
    figure: Callable[[Results], Any] | None,
    packages: Sequence[str],
) -> None:
    """Writes the figure, results.md and, last, results.json with everything."""
    said = f"Results: {folder / 'results.md'}"
    if figure:
        plot = figure_path(folder, config.job, config.figure)
        if save_figure(lambda: figure(results), plot):
            said += f"\nPlot: {plot}"
    write_whole(folder / "results.md", table)
    versions = {name: importlib.metadata.version(name) for name in packages}
    write_json(
        folder / run_folder.RESULTS_FILE,
        {
            **RESULTS.stamp(),
            "config": config.to_dict(),
            "versions": versions,
            "runs": results,
        },
    )
    say(table)
    say(said)


def write_lines(rows: Iterable[Mapping[str, Any]]) -> Callable[[epath.Path], None]:
    """A function that writes predictions to a file as JSON lines."""
    lines = (format_json(row, ensure_ascii=False) for row in rows)
    return lambda path: write_whole(path, "".join(f"{line}\n" for line in lines))


def run_and_baseline(
    load_tasks: Callable[
        [Any, TrainedRun, Sequence[ScoredRun[Examples]]], Mapping[str, Examples]
    ],
) -> Callable[[Any], Sequence[ScoredRun[Examples]]]:
    """A function that opens the run and any baseline, then reads the tasks.

    Args:
      load_tasks: the tasks as a run reads them, by name; from the configuration
        (`init_from`, `baseline_init_from` and `step`), the run, and for a baseline the
        run before it, whose tasks alone are to be loaded.
    """

    def load(config: Any) -> list[ScoredRun[Examples]]:
        named = {"run": config.init_from, "baseline": config.baseline_init_from}
        opened = {}
        for name, init_from in named.items():
            if init_from:
                opened[name] = first, _ = open_steps(init_from, config.step)
                if isinstance(first.config, FinetuneConfig):
                    say(
                        f"{first.folder} is fine-tuned; its language model answers, "
                        "not its head."
                    )
        runs: list[ScoredRun[Examples]] = []
        for name, (first, steps) in opened.items():
            if runs and read_alike(runs[0].opened, first):
                tasks = runs[0].tasks
            else:
                # Whatever is missing is missing for the baseline too, and said once.
                tasks = load_tasks(config, first, runs)
            runs.append(ScoredRun(name, named[name], first, steps, tasks))
        return runs

    return load


def read_alike(one: TrainedRun, other: TrainedRun) -> bool:
    """Whether texts become the same tokens for two runs."""
    return (
        one.tokenizer.digest == other.tokenizer.digest
        and one.model.max_seq_len == other.model.max_seq_len
    )


class StepScores(Generic[Examples]):
    """The scores of runs at some steps on some tasks.

    Args:
      folder: the job's folder: scores/RUN/STEP/TASK.json, predictions/.../TASK.jsonl.
      runs: the runs.
      title: a name for the scores, for the progress bar.

    Raises:
      UserError: if a score is of another checkpoint, or of other examples, than those
        there now.
    """

    def __init__(
        self, folder: epath.Path, runs: Sequence[ScoredRun[Examples]], title: str
    ):
        self.runs = runs
        self._folder, self._title = folder, title
        # As they were when the steps were found: the training may delete checkpoints.
        self._checkpoints = {
            (run.name, step): _checkpoint_digest(run.opened, step)
            for run in runs
            for step in run.steps
        }
        self._missing = {
            (run.name, step, task)
            for run in runs
            for step in run.steps
            for task in run.tasks
            if not self._is_kept(run, step, task)
        }

    @property
    def total(self) -> int:
        """How many scores there will be."""
        return sum(len(self.steps(run)) * len(run.tasks) for run in self.runs)

    @property
    def num_kept(self) -> int:
        """How many of the scores exist already."""
        return self.total - len(self._missing)

    def steps(self, run: ScoredRun) -> list[int]:
        """The steps of a run that are scored: not those deleted meanwhile."""
        return [step for step in run.steps if (run.name, step) in self._checkpoints]

    def score_missing(
        self,
        make_scorer: Callable[[TrainedRun], Scorer],
        score: ScoreTask[Examples],
        describe: Callable[[str, Mapping[str, Any]], str],
        stopped: Callable[[], bool],
    ) -> bool:
        """Scores what is missing; each score is kept before the next begins.

        Args:
          make_scorer: makes the scorer of a run.
          score: scores a task.
          describe: a line on the scores of a task, by its name.
          stopped: whether to stop before the next score.

        Returns:
          Whether all is scored: False if `stopped()` became true.
        """
        if self.num_kept:
            at_hand = f"{self.num_kept} of {self.total} scores are at hand"
            done = "" if self._missing else "Nothing to do: "
            say(f"{done}{at_hand}, in {self._folder}.")
        with Bar(self._title, self.total, "score", initial=self.num_kept) as bar:
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
                        scores, write_predictions = score(
                            run.tasks[task], scorer, params
                        )
                        lock.check_owned()
                        write_predictions(
                            self._file("predictions", run, trained.step, task, "jsonl")
                        )
                        self._keep(run, trained.step, task, scores)
                        of = f"{run.name:<8}  " if len(self.runs) > 1 else ""
                        say(f"{of}step {trained.step:>7,}  {describe(task, scores)}")
                        bar.update()
                for step in deleted:
                    self._leave_out(run, step)
        return True

    def _leave_out(self, run: ScoredRun, step: int) -> None:
        """Forgets a step that was deleted before all of its tasks were scored."""
        del self._checkpoints[run.name, step]
        self._missing -= {(run.name, step, task) for task in run.tasks}

    def of_runs(self) -> list[dict[str, Any]]:
        """All scores: for each run "init_from", "kind" and "checkpoints" (`of_run`)."""
        return [
            {
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
                "step": step,
                "tasks": {
                    task: self._read_kept(run, step, task)["scores"]
                    for task in run.tasks
                },
            }
            for step in self.steps(run)
        ]

    def predictions(self, run: ScoredRun, step: int, task: str) -> list[dict[str, Any]]:
        """The predictions behind a score, if they are written as JSON lines."""
        path = self._file("predictions", run, step, task, "jsonl")
        return [cells for _, cells in read_rows(path)]

    def _missing_tasks(self, run: ScoredRun, step: int) -> list[str]:
        return [t for t in run.tasks if (run.name, step, t) in self._missing]

    def _file(
        self, kind: str, run: ScoredRun, step: int, task: str, suffix: str
    ) -> epath.Path:
        return self._folder / kind / run.name / str(step) / f"{task}.{suffix}"

    def _scores_file(self, run: ScoredRun, step: int, task: str) -> epath.Path:
        return self._file(run_folder.SCORES_FOLDER, run, step, task, "json")

    def _digests(self, run: ScoredRun, step: int, task: str) -> dict[str, str]:
        """The content digests of the parameters and examples behind a score."""
        return {
            "checkpoint": self._checkpoints[run.name, step],
            "examples": run.digests[task],
        }

    def _is_kept(self, run: ScoredRun, step: int, task: str) -> bool:
        path = self._scores_file(run, step, task)
        if not (path.exists() and self._checkpoints[run.name, step]):
            return False
        try:
            saved = self._read_kept(run, step, task)
        except UserError as damage:
            say(f"WARNING: {damage}")
            return False
        for key, digest in self._digests(run, step, task).items():
            if saved.get(key) != digest:
                what = {"checkpoint": "checkpoint", "examples": "set of examples"}[key]
                raise UserError(
                    f"{path} holds scores of another {what} than the one there now; "
                    "delete it to have that scored, or name another --workdir."
                )
        return True

    def _read_kept(self, run: ScoredRun, step: int, task: str) -> dict[str, Any]:
        """The record of a score that was kept.

        Raises:
          UserError: if it is not as it was written.
        """
        path = self._scores_file(run, step, task)
        saved = read_json(path)
        KEPT_SCORE.check(saved, path)
        if saved.pop(_CHECKSUM, None) == json_digest(saved) and "scores" in saved:
            beside = self._file("predictions", run, step, task, "jsonl").parent
            digests = {
                beside / name: d for name, d in saved.get(_PREDICTIONS, {}).items()
            }
            path = next((p for p, d in digests.items() if not _is_intact(p, d)), None)
        if path is not None:
            raise UserError(
                f"{path} is not as it was written; the same command scores that again."
            )
        return saved

    def _keep(
        self, run: ScoredRun, step: int, task: str, scores: Mapping[str, Any]
    ) -> None:
        """Writes scores last: where they are, nothing else of the task is missing."""
        file = self._file("predictions", run, step, task, "jsonl")
        written = [each for each in file.parent.iterdir() if each.stem == file.stem]
        record = {
            **KEPT_SCORE.stamp(),
            **self._digests(run, step, task),
            "scores": scores,
            _PREDICTIONS: {each.name: sha256(each) for each in written},
        }
        record = json.loads(json.dumps(record))  # as it will be read: keys are texts
        digest = {_CHECKSUM: json_digest(record)}
        write_json(self._scores_file(run, step, task), {**record, **digest})
        self._missing.remove((run.name, step, task))


def _is_intact(path: epath.Path, digest: str) -> bool:
    return path.exists() and sha256(path) == digest


def _checkpoint_digest(opened: TrainedRun, step: int) -> str:
    """The content digest of a checkpoint, which may be deleted once it is open."""
    if step == opened.step and opened.digest:
        return opened.digest
    return manifest_digest(opened.folder / "checkpoints" / str(step))
