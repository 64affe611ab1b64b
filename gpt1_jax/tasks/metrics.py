"""The metrics of the paper's tables, and their standard errors.

All formulas are those of scikit-learn or SciPy.

Values are as the libraries give them (accuracy 0.86); the tables of
`gpt1_jax.report.tables` show the paper's metrics x 100, as the paper does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epy

from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import Example, Task

with epy.lazy_imports():  # they take a second, and only scoring needs them
    from scipy import stats
    from sklearn import metrics as sk

_RESAMPLES = 200  # enough for a standard error, though not for an interval
_BATCH = 100  # resamples held in memory at a time

Formula = Callable[[np.ndarray, np.ndarray], float]


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(sk.accuracy_score(labels, predictions))


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(sk.f1_score(labels, predictions, pos_label=1, zero_division=0))


def _correlation(function: Formula) -> Formula:
    """Makes a correlation 0 if predictions or labels are all the same.

    It is undefined then: SciPy warns and gives nan, scikit-learn gives 0. Choosing a
    checkpoint takes a number, and such predictions say nothing about the labels.
    """

    def correlation(predictions: np.ndarray, labels: np.ndarray) -> float:
        if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
            return 0.0
        return float(function(predictions, labels))

    return correlation


class Metric(NamedTuple):
    """A metric, called as `metric(predictions, labels)`, and how its values are read.

    Attributes:
      formula: of [N] predictions and [N] labels or scores; its value is finite.
      compares: "labels" by number, "two labels" of which 1 is the positive class, or
        "scores"; labels are numbers too, so they fit a metric of scores.
      lowest, highest: the values that it can have.
      highest_is_best: whether checkpoints and runs with higher values are better.
      in_points: whether tables and figures show it x 100, as the paper does.
    """

    formula: Formula
    compares: str = "scores"
    lowest: float = -math.inf
    highest: float = math.inf
    highest_is_best: bool = True
    in_points: bool = False

    def __call__(self, predictions: np.ndarray, labels: np.ndarray) -> float:
        """The value for predictions."""
        return self.formula(predictions, labels)

    def shown(self, value: float) -> float:
        """A value as tables and figures show it."""
        return 100 * value if self.in_points else value


def _in_points(formula: Formula, compares: str, lowest: float) -> Metric:
    """One of the paper's metrics, whose best value is 1."""
    return Metric(formula, compares, lowest, 1.0, in_points=True)


# To add a metric, add an entry here.
METRICS: Mapping[str, Metric] = {
    "accuracy": _in_points(_accuracy, "labels", 0.0),
    "f1": _in_points(_f1, "two labels", 0.0),
    "matthews": _in_points(
        _correlation(lambda p, y: sk.matthews_corrcoef(y, p)), "labels", -1.0
    ),
    "pearson": _in_points(
        _correlation(lambda p, y: stats.pearsonr(p, y).statistic), "scores", -1.0
    ),
    "spearman": _in_points(
        _correlation(lambda p, y: stats.spearmanr(p, y).statistic), "scores", -1.0
    ),
}


def fitting_metrics(task: Task) -> list[str]:
    """The names of the metrics that suit a task's labels or scores."""
    fitting = ["scores"]
    if task.target.labels:
        fitting.append("labels")
    if len(task.target.labels) == 2:
        fitting.append("two labels")
    return [name for name, metric in METRICS.items() if metric.compares in fitting]


