"""The minimal-pairs job: how often a model finds the better sentence likelier."""

import functools
from collections.abc import Sequence

from etils import epath

from gpt1_jax.finetuning.prediction_files import write_predictions
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.markdown import counted
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.studies.answer_scores import score_pairs
from gpt1_jax.studies.answers import Answers, ZeroShotTask
from gpt1_jax.studies.engine import (
    Scored,
    ScoredRun,
    run_and_baseline,
    score_steps,
)
from gpt1_jax.studies.minimal_pairs.config import MinimalPairsConfig
from gpt1_jax.studies.minimal_pairs.figure import draw_pairs
from gpt1_jax.studies.minimal_pairs.table import (
    describe_pairs,
    pair_scores,
    pairs_tables,
)
from gpt1_jax.studies.pairs import (
    equal_pairs,
    fetch_pairs,
    load_pairs,
    select_pairs,
)

_NAMED = 10  # equal pairs in a line


def run(config: MinimalPairsConfig, workdir: str) -> None:
    """Scores steps of a run, and of a baseline, on minimal pairs.

    Each score is kept; the same command goes on from there.

    Args:
      config: the runs, their steps and the pairs.
      workdir: the folder to make: results.json, tables, scores, predictions, a plot.

    Raises:
      FileExistsError: if the folder holds something else.
      FileNotFoundError, UserError: if there is no such run, step, paradigm or data, a
        pair cannot be used, or the folder holds scores of another configuration, of
        other checkpoints or of other pairs.
      Stopped: after a signal, once the scores at hand are saved.
    """
    tasks = select_pairs(config.tasks, config.data)
    if config.data.source == "hub":
        tasks = fetch_pairs(tasks)
    score_steps(
        config,
        workdir,
        title="minimal pairs",
        load=run_and_baseline(functools.partial(_load_all, tasks)),
        score=_score,
        describe=describe_pairs,
        table=lambda results: pairs_tables(pair_scores(results)),
        figure=lambda results: draw_pairs(pair_scores(results)),
    )


def _load_all(
    tasks: Sequence[ZeroShotTask],
    config: MinimalPairsConfig,
    run: TrainedRun,
    before: Sequence[ScoredRun[Answers]],
) -> dict[str, Answers]:
    """The pairs of each task by name."""
    del before  # no task is ever left out
    max_seq_len = run.model.max_seq_len
    loaded = {
        task.task.name: load_pairs(task, config.data, run.tokenizer, max_seq_len)
        for task in tasks
    }
    if num_long := sum(answers.num_long for answers in loaded.values()):
        say(
            f"{counted(num_long, 'item')} longer than {max_seq_len} tokens: read in "
            "windows that overlap by half."
        )
    equal = [name for answers in loaded.values() for name in equal_pairs(answers)]
    if equal:
        more = f" and {len(equal) - _NAMED:,} more" if len(equal) > _NAMED else ""
        say(
            f"{counted(len(equal), 'item')} with sentences of equal tokens, which tie: "
            f"{', '.join(equal[:_NAMED])}{more}."
        )
    return loaded


def _score(answers: Answers, score: Scorer, params: Params) -> Scored:
    """The scores of a task, and a function that writes its predictions."""
    predictions, log_probs, scores = score_pairs(answers, score, params)

    def write(path: epath.Path) -> None:
        task, examples = answers.task.task, answers.examples
        write_predictions(
            path, task, examples, predictions, with_text=True, log_probs=log_probs
        )

    return {**scores, "equal": equal_pairs(answers)}, write
