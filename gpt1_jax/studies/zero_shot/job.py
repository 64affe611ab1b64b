"""The zero-shot job: what language models know of tasks they were not trained on.

It scores the tasks of Figure 2 (right), and minimal pairs.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import MissingData
from gpt1_jax.interop.hub_files import fetch_tasks
from gpt1_jax.report.markdown import counted
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.studies.answers import Answers, AnswersTask
from gpt1_jax.studies.engine import ScoredRun, runs_and_baselines, score_steps
from gpt1_jax.studies.pairs import fetch_pairs, load_pairs, select_pairs
from gpt1_jax.studies.zero_shot import pairs, scores
from gpt1_jax.studies.zero_shot.config import MinimalPairsConfig, ZeroShotConfig
from gpt1_jax.studies.zero_shot.tasks import load_answers, select_zero_shot_tasks

STUDY = {"zero_shot": scores.STUDY, "minimal_pairs": pairs.STUDY}  # by job

_NAMED = 10  # equal pairs in a line

# Reads the answers to a task's examples: from the task, the section of data, the
# tokenizer and max_seq_len.
_Read = Callable[[AnswersTask, Any, Tokenizer, int], Answers]


def run(config: ZeroShotConfig | MinimalPairsConfig, workdir: str) -> None:
    """Scores steps of runs, and of baselines, on tasks they were not trained on.

    Each score is kept; the same command goes on from there.

    Args:
      config: the runs, their steps and the tasks.
      workdir: the folder to make: results.json, a table, scores, predictions, a plot.

    Raises:
      FileNotFoundError, UserError: if there is no such run, step, task or data, or a
        text does not fit into the model's context.
      FileExistsError, UserError, Stopped: as `score_steps`.
    """
    from_hub = config.data.source == "hub"
    read: _Read
    if isinstance(config, MinimalPairsConfig):
        tasks, read = select_pairs(config.tasks, config.data), load_pairs
        tasks = fetch_pairs(tasks) if from_hub else tasks
    else:
        tasks, read = select_zero_shot_tasks(config.tasks), load_answers
        tasks = _fetched(tasks) if from_hub else tasks
    load = runs_and_baselines(functools.partial(_load_all, tasks, read))
    score_steps(STUDY[config.job], config, workdir, load)


def _fetched(tasks: Sequence[AnswersTask]) -> list[AnswersTask]:
    """The tasks whose files the Hub has, with the files' local paths."""
    fetched, _ = fetch_tasks([each.task for each in tasks])
    return [
        dataclasses.replace(each, task=fetched[each.task.name])
        for each in tasks
        if each.task.name in fetched
    ]


def _load_all(
    tasks: Sequence[AnswersTask],
    read: _Read,
    config: ZeroShotConfig | MinimalPairsConfig,
    run: TrainedRun,
    before: Sequence[ScoredRun[Answers]],
) -> dict[str, Answers]:
    """The answers of each task by name.

    Of several zero-shot tasks, those without data are left out.
    """
    is_pairs = isinstance(config, MinimalPairsConfig)
    loaded = {}
    for task in tasks:
        if before and task.task.name not in before[0].tasks:
            continue
        try:
            answers = read(task, config.data, run.tokenizer, run.model.max_seq_len)
        except MissingData as error:
            if len(tasks) == 1 or is_pairs:
                raise
            say(f"Skipping {task.task.title}: {error}")
            continue
        loaded[task.task.name] = answers
        if answers.num_long:
            how = "cut" if task.cut else "read in windows that overlap by half"
            say(
                f"{task.task.title}: {counted(answers.num_long, 'example')} of "
                f"{len(answers.examples):,} longer than {run.model.max_seq_len} "
                f"tokens: {how}."
            )
    if not loaded:
        raise MissingData(
            "There is no data of any of the tasks; see the lines above, "
            "--config.data.source and --config.data.dir."
        )
    if is_pairs:
        _say_equal([name for answers in loaded.values() for name in answers.equal()])
    return loaded


def _say_equal(names: Sequence[str]) -> None:
    """Names pairs of which two sentences are the same tokens."""
    if names:
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        say(
            f"{counted(len(names), 'item')} with sentences of equal tokens, which tie: "
            f"{', '.join(names[:_NAMED])}{more}."
        )
