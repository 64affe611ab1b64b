"""The metrics of the paper's tables and of one's own tasks, and the scores of a split.

All values are those of scikit-learn or SciPy (accuracy 0.86); the tables of
`gpt1_jax.report.tables` show most metrics x 100, as the paper does.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epy

from gpt1_jax.config.finetune import CUSTOM_TASK
from gpt1_jax.data.records import parse_number
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import Example, Task

with epy.lazy_imports():  # they take a second, and only scoring needs them
    from scipy import stats
    from sklearn import metrics as sk

# Of predictions, or probabilities, and labels or scores.
Formula = Callable[[np.ndarray, np.ndarray], float]
OfRows = Callable[[np.ndarray, np.ndarray], np.ndarray]  # a value for each example
# Of `label_counts`, which may be those of many resamples, [.., K].
OfCounts = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


# --- formulas -------------------------------------------------------------------


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


def _log_losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The loss of each example, nats; of several labels, the mean over labels."""
    several = labels.ndim == 2
    if several:
        right = np.where(labels, probabilities, 1 - probabilities)
    else:
        right = probabilities[np.arange(len(labels)), labels]
    least = np.finfo(np.float64).eps  # as scikit-learn, so that it is finite
    losses = -np.log(np.clip(right, least, 1))
    return losses.mean(axis=1) if several else losses