def score_predictions(
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
    probabilities: np.ndarray | None = None,
) -> dict[str, Any]:
    """Scores predictions.

    Args:
      task: the task, which names the metrics.
      examples: the N examples, with their labels and subsets.
      predictions: [N] label numbers, or scores if the task has no labels; of several
        labels an example, [N, K] whether it has each.
      probabilities: [N, K] of the labels, for metrics that read them.

    Returns:
      `{"n": .., metric: .., ..}`, ready for JSON: first the task's own metrics in
      their order, then the accuracy if there are labels. If any subset has a name,
      "subsets" holds the same for each. If the task has labels, "confusion" counts the
      examples: a row for each true label, a column for each predicted one.

    Raises:
      UserError: if there are no examples, labels are missing, or predictions are not
        finite.
    """
    predicted = check_numbers("predictions", predictions, examples)
    if not examples:
        raise UserError(f"There are no examples of {task.title} to score.")
    labels = [example.label for example in examples]
    if missing := labels.count(None):
        raise UserError(
            f"{missing} of {len(labels)} examples of {task.title} have no label, as in "
            "test splits whose labels are withheld, so there is no score; write the "
            "predictions to a file instead."
        )
    # Scores in float64: in float32 SciPy warns of predictions that differ little.
    true = np.asarray(labels, np.int64 if task.target.labels else np.float64)
    scores = _scores(task, predicted, true)
    parts = np.asarray([example.subset for example in examples])
    names = [name for name in dict.fromkeys(parts.tolist()) if name]
    if names:
        scores["subsets"] = {
            name: _scores(task, predicted[parts == name], true[parts == name])
            for name in names
        }
    if task.target.labels:
        numbers = range(len(task.target.labels))
        matrix = sk.confusion_matrix(true, predicted, labels=list(numbers))
        scores["confusion"] = matrix.tolist()
    return scores


def _scores(task: Task, predicted: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    names = [*task.metrics, *(("accuracy",) if task.target.labels else ())]
    scores: dict[str, Any] = {"n": len(true)}
    for name in dict.fromkeys(names):
        scores[name] = METRICS[name](predicted, true)
    return scores


def check_numbers(
    name: str,
    values: np.ndarray | Sequence[float],
    examples: Sequence[Example],
    *columns: int,
) -> np.ndarray:
    """The numbers of N examples as an array, [N, *columns].

    Args:
      name: what they are, for messages, such as "predictions".
      values: the numbers.
      examples: the examples.
      *columns: the other sizes of the array.

    Raises:
      UserError: if a number is not finite.
      ValueError: if the shape is another.
    """
    values, shape = np.asarray(values), (len(examples), *columns)
    if values.shape != shape:
        raise ValueError(f"The {name} are of shape {values.shape}, not {shape}.")
    broken = np.argwhere(~np.isfinite(values))
    if broken.size:
        first = tuple(broken[0])
        where = examples[first[0]].where
        raise UserError(f"{where}: of the {name}, {values[first]} is not finite.")
    return values


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve; 0.5 if all labels are the same."""
    if np.ptp(labels) == 0:
        return 0.5
    return float(sk.roc_auc_score(labels, scores))


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """The threshold with the best Matthews correlation: scores from it on are called 1.

    Args:
      scores: [N], any real numbers.
      labels: [N], 0 or 1.

    Returns:
      One of the scores; if several are equally good, the highest.

    Raises:
      UserError: if all labels are the same.
    """
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not positive or not negative:
        raise UserError(
            "All labels are the same, so there is no threshold between them."
        )
    wrong, right, thresholds = sk.roc_curve(labels, scores, drop_intermediate=False)
    called = right * positive + wrong * negative  # the number of scores called 1
    spread = called * (len(labels) - called)
    # Matthews correlation from the two rates; 0 if all get the same answer.
    scale = np.sqrt(positive * negative / np.where(spread > 0.5, spread, np.inf))
    best = int(np.argmax((right - wrong) * scale))
    return float(thresholds[max(best, 1)])  # the first is infinite


def interval(
    metric: str, predictions: np.ndarray, labels: np.ndarray, seed: int = 0
) -> tuple[float, float] | None:
    """The 95 % confidence interval of a metric over examples.

    Args:
      metric: a name in `METRICS`. The accuracy has Wilson's interval for a binomial
        proportion; the others have percentiles of 1,000 bootstrap resamples.
      predictions: [N] label numbers or scores.
      labels: [N] true ones.
      seed: for the resamples.

    Returns:
      Its lower and upper end; None for a single example.
    """
    if len(labels) < 2:
        return None
    if metric == "accuracy":
        right = int((predictions == labels).sum())
        ends = stats.binomtest(right, len(labels)).proportion_ci(method="wilson")
        return float(ends.low), float(ends.high)
    result = _bootstrap(METRICS[metric].formula, predictions, labels, seed, 1000)
    low, high = result.confidence_interval
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
