"""How sure scores and predictions are: confidence intervals, calibration."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epy

from gpt1_jax.tasks.metrics import (
    METRICS,
    as_booleans,
    compared,
    label_counts,
    score_predictions,
    true_labels,
)
from gpt1_jax.tasks.task import Example, Task

with epy.lazy_imports():  # it takes a second, and only scoring needs it
    from scipy import stats

_RESAMPLES = 200  # enough for a standard error, though not for an interval
_INTERVAL_RESAMPLES = 1000
_BATCH = 100  # resamples held in memory at a time
_BINS = 10  # of equal width, from probability 0 to 1


def score_in_full(
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray,
    probabilities: np.ndarray,
) -> dict[str, Any]:
    """Scores predictions, with 95 % confidence intervals over examples.

    Args:
      task, examples, predictions, probabilities: as for `score_predictions`.

    Returns:
      As `score_predictions`, and "intervals" of the task's metrics, as `interval`
      returns them. Of labels, "labels" holds "n", "predicted", "precision", "recall",
      "f1" (None where it is not defined) and "intervals" by label; "reliability" and
      "calibration_error" are as the functions of these names return them.
    """
    scores = score_predictions(task, examples, predictions, probabilities)
    true = true_labels(task, examples)
    num_labels = len(task.target.labels)
    counts = _resampled_counts(predictions, true, num_labels) if num_labels else None
    scores["intervals"] = {}
    for name in task.metrics:
        values = compared(task, name, predictions, true, probabilities)
        scores["intervals"][name] = interval(name, *values, counts=counts)
    if num_labels:
        scores["labels"] = _scores_by_label(task, predictions, true)
        scores["calibration_error"] = calibration_error(true, probabilities)
        scores["reliability"] = reliability(true, probabilities)
    return scores


def _scores_by_label(
    task: Task, predictions: np.ndarray, labels: np.ndarray
) -> dict[str, Any]:
    """Precision, recall and F1 of each label, with their intervals."""
    counts = label_counts(predictions, labels, len(task.target.labels))
    found = {}
    for name, right, true, predicted in zip(task.target.labels, *counts, strict=True):
        either = true + predicted
        found[name] = {
            "n": int(true),
            "predicted": int(predicted),
            "precision": float(right / predicted) if predicted else None,
            "recall": float(right / true) if true else None,
            "f1": float(2 * right / either) if either else None,
            "intervals": {
                "precision": _wilson(right, predicted),
                "recall": _wilson(right, true),
                "f1": _f1_interval(right, either),
            },
        }
    return found


# --- confidence intervals and standard errors -----------------------------------


def interval(
    metric: str,
    predictions: np.ndarray,
    labels: np.ndarray,
    seed: int = 0,
    counts: np.ndarray | None = None,
) -> tuple[float, float] | None:
    """The 95 % confidence interval of a metric over examples.

    Args:
      metric: a name in `METRICS`. The accuracy has Wilson's interval for a binomial
        proportion, F1 the one that follows from it, and a mean of losses Student's; the
        others have percentiles of 1,000 bootstrap resamples.
      predictions, labels: of N examples, as the metric's formula takes them.
      seed: for the resamples.
      counts: what `_resampled_counts` gives for them, for metrics that depend on
        counts; they are faster with it.

    Returns:
      Its lower and upper end; None for a single example.
    """
    if len(labels) < 2:
        return None
    chosen = METRICS[metric]
    if metric == "accuracy":
        right = (predictions == labels).reshape(len(labels), -1).all(axis=1)
        return _wilson(right.sum(), len(labels))
    if metric == "f1":
        right, true, predicted = label_counts(predictions, labels, 2)
        return _f1_interval(right[1], true[1] + predicted[1]) or (0.0, 0.0)
    if chosen.of_counts and counts is not None:
        values = np.nan_to_num(chosen.of_counts(*counts))
        low, high = np.percentile(values, [2.5, 97.5])
    elif chosen.of_rows:
        rows = chosen.of_rows(predictions, labels)
        half = stats.t.ppf(0.975, len(rows) - 1) * stats.sem(rows)
        low, high = max(rows.mean() - half, chosen.lowest), rows.mean() + half
    else:
        resampled = _bootstrap(
            chosen.formula, predictions, labels, seed, _INTERVAL_RESAMPLES
        )
        low, high = resampled.confidence_interval
    return float(low), float(high)


def standard_error(
    metric: str, predictions: np.ndarray, labels: np.ndarray, seed: int
) -> float:
    """The standard error of a metric over examples.

    Args:
      metric: a name in `METRICS`. The accuracy has the standard error of a binomial
        proportion; the others are bootstrapped.
      predictions: [N].
      labels: [N].
      seed: for the resamples.
    """
    if metric == "accuracy":
        accuracy = METRICS[metric](predictions, labels)
        return math.sqrt(accuracy * (1 - accuracy) / len(labels))
    return bootstrap_error(METRICS[metric].formula, predictions, labels, seed)


def bootstrap_error(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    values: np.ndarray,
    labels: np.ndarray,
    seed: int,
) -> float:
    """The standard deviation of a statistic over resamples; 0 for one example."""
    if len(labels) < 2:
        return 0.0
    result = _bootstrap(statistic, values, labels, seed, _RESAMPLES)
    return float(result.standard_error)


def _bootstrap(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    values: np.ndarray,
    labels: np.ndarray,
    seed: int,
    resamples: int,
) -> Any:
    return stats.bootstrap(
        (values, labels),
        statistic,
        n_resamples=resamples,
        batch=_BATCH,
        vectorized=False,
        paired=True,
        method="percentile",
        random_state=np.random.default_rng(seed),
    )


def _wilson(right: int, total: int) -> tuple[float, float] | None:
    """Wilson's 95 % interval of a proportion; None without examples."""
    if not total:
        return None
    ends = stats.binomtest(int(right), int(total)).proportion_ci(method="wilson")
    return float(ends.low), float(ends.high)


