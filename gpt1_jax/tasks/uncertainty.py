"""Standard errors of scores, and thresholds on scores; formulas are the libraries'."""

import math
from collections.abc import Callable

import numpy as np
from etils import epy

from gpt1_jax.errors import UserError
from gpt1_jax.tasks.metrics import METRICS

with epy.lazy_imports():  # they take a second
    from scipy import stats
    from sklearn import metrics as sk

_RESAMPLES = 200  # enough for a standard error, though not for an interval
_BATCH = 100  # resamples that are held at a time


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve; 0.5 if all labels are the same."""
    if np.ptp(labels) == 0:
        return 0.5
    return float(sk.roc_auc_score(labels, scores))


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """The lowest score to call 1, for the best Matthews correlation with the labels.

    Args:
      scores: [N], any real numbers.
      labels: [N], 0 or 1.

    Returns:
      One of the scores; the highest of equally good ones.

    Raises:
      ValueError: if all labels are the same.
    """
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not positive or not negative:
        raise UserError(
            "All labels are the same, so there is no threshold between them."
        )
    wrong, right, thresholds = sk.roc_curve(labels, scores, drop_intermediate=False)
    called = right * positive + wrong * negative  # how many would be called 1
    spread = called * (len(labels) - called)
    # Matthews correlation from the two rates; 0 where all get the same answer.
    scale = np.sqrt(positive * negative / np.where(spread > 0.5, spread, np.inf))
    best = int(np.argmax((right - wrong) * scale))
    return float(thresholds[max(best, 1)])  # the first is infinite


def standard_error(
    metric: str, predictions: np.ndarray, labels: np.ndarray, seed: int
) -> float:
    """The standard error of a metric over examples.

    Args:
      metric: a name in `gpt1_jax.tasks.metrics`. The accuracy's is the binomial one,
        others are bootstrapped.
      predictions: [N].
      labels: [N].
      seed: of the resamples.
    """
    if metric == "accuracy":
        accuracy = METRICS[metric](predictions, labels)
        return math.sqrt(accuracy * (1 - accuracy) / len(labels))
    return bootstrap_error(METRICS[metric], predictions, labels, seed)


def bootstrap_error(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    values: np.ndarray,
    labels: np.ndarray,
    seed: int,
) -> float:
    """The standard deviation of a statistic over resamples; 0 for one example."""
    if len(labels) < 2:
        return 0.0
    result = stats.bootstrap(
        (values, labels),
        statistic,
        n_resamples=_RESAMPLES,
        batch=_BATCH,
        vectorized=False,
        paired=True,
        method="percentile",
        random_state=np.random.default_rng(seed),
    )
    return float(result.standard_error)
