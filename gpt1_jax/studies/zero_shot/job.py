"""The zero-shot job: what language models know of tasks they were not trained on."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from etils import epath

from gpt1_jax.errors import MissingData
from gpt1_jax.finetuning.prediction import write_predictions
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.interop.hub_files import fetch_tasks
from gpt1_jax.model.language_model import Params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.studies.answers import Answers, ZeroShotTask
from gpt1_jax.studies.engine import (
    Scored,
    ScoredRun,
    StepScores,
    run_and_baseline,
    score_steps,
)
from gpt1_jax.studies.zero_shot.config import ZeroShotConfig
from gpt1_jax.studies.zero_shot.figure import relative_scores
from gpt1_jax.studies.zero_shot.scores import score_answers
from gpt1_jax.studies.zero_shot.table import (
    describe_zero_shot,
    relative_score,
    zero_shot_scores,
    zero_shot_table,
)
from gpt1_jax.studies.zero_shot.tasks import load_answers, select_zero_shot_tasks


def run(config: ZeroShotConfig, workdir: str) -> None:
    """Scores steps of a run, and of a baseline, on tasks they were not trained on.

    Each score is kept; the same command goes on from there.

    Args:
      config: the runs, their steps and the tasks.
      workdir: the folder to make: results.json, a table, scores, predictions, a plot.

    Raises:
      FileExistsError: if the folder holds something else.
      FileNotFoundError, UserError: if there is no such run, step, task or data, a
        text does not fit into the model's context, or the folder holds scores of
        another configuration, of other checkpoints or of other examples.
      Stopped: after a signal, once the scores at hand are saved.
    """
    tasks = select_zero_shot_tasks(config.tasks)
    if config.data.source == "hub":
        fetched, _ = fetch_tasks([each.task for each in tasks])
        tasks = [
            dataclasses.replace(each, task=fetched[each.task.name])
            for each in tasks
            if each.task.name in fetched
        ]
    score_steps(
        config,
        workdir,
        title="zero-shot",
        load=run_and_baseline(functools.partial(_load_all, tasks)),
        score=functools.partial(_score, config),
        describe=describe_zero_shot,
        table=lambda results: zero_shot_table(zero_shot_scores(results)),
        figure=lambda results: relative_scores(zero_shot_scores(results)),
        packages=("jax", "numpy", "scikit-learn", "scipy"),
        results=_relative_to_chance,
    )


def _load_all(
    tasks: Sequence[ZeroShotTask],
    config: ZeroShotConfig,
    run: TrainedRun,
    before: Sequence[ScoredRun[Answers]],
) -> dict[str, Answers]:
    """The answers of each task by name; of several, those without data are left out."""
    loaded = {}
    for task in tasks:
        if before and task.task.name not in before[0].tasks:
            continue
        title, max_seq_len = task.task.title, run.model.max_seq_len
        try:
            answers = load_answers(task, config.data, run.tokenizer, max_seq_len)
        except MissingData as error:
            if len(tasks) == 1:
                raise
            say(f"Skipping {title}: {error}")
            continue
        if answers.num_long:
            say(
                f"{title}: {answers.num_long:,} of {len(answers.examples):,} examples "
                f"were cut to fit {max_seq_len} tokens."
            )
        loaded[task.task.name] = answers
    if not loaded:
        raise MissingData(
            "There is no data of any of the tasks; see the lines above, "
            "--config.data.source and --config.data.dir."
        )
    return loaded


def _score(
    config: ZeroShotConfig, answers: Answers, score: Scorer, params: Params
) -> Scored:
    """The scores of a task, and a function that writes its predictions."""
    predictions, log_probs, scores = score_answers(answers, score, params, config.seed)

    def write(path: epath.Path) -> None:
        examples = answers.examples
        write_predictions(
            path, answers.task.task, examples, predictions, log_probs=log_probs
        )

    return scores, write


def _relative_to_chance(scores: StepScores[Answers]) -> list[dict[str, Any]]:
    """All scores, each also relative to chance and to the best published before."""
    results = scores.of_runs()
    for run in results:
        for checkpoint in run["checkpoints"]:
            for name, values in checkpoint["tasks"].items():
                values |= relative_score(name, values)
    return results
