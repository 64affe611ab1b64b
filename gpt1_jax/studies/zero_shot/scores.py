"""Scores of tasks that a model was not trained on (sec. 5; Figure 2, right)."""

import dataclasses
from typing import Any

import numpy as np

from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.studies.answers import Answers
from gpt1_jax.tasks.metrics import (
    auc,
    best_threshold,
    bootstrap_error,
    score_predictions,
    standard_error,
)


def score_answers(
    answers: Answers, score: Scorer, params: Params, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Answers the examples of a task and scores the answers.

    Args:
      answers: all answers to the examples.
      score: the model.
      params: its parameters.
      seed: seed of the resamples from which standard errors are estimated.

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