def _f1_interval(right: int, either: int) -> tuple[float, float] | None:
    """The 95 % interval of an F1, 2 right / either; None without examples.

    It is 2 J / (1 + J) of Jaccard's index J, a proportion: of the examples that have
    the label or get it, those that have and get it.
    """
    ends = _wilson(right, either - right)
    if ends is None:
        return None
    low, high = ends
    return 2 * low / (1 + low), 2 * high / (1 + high)


def _resampled_counts(
    predictions: np.ndarray, labels: np.ndarray, num_labels: int
) -> np.ndarray:
    """`label_counts` of 1,000 bootstrap resamples, [3, 1000, K].

    Examples that are alike are drawn together, as multinomial numbers: with one label
    each, there are at most K x K kinds, however many examples.
    """
    true = as_booleans(labels, num_labels)
    predicted = as_booleans(predictions, num_labels)
    rows = np.concatenate([true & predicted, true, predicted], axis=1)
    _, first, numbers = np.unique(
        np.packbits(rows, axis=1), axis=0, return_index=True, return_counts=True
    )
    kinds, total = rows[first].astype(np.float64), len(labels)
    rng = np.random.default_rng(0)
    drawn = [
        rng.multinomial(total, numbers / total, _BATCH) @ kinds
        for _ in range(_INTERVAL_RESAMPLES // _BATCH)
    ]
    counts = np.concatenate(drawn).reshape(_INTERVAL_RESAMPLES, 3, num_labels)
    return np.moveaxis(counts, 1, 0)


# --- calibration ----------------------------------------------------------------


def reliability(
    labels: np.ndarray, probabilities: np.ndarray
) -> list[dict[str, float]]:
    """Accuracy by confidence: a reliability diagram.

    Args:
      labels: [N] label numbers, whose predictions are the most probable labels; or
        [N, K] booleans, where the probability of each label of each example counts.
      probabilities: [N, K].

    Returns:
      For each tenth of the probabilities that has any, "n", their mean "confidence",
      and "accuracy", how many of them were true.
    """
    if labels.ndim == 2:
        confidence, right = probabilities.ravel(), labels.ravel()
    else:
        confidence = probabilities.max(axis=1)
        right = probabilities.argmax(axis=1) == labels
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    numbers = np.bincount(bins, minlength=_BINS)
    sums = np.bincount(bins, confidence, _BINS), np.bincount(bins, right, _BINS)
    return [
        {"n": int(n), "confidence": float(sure / n), "accuracy": float(true / n)}
        for n, sure, true in zip(numbers, *sums, strict=True)
        if n
    ]


def calibration_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """The expected calibration error: how far confidence and accuracy are apart.

    It is the mean over examples of the difference in their tenth of the probabilities
    (Guo et al. 2017, eq. 3), from 0 to 1.

    Args:
      labels, probabilities: as for `reliability`.
    """
    bins = reliability(labels, probabilities)
    apart = [each["n"] * abs(each["confidence"] - each["accuracy"]) for each in bins]
    return sum(apart) / sum(each["n"] for each in bins)
