"""Scores of tasks that a model was not trained on (sec. 5; Figure 2, right)."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpt1_jax.finetuning.prediction_files import prediction_rows
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.studies import Study
from gpt1_jax.report.study_scores import draw_scores, scores_table
from gpt1_jax.studies.answers import Answers
from gpt1_jax.studies.zero_shot.config import ZeroShotConfig
from gpt1_jax.studies.zero_shot.tasks import BEST_BEFORE, CHANCE, ZERO_SHOT
from gpt1_jax.tasks.metrics import auc, best_threshold, score_predictions
from gpt1_jax.tasks.uncertainty import bootstrap_error, standard_error

_NOTE = (
    "All values are x 100. Each score has its standard error: binomial for an "
    "accuracy, bootstrapped for others, and without the uncertainty of a threshold "
    "chosen on other examples. The relative score of Figure 2 (right) is (score - "
    "chance) / (best before - chance), where the best before is the best score "
    "published before GPT-1, on other splits for some tasks and with training on the "
    "task."
)
_LABEL = "relative score ± standard error\n(0: chance, 1: best published before)"


def score_answers(
    answers: Answers, score: Scorer, params: Params, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Answers the N examples of a task and scores the answers.

    The seed is that of the resamples from which standard errors are estimated.

    Returns:
      predictions: [N] label numbers.
      log_probs: [N, A] of the answers, nats: means or sums as the task compares them.
      scores: what `gpt1_jax.tasks.metrics.score_predictions` returns, with
        "standard_error" of the task's first metric, "split", "num_cut" (the examples
        that were cut) and, if examples may differ in the number of their choices,
        "chance", the accuracy of a random choice. With a threshold there are also
        "threshold", in nats, "auc" and "auc_standard_error".
    """
    train = answers.threshold_on
    log_probs = [each.log_probs for each in score(params, answers.all_windows)]
    count = len(log_probs) - len(answers.windows)
    values, labels = answers.compare(log_probs[count:]), answers.labels
    more: dict[str, Any] = {}
    if train is None:
        predictions = values.argmax(axis=1)
    else:
        threshold = best_threshold(train.compare(log_probs[:count])[:, 0], train.labels)
        predictions = (values[:, 0] >= threshold).astype(np.int64)
        more["threshold"] = threshold
        more["auc"] = auc(values[:, 0], labels)
        more["auc_standard_error"] = bootstrap_error(auc, values[:, 0], labels, seed)
    task, num_answers = answers.task.task, answers.num_answers
    if task.inputs.fewer_choices:
        names = task.target.labels[: max(num_answers)]
        target = dataclasses.replace(task.target, labels=names)
        task = dataclasses.replace(task, target=target)
        more["chance"] = float(np.mean(1 / np.asarray(num_answers)))
    scores = {
        "split": answers.split,
        **score_predictions(task, answers.examples, predictions),
        "standard_error": standard_error(task.metrics[0], predictions, labels, seed),
        **more,
        "num_cut": answers.num_long,
    }
    return predictions, values, scores


def relative_score(task: str, scores: Mapping[str, Any]) -> dict[str, float]:
    """What `score_answers` found, relative to chance and to the best published before.

    Returns:
      Fractions: "chance" (that of these examples, if the scores have it),
      "best_before", "relative" and "relative_standard_error".
    """
    chance = scores.get("chance", CHANCE[task] / 100)
    best, metric = BEST_BEFORE[task] / 100, ZERO_SHOT[task].task.metrics[0]
    return {
        "chance": chance,
        "best_before": best,
        "relative": (scores[metric] - chance) / (best - chance),
        "relative_standard_error": scores["standard_error"] / (best - chance),
    }


def _score(
    config: ZeroShotConfig, answers: Answers, score: Scorer, params: Params
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of a task, relative ones too, and its predictions."""
    found = score_answers(answers, score, params, config.seed)
    predictions, log_probs, scores = found
    task, examples = answers.task.task, answers.examples
    rows = prediction_rows(task, examples, predictions, log_probs=log_probs)
    return {**scores, **relative_score(task.name, scores)}, rows


def _rows(name: str, scores: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for the metric of Figure 2 (right), and one for the AUC if it is known."""
    task, relative = ZERO_SHOT[name].task, relative_score(name, scores)
    metric = task.metrics[0]
    row = {
        "task": task.title,
        "metric": metric,
        "split": scores["split"],
        "n": scores["n"],
        "chance": 100 * relative["chance"],
        "best before": f"{100 * relative['best_before']:.1f}",
    }
    yield {
        **row,
        "score": 100 * scores[metric],
        "error": 100 * scores["standard_error"],
        "relative": relative["relative"],
        "relative_error": relative["relative_standard_error"],
    }
    if "auc" in scores:
        yield {
            **{**row, "metric": "auc", "chance": 50.0, "best before": "-"},
            "score": 100 * scores["auc"],
            "error": 100 * scores["auc_standard_error"],
            "relative": math.nan,
            "relative_error": math.nan,
        }


def _relative(scores: Any, factor: float) -> Any:
    """The relative scores, in place of the scores."""
    has = scores.dropna(subset="relative")
    error = factor * has["relative_error"]
    return has.assign(score=factor * has["relative"], error=error)


def _table(scores: Any, _: ZeroShotConfig) -> str:
    labels = ["task", "metric", "split", "best before", "n", "chance"]
    return (
        f"{scores_table(scores, labels)}\n\nRelative to chance and to the best before:"
        f"\n\n{scores_table(_relative(scores, 100), ['task'])}\n\n{_NOTE}\n"
    )


def _figure(scores: Any) -> Any:
    return draw_scores(_relative(scores, 1), "task", _LABEL, [0])


STUDY = Study(
    "zero-shot",
    _score,
    _rows,
    _table,
    _figure,
    heading="Zero-shot over updates (Figure 2, right)",
    note="The paper's curves end, as others have read them off its figure, at relative "
    "scores of about 0.68 in sentiment (SST-2), 0.55 in Winograd schemas (DPR), 0.43 "
    "in acceptability (CoLA) and 0.25 in questions (RACE); the LSTM's lie lower and "
    "vary more.",
)