def _brier_scores(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The squared error of each example, as scikit-learn: for two labels, of one."""
    num_labels = probabilities.shape[1]
    squares = np.square(probabilities - as_booleans(labels, num_labels))
    several = labels.ndim == 2
    return squares.mean(axis=1) if several or num_labels == 2 else squares.sum(axis=1)


def as_booleans(labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Whether each of N examples has each label, [N, K].

    Args:
      labels: [N] label numbers, or [N, K] booleans.
      num_labels: K.
    """
    return labels if labels.ndim == 2 else labels[:, None] == np.arange(num_labels)


def label_counts(
    predictions: np.ndarray, labels: np.ndarray, num_labels: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers of examples of each label: right, true and predicted, [K] each."""
    true = as_booleans(labels, num_labels)
    predicted = as_booleans(predictions, num_labels)
    return (true & predicted).sum(0), true.sum(0), predicted.sum(0)


def _macro_f1(right: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The mean F1 of labels; one that is neither true nor predicted does not count."""
    return _known_mean(_ratio(2 * right, true + predicted))


def _micro_f1(right: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    return _ratio(2 * right.sum(-1), (true + predicted).sum(-1))


def _balanced_accuracy(
    right: np.ndarray, true: np.ndarray, _: np.ndarray
) -> np.ndarray:
    return _known_mean(_ratio(right, true))


def _matthews(right: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    total = true.sum(-1)
    product = np.square(total) - np.square(true).sum(-1)
    product = product * (np.square(total) - np.square(predicted).sum(-1))
    covariance = right.sum(-1) * total - (true * predicted).sum(-1)
    return _ratio(covariance, np.sqrt(product))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """NaN where the whole is 0."""
    empty = np.full(np.shape(whole), np.nan)
    return np.divide(part, whole, out=empty, where=whole > 0)


def _known_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis, without NaN."""
    return _ratio(np.nansum(values, axis=-1), np.isfinite(values).sum(axis=-1))


# --- the table of metrics -------------------------------------------------------


class Metric(NamedTuple):
    """A metric, called as `metric(predictions, labels)`, and how its values are read.

    Attributes:
      formula: of [N] predictions and [N] labels or scores; its value is finite. Of
        several labels an example, both are [N, K] booleans; "probabilities" are [N, K].
      compares: what it fits: "labels" by number, one an example; "two labels" of which
        1 is the positive class; "several labels" an example; "any labels", one or
        several; "probabilities" of labels; or "scores", also labels that are numbers.
      lowest, highest: the values that it can have.
      highest_is_best: whether checkpoints and runs with higher values are better.
      in_points: whether tables and figures show it x 100, as the paper does.
      of_counts: the same of `label_counts`, if it depends on these alone.
      of_rows: the values of single examples, if it is their mean.
    """

    formula: Formula
    compares: str = "scores"
    lowest: float = -math.inf
    highest: float = math.inf
    highest_is_best: bool = True
    in_points: bool = False
    of_counts: OfCounts | None = None
    of_rows: OfRows | None = None

    def __call__(self, predictions: np.ndarray, labels: np.ndarray) -> float:
        """The value for predictions."""
        return self.formula(predictions, labels)

    def shown(self, value: float) -> float:
        """A value as tables and figures show it."""
        return 100 * value if self.in_points else value


def _in_points(
    formula: Formula,
    compares: str,
    lowest: float = 0.0,
    of_counts: OfCounts | None = None,
) -> Metric:
    """A metric whose best value is 1."""
    return Metric(formula, compares, lowest, 1.0, in_points=True, of_counts=of_counts)


def _counted(of_counts: OfCounts, compares: str) -> Metric:
    """A metric of counts alone, whose best value is 1; it is 0 where undefined."""

    def formula(predictions: np.ndarray, labels: np.ndarray) -> float:
        # Labels that do not occur change nothing.
        num_labels = 1 + int(max(predictions.max(), labels.max()))
        counts = label_counts(predictions, labels, num_labels)
        return float(np.nan_to_num(of_counts(*counts)))

    return _in_points(formula, compares, of_counts=of_counts)


def _mean_loss(of_rows: OfRows) -> Metric:
    """A mean over examples, whose best value is 0."""
    return Metric(
        lambda probabilities, labels: float(of_rows(probabilities, labels).mean()),
        "probabilities",
        0.0,
        highest_is_best=False,
        of_rows=of_rows,
    )


# To add a metric, add an entry here.
METRICS: Mapping[str, Metric] = {
    "accuracy": _in_points(_accuracy, "any labels"),
    "f1": _in_points(_f1, "two labels"),
    "macro_f1": _counted(_macro_f1, "any labels"),
    "micro_f1": _counted(_micro_f1, "several labels"),
    "balanced_accuracy": _counted(_balanced_accuracy, "labels"),
    "matthews": _in_points(
        _correlation(lambda p, y: sk.matthews_corrcoef(y, p)), "labels", -1.0, _matthews
    ),
    "log_loss": _mean_loss(_log_losses),
    "brier": _mean_loss(_brier_scores),
    "pearson": _in_points(
        _correlation(lambda p, y: stats.pearsonr(p, y).statistic), "scores", -1.0
    ),
    "spearman": _in_points(
        _correlation(lambda p, y: stats.spearmanr(p, y).statistic), "scores", -1.0
    ),
}


# --- the scores of a task's predictions -----------------------------------------


def fitting_metrics(task: Task) -> list[str]:
    """The names of the metrics that suit a task's labels or scores."""
    target = task.target
    fitting = ["any labels", "probabilities"] if target.labels else ["scores"]
    if target.multilabel:
        fitting.append("several labels")
    elif target.labels:
        fitting.append("labels")
        if len(target.labels) == 2:
            fitting.append("two labels")
        if np.isfinite(_label_values(task)).all():
            fitting.append("scores")
    return [name for name, metric in METRICS.items() if metric.compares in fitting]


def _label_values(task: Task) -> np.ndarray:
    """The labels of a task as numbers, NaN for other names."""
    return np.asarray([parse_number(label) for label in task.target.labels])


def true_labels(task: Task, examples: Sequence[Example]) -> np.ndarray:
    """The labels of N examples that all have one, as metrics take them.

    Returns:
      [N] label numbers or scores; of several labels an example, [N, K] booleans.
    """
    labels = [example.label for example in examples]
    if task.target.multilabel:
        has = np.zeros((len(labels), len(task.target.labels)), bool)
        for row, numbers in zip(has, labels, strict=True):
            row[np.asarray(numbers, int)] = True
        return has
    # Scores in float64: in float32 SciPy warns of predictions that differ little.
    return np.asarray(labels, np.int64 if task.target.labels else np.float64)


def describe_metric(task: Task, name: str) -> str:
    """A metric as messages and tables name it: for one's own labels, "f1 of spam"."""
    if name == "f1" and task.name == CUSTOM_TASK:
        return f"f1 of {task.target.labels[task.target.positive]}"
    return name


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
      `{"n": .., metric: .., ..}`, ready for JSON: first the task's own metrics that
      fit it, in their order, then the accuracy if there are labels. If any subset has
      a name, "subsets" holds the same for each. If examples have one label each,
      "confusion" counts them: a row for each true label, a column for each predicted
      one.

    Raises:
      UserError: if there are no examples, labels are missing, or predictions are not
        finite.
    """
    columns = [len(task.target.labels)] if task.target.multilabel else []
    predicted = check_numbers("predictions", predictions, examples, *columns)
    if not examples:
        raise UserError(f"There are no examples of {task.title} to score.")
    labels = [example.label for example in examples]
    if missing := labels.count(None):
        raise UserError(
            f"{missing} of {len(labels)} examples of {task.title} have no label, as in "
            "test splits whose labels are withheld, so there is no score; write the "
            "predictions to a file instead."
        )
    true = true_labels(task, examples)
    scores = _scores(task, predicted, true, probabilities)
    parts = np.asarray([example.subset for example in examples])
    names = [name for name in dict.fromkeys(parts.tolist()) if name]
    if names:
        scores["subsets"] = {}
    for name in names:
        own = parts == name
        shares = None if probabilities is None else probabilities[own]
        scores["subsets"][name] = _scores(task, predicted[own], true[own], shares)
    if task.target.labels and not task.target.multilabel:
        numbers = range(len(task.target.labels))
        matrix = sk.confusion_matrix(true, predicted, labels=list(numbers))
        scores["confusion"] = matrix.tolist()
    return scores


def _scores(
    task: Task,
    predicted: np.ndarray,
    true: np.ndarray,
    probabilities: np.ndarray | None,
) -> dict[str, Any]:
    fitting = fitting_metrics(task)
    if probabilities is None:
        fitting = [
            each for each in fitting if METRICS[each].compares != "probabilities"
        ]
    scores: dict[str, Any] = {"n": len(true)}
    for name in dict.fromkeys([*task.metrics, "accuracy"]):
        if name in fitting:
            values = compared(task, name, predicted, true, probabilities)
            scores[name] = METRICS[name](*values)
    return scores


def compared(
    task: Task,
    name: str,
    predicted: np.ndarray,
    true: np.ndarray,
    probabilities: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """What a metric compares, and the labels or scores that it compares it with."""
    compares = METRICS[name].compares
    if compares == "probabilities" and probabilities is not None:
        return probabilities, true
    if compares == "two labels":
        positive = task.target.positive
        return (predicted == positive).astype(int), (true == positive).astype(int)
    if compares == "scores" and task.target.labels:
        values = _label_values(task)
        return values[predicted], values[true]
    return predicted, true


def with_all_metrics(task: Task) -> Task:
    """The task with all metrics that suit it, its own first.

    Correlations of labels that are numbers are left out unless it names them.
    """
    names = [
        name
        for name in fitting_metrics(task)
        if not task.target.labels or METRICS[name].compares != "scores"
    ]
    names = list(dict.fromkeys([*task.metrics, *names]))
    return dataclasses.replace(task, metrics=tuple(names))


def check_numbers(
    name: str,
    values: np.ndarray | Sequence[float],
    examples: Sequence[Example],
    *columns: int,
) -> np.ndarray:
    """A number or more for each of N examples, as an array [N, *columns].

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


# --- thresholds -----------------------------------------------------------------


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
