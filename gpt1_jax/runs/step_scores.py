"""Scores of saved steps, each kept in a file of its own, so that a job can resume.

A job scores a run, and perhaps a baseline beside it, at one or several saved steps, on
one or several tasks. A score is kept with the content digests of the checkpoint and of
the examples: the same command goes on where it was stopped, and what has changed since
is refused.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import tqdm
from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import write_json
from gpt1_jax.data.progress import without_bars
from gpt1_jax.errors import UserError
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import manifest_digest
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun, each_step


class Digested(Protocol):
    """Examples with an identity."""

    def content_digest(self) -> str: ...


Examples = TypeVar("Examples", bound=Digested)


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


# From a task's examples to its scores, and to what writes its predictions to a file.
ScoreTask = Callable[[Examples], tuple[Mapping[str, Any], Callable[[epath.Path], None]]]


class StepScores(Generic[Examples]):
    """The scores of runs at some steps on some tasks.

    Args:
      folder: the job's folder: scores/RUN/STEP/TASK.json, predictions/.../TASK.jsonl.
      runs: the runs.
      title: what is scored, for the progress bar.

    Raises:
      UserError: if a score is of another checkpoint, or of other examples, than those
        there now.
    """

    def __init__(
        self, folder: epath.Path, runs: Sequence[ScoredRun[Examples]], title: str
    ):
        self._folder, self._runs, self._title = folder, runs, title
        self.total = sum(len(run.steps) * len(run.tasks) for run in runs)
        self._missing = {
            (run.name, step, task)
            for run in runs
            for step in run.steps
            for task in run.tasks
            if not self._is_kept(run, step, task)
        }

    @property
    def num_kept(self) -> int:
        """How many of the scores are at hand."""
        return self.total - len(self._missing)

    def score_missing(
        self,
        make_scorer: Callable[[TrainedRun], ScoreTask[Examples]],
        describe: Callable[[str, Mapping[str, Any]], str],
        stopped: Callable[[], bool],
    ) -> bool:
        """Scores what is missing; each score is kept before the next begins.

        Args:
          make_scorer: makes the function that scores a task by a run at one step.
          describe: a line on the scores of a task, by its name.
          stopped: whether to stop before the next score.

        Returns:
          Whether all is scored: False if `stopped()` became true.
        """
        if self.num_kept:
            at_hand = f"{self.num_kept} of {self.total} scores are at hand"
            say(f"{at_hand}, in {self._folder}.")
        with tqdm.tqdm(
            total=self.total,
            initial=self.num_kept,
            unit="score",
            desc=self._title,
            disable=without_bars(),
        ) as bar:
            for run in self._runs:
                steps = [step for step in run.steps if self._missing_tasks(run, step)]
                for trained in each_step(run.opened, steps):
                    score = make_scorer(trained)
                    for task in self._missing_tasks(run, trained.step):
                        if stopped():
                            return False
                        scores, write_predictions = score(run.tasks[task])
                        lock.check_owned()
                        write_predictions(
                            self._file("predictions", run, trained.step, task, "jsonl")
                        )
                        self._keep(run, trained.step, task, scores)
                        of = f"{run.name:<8}  " if len(self._runs) > 1 else ""
                        say(f"{of}step {trained.step:>7,}  {describe(task, scores)}")
                        bar.update()
        return True

    def of_run(self, run: ScoredRun) -> list[dict[str, Any]]:
        """All scores of a run: [{"step": .., "tasks": {task: scores}}, ..]."""
        return [
            {
                "step": step,
                "tasks": {
                    task: read_json(self._scores_file(run, step, task))["scores"]
                    for task in run.tasks
                },
            }
            for step in run.steps
        ]

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
        checkpoint = run.opened.folder / "checkpoints" / str(step)
        return {
            "checkpoint": manifest_digest(checkpoint),
            "examples": run.digests[task],
        }

    def _is_kept(self, run: ScoredRun, step: int, task: str) -> bool:
        path = self._scores_file(run, step, task)
        if not path.exists():
            return False
        saved = read_json(path)
        for key, digest in self._digests(run, step, task).items():
            if saved.get(key) != digest:
                what = {"checkpoint": "checkpoint", "examples": "set of examples"}[key]
                raise UserError(
                    f"{path} holds scores of another {what} than the one there now; "
                    "delete it to have that scored, or name another --workdir."
                )
        return True

    def _keep(
        self, run: ScoredRun, step: int, task: str, scores: Mapping[str, Any]
    ) -> None:
        """Writes scores last: where they are, nothing else of the task is missing."""
        digests = self._digests(run, step, task)
        write_json(self._scores_file(run, step, task), {**digests, "scores": scores})
        self._missing.remove((run.name, step, task))
