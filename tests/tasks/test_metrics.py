"""Metrics by hand, and what becomes of predictions."""

import json
import math

import numpy as np
import pytest
from sklearn.metrics import (
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    log_loss,
    matthews_corrcoef,
    precision_recall_fscore_support,
)
from tiny_tasks import changed

from gpt1_jax.tasks.baselines import fit_bag_of_words, label_entropy, majority_baseline
from gpt1_jax.tasks.metrics import (
    METRICS,
    auc,
    best_threshold,
    describe_metric,
    fitting_metrics,
    score_predictions,
    with_all_metrics,
)
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example, Inputs, Target, Task
from gpt1_jax.tasks.uncertainty import (
    bootstrap_error,
    calibration_error,
    interval,
    reliability,
    score_in_full,
    standard_error,
)

CLASSES = Task(
    name="made_up",
    title="Made-up",
    inputs=Inputs(transform="single", text=("text",)),
    target=Target(labels=("no", "yes")),
    metrics=("matthews", "f1"),
)
SCORES = Task(
    name="rated",
    title="Rated",
    inputs=Inputs(transform="similarity", text=("one", "two")),
    target=Target(labels=(), score_range=(0.0, 5.0)),
    metrics=("pearson", "spearman"),
)


def examples(labels, subsets=None):
    subsets = [""] * len(labels) if subsets is None else subsets
    pairs = zip(labels, subsets, strict=True)
    return [Example(("",), (), label, "", subset, "") for label, subset in pairs]


def evaluate(task, predictions, labels, subsets=None):
    return score_predictions(task, examples(labels, subsets), predictions)


def majority(task, train_labels, dev_labels, dev_subsets=None):
    dev = examples(dev_labels, dev_subsets)
    return majority_baseline(task, examples(train_labels), dev)


# Ten examples: TP = 3, FN = 1, FP = 2, TN = 4.
TRUE = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
PREDICTED = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_classification_metrics_are_those_computed_by_hand():
    true = np.array(TRUE)
    # (3 + 4) / 10
    assert METRICS["accuracy"](PREDICTED, true) == 0.7
    # 2 TP / (2 TP + FP + FN) = 6 / (6 + 2 + 1)
    assert METRICS["f1"](PREDICTED, true) == pytest.approx(2 / 3)
    # With 0 as the positive class it would be 2 * 4 / (2 * 4 + 1 + 2) = 8 / 11.
    assert METRICS["f1"](1 - PREDICTED, 1 - true) == pytest.approx(8 / 11)
    # (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN))
    # = (12 - 2) / sqrt(5 * 4 * 6 * 5) = 10 / sqrt(600)
    expected = 10 / math.sqrt(600)
    assert METRICS["matthews"](PREDICTED, true) == pytest.approx(expected)


def test_correlations_are_those_computed_by_hand():
    predictions, labels = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 5.0, 2.0])
    # Deviations (-1.5, -.5, .5, 1.5) and (-2, -1, 3, 0): the sum of products is
    # 3 + .5 + 1.5 + 0 = 5, the squares add to 5 and 14.
    expected = 5 / math.sqrt(5 * 14)
    assert METRICS["pearson"](predictions, labels) == pytest.approx(expected)
    # Ranks (1, 2, 3, 4) and (1, 2, 4, 3): 1 - 6 * (0 + 0 + 1 + 1) / (4 * 15)
    assert METRICS["spearman"](predictions, labels) == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman", "f1"])
@pytest.mark.parametrize(
    ("predictions", "labels"),
    [([0, 0, 0], [0, 1, 1]), ([0, 1, 1], [0, 0, 0]), ([0, 0], [0, 0]), ([1], [0])],
)
def test_what_is_undefined_is_zero_without_warning(name, predictions, labels):
    """Correlations of constants, and F1 without positives."""
    assert METRICS[name](np.array(predictions), np.array(labels)) == 0.0


def test_predictions_get_metrics_and_confusion():
    result = evaluate(CLASSES, PREDICTED, TRUE)
    assert list(result) == ["n", "matthews", "f1", "accuracy", "confusion"]
    assert (result["n"], result["accuracy"]) == (10, 0.7)
    assert result["f1"] == pytest.approx(2 / 3)
    assert result["confusion"] == [[4, 2], [1, 3]]  # rows are the true labels
    assert json.loads(json.dumps(result)) == result
    result = evaluate(TASKS["mnli"], np.array([2, 2]), [0, 2], ["matched"] * 2)
    assert result["confusion"] == [[0, 0, 1], [0, 0, 0], [0, 0, 1]], "1 does not occur"


def test_each_named_subset_is_scored():
    subsets = ["high"] * 5 + ["middle"] * 5
    result = evaluate(CLASSES, PREDICTED, TRUE, subsets)
    # First five: true 1 1 1 1 0, predicted 1 1 1 0 1; TP 3, FN 1, FP 1, TN 0:
    # F1 = 6 / 8, MCC = (0 - 1) / sqrt(4 * 4 * 1 * 1)
    high = {"n": 5, "matthews": -0.25, "f1": 0.75, "accuracy": 0.6}
    assert result["subsets"]["high"] == pytest.approx(high)
    # Last five: all true 0, one predicted 1
    middle = {"n": 5, "matthews": 0.0, "f1": 0.0, "accuracy": 0.8}
    assert result["subsets"]["middle"] == pytest.approx(middle)
    assert (result["n"], result["accuracy"]) == (10, 0.7)
    # Examples of no subset count in the whole only.
    result = evaluate(CLASSES, [1, 0, 1], [1, 0, 0], ["high", "", ""])
    assert list(result["subsets"]) == ["high"] and result["n"] == 3


def test_scores_are_correlated_without_accuracy_or_confusion():
    # Nearly constant in float32, at which SciPy would warn.
    predictions = np.array([3.0, 3.000001, 3.000002], np.float32)
    result = evaluate(SCORES, predictions, [0.0, 2.5, 5.0])
    assert list(result) == ["n", "pearson", "spearman"]
    assert result["pearson"] == pytest.approx(1, abs=0.01)
    assert result["spearman"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("task", "predictions", "labels", "message"),
    [
        (CLASSES, [0, 1, 1], [None, 1, None], "^2 of 3 examples of Made-up have no l"),
        (CLASSES, np.array([], int), [], "no examples of Made-up"),
        (CLASSES, [[0], [1]], [0, 1], r"predictions are of shape .*, not \(2,\)"),
        (SCORES, [1.0, math.nan], [1.0, 2.0], "of the predictions, nan is not finite"),
    ],
)
def test_what_cannot_be_scored_is_refused(task, predictions, labels, message):
    with pytest.raises(ValueError, match=message):
        evaluate(task, predictions, labels)


def test_majority_is_of_the_training_labels():
    result = majority(CLASSES, [1, 1, 0], [0, 0, 0, 1], ["a", "a", "b", "b"])
    # Always 1: TP 1, FP 3: F1 = 2 / (2 + 3)
    assert result["accuracy"] == 0.25
    assert result["f1"] == pytest.approx(0.4)
    assert result["matthews"] == 0.0
    assert result["confusion"] == [[0, 3], [0, 1]]
    parts = {name: each["accuracy"] for name, each in result["subsets"].items()}
    assert parts == {"a": 0.0, "b": 0.5}
    constant = majority(SCORES, [1.0, 4.0], [0.0, 3.0])
    assert constant == {"n": 2, "pearson": 0.0, "spearman": 0.0}
    tie = majority(CLASSES, [1, 0, 1, 0], [0])
    assert tie["accuracy"] == 1.0 and "subsets" not in tie, "the lowest label"


def test_the_frequencies_of_labels_have_a_loss():
    assert label_entropy(CLASSES, examples([1, 1, 0, 0])) == pytest.approx(math.log(2))
    by_hand = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert label_entropy(CLASSES, examples([1, 1, 1, 0])) == pytest.approx(by_hand)
    assert label_entropy(CLASSES, examples([1])) == 0
    weighted = label_entropy(CLASSES, examples([1, 1, 1, 0]), np.float32([3, 1]))
    assert weighted == pytest.approx(math.log(2))
    several = changed(CLASSES, "target", multilabel=True)
    found = label_entropy(several, examples([(0, 1), (1,), (1,), ()]))
    assert found == pytest.approx(by_hand)
    assert label_entropy(SCORES, examples([2.5])) is None


# --- thresholds and standard errors ---------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_has_a_better_matthews_correlation(seed):
    rng = np.random.default_rng(seed)
    labels = np.array([0, 1, *rng.integers(0, 2, 30)])
    scores = np.round(rng.normal(size=32) + labels, 1)  # some are equal
    found = {
        each: matthews_corrcoef(labels, (scores >= each).astype(int))
        for each in np.unique(scores)
    }
    best = max(found.values())
    chosen = best_threshold(scores, labels)
    assert chosen == max(t for t in found if found[t] == pytest.approx(best, abs=1e-12))


def test_a_threshold_separates_separable_scores():
    scores, labels = np.array([-3.0, -1.0, -2.0, -4.0]), np.array([0, 1, 1, 0])
    assert best_threshold(scores, labels) == -2.0
    assert auc(scores, labels) == 1.0 and auc(-scores, labels) == 0.0


def test_labels_that_are_all_the_same_have_no_threshold():
    with pytest.raises(ValueError, match="no threshold between"):
        best_threshold(np.array([0.1, 0.2]), np.array([1, 1]))
    assert auc(np.array([0.1, 0.2]), np.array([1, 1])) == 0.5


def test_the_error_of_an_accuracy_is_binomial():
    predictions, labels = np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0])
    error = standard_error("accuracy", predictions, labels, seed=0)
    assert error == pytest.approx(math.sqrt(0.75 * 0.25 / 4))


def test_bootstrapped_errors_match_theory():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    predictions = np.where(rng.random(400) < 0.7, labels, 1 - labels)
    accuracy = METRICS["accuracy"].formula
    found = bootstrap_error(accuracy, predictions, labels, seed=0)
    theory = standard_error("accuracy", predictions, labels, seed=0)
    assert found == pytest.approx(theory, rel=0.15)
    assert bootstrap_error(accuracy, predictions, labels, seed=0) == found
    matthews = standard_error("matthews", predictions, labels, seed=0)
    assert matthews == pytest.approx(2 * theory, rel=0.15)  # balanced: 2 accuracy - 1
    assert standard_error("matthews", labels[:1], labels[:1], seed=0) == 0.0


# --- what a model has to beat, and how sure its score is ----------------------------


def texts(task, pairs):
    columns = len(task.inputs.text)
    return [Example((text,) * columns, (), label, "", "", "") for text, label in pairs]


WORDS = [("a fine film", 1), ("a dull film", 0), ("fine acting", 1), ("dull plot", 0)]


def test_a_bag_of_words_knows_labels_and_scores_by_their_words():
    dev = [("so fine", 1), ("very dull", 0)]
    train = texts(CLASSES, WORDS * 3)
    found = fit_bag_of_words(CLASSES, train)(texts(CLASSES, dev))
    assert (found["n"], found["accuracy"]) == (2, 1.0)
    dev = texts(SCORES, [*dev, ("nothing known", 1)])
    found = fit_bag_of_words(SCORES, texts(SCORES, WORDS * 3))(dev)
    assert found["pearson"] > 0.8


@pytest.mark.parametrize(
    "train", [[("a", 1), ("b", 1)], [("?", 1), ("!", 0)]], ids=["one label", "no word"]
)
def test_a_bag_of_words_that_can_learn_nothing_has_no_score(train):
    assert fit_bag_of_words(CLASSES, texts(CLASSES, train)) is None
    assert fit_bag_of_words(TASKS["copa"], texts(CLASSES, WORDS)) is None  # choices


def test_baselines_are_as_sure_as_labels_are_frequent():
    task = own_task("fun", "dull", "always", multilabel=True, metrics=("micro_f1",))
    pairs = [("fun fun", (0, 2)), ("dull", (1, 2)), ("fun dull", (0, 1, 2)), ("", (2,))]
    train, dev = texts(task, pairs * 9), texts(task, pairs[:2])
    found = fit_bag_of_words(task, train)(dev)
    assert found["micro_f1"] == 1 and found["log_loss"] < 0.3
    found = majority_baseline(task, train, dev)  # half have each of the first two
    assert found["micro_f1"] == pytest.approx(2 * 4 / (4 + 6))
    assert found["log_loss"] == pytest.approx(2 / 3 * math.log(2))
    task = own_task("a", "b", metrics=("log_loss",))
    found = majority_baseline(task, examples([0, 0, 0, 1]), examples([0, 1]))
    by_hand = -(math.log(0.75) + math.log(0.25)) / 2
    assert found["log_loss"] == pytest.approx(by_hand)


def test_an_interval_holds_its_score():
    """Wilson's for 8 of 10, by hand; others by resampling, the same each time."""
    right = np.array([1] * 8 + [0] * 2)
    low, high = interval("accuracy", right, np.ones(10, int))
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    rng = np.random.default_rng(0)
    true = rng.normal(size=200)
    near = true + rng.normal(size=200)
    low, high = interval("pearson", near, true)
    assert low < METRICS["pearson"](near, true) < high and high - low < 0.2
    assert interval("pearson", near, true) == (low, high)
    assert interval("accuracy", right[:1], right[:1]) is None


# --- tasks of one's own: what fits, the positive class, several labels an example ----


def own_task(*labels, multilabel=False, positive=1, metrics=("accuracy",)):
    target = Target(labels=labels, multilabel=multilabel, positive=positive)
    task = Task("custom", "Own", Inputs("single", ("text",)), target, metrics)
    return with_all_metrics(task)


def drawn(num_labels, seed=0, n=300):
    """Probabilities, predictions and labels of a model that is often right."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(num_labels, 0.3), n)
    labels = np.array([rng.choice(num_labels, p=row) for row in probabilities])
    return probabilities, probabilities.argmax(axis=1), labels


LABELLED = ["accuracy", "macro_f1", "balanced_accuracy", "matthews"]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (own_task("a", "b"), ["accuracy", "f1", *LABELLED[1:], "log_loss", "brier"]),
        (
            own_task("1", "2", "10"),
            [*LABELLED, "log_loss", "brier", "pearson", "spearman"],
        ),
        (
            own_task("a", "b", multilabel=True),
            ["accuracy", "macro_f1", "micro_f1", "log_loss", "brier"],
        ),
        (SCORES, ["pearson", "spearman"]),
    ],
)
def test_metrics_fit_the_labels(task, expected):
    assert fitting_metrics(task) == expected


@pytest.mark.parametrize("num_labels", [2, 4])
def test_scores_of_labels_are_those_of_scikit_learn(num_labels):
    task = own_task(*"abcd"[:num_labels])
    probabilities, predictions, labels = drawn(num_labels)
    found = score_in_full(task, examples(labels), predictions, probabilities)
    pair = labels, predictions
    expected = {
        "macro_f1": f1_score(*pair, average="macro"),
        "balanced_accuracy": balanced_accuracy_score(*pair),
        "log_loss": log_loss(labels, probabilities),
        "brier": np.square(np.eye(num_labels)[labels] - probabilities).sum(1).mean(),
    }
    if num_labels == 2:
        expected["brier"] = brier_score_loss(labels, probabilities[:, 1])
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    rows = zip(*precision_recall_fscore_support(*pair), strict=True)
    for own, row in zip(found["labels"].values(), rows, strict=True):
        values = [own[name] for name in ("precision", "recall", "f1", "n")]
        assert values == pytest.approx(row)
    assert json.loads(json.dumps(found))["labels"]["a"]["predicted"] > 0


def test_a_label_that_never_occurs_has_no_part_in_means():
    task = own_task("a", "b", "c")
    shares = np.array([[0.9, 0.1, 0]] * 4)
    found = score_in_full(task, examples([0, 0, 0, 1]), shares.argmax(1), shares)
    assert found["macro_f1"] == pytest.approx((6 / 7 + 0) / 2)
    assert found["balanced_accuracy"] == 0.5
    unseen = {"n": 0, "predicted": 0, "precision": None, "recall": None, "f1": None}
    ends = dict.fromkeys(("precision", "recall", "f1"))
    assert found["labels"]["c"] == {**unseen, "intervals": ends}
    assert found["labels"]["b"]["precision"] is None


def test_f1_is_of_the_positive_label_in_score_interval_and_baseline():
    task = own_task("abusive", "normal", positive=0, metrics=("f1",))
    labels = [0] * 5 + [1] * 95
    normal = np.ones(100, int)
    shares = np.array([[0.05, 0.95]] * 100)
    found = score_in_full(task, examples(labels), normal, shares)
    assert found["f1"] == 0
    # None of 5 right: Jaccard's index is from 0 to 0.434 (Wilson), F1 is 2 J / (1 + J).
    assert found["intervals"]["f1"] == pytest.approx((0, 0.6058), abs=1e-4)
    assert majority_baseline(task, examples(labels), examples(labels))["f1"] == 0
    assert describe_metric(task, "f1") == "f1 of abusive"
    assert describe_metric(TASKS["mrpc"], "f1") == "f1"
    half = np.array([0, 0, 0, 1, 1] + [1] * 95)
    found = score_in_full(task, examples(labels), half, shares)
    assert found["f1"] == found["labels"]["abusive"]["f1"] == pytest.approx(6 / 8)


def test_labels_that_are_numbers_correlate_by_their_values():
    task = own_task("1", "2", "10", metrics=("pearson",))
    found = score_predictions(task, examples([0, 1, 2, 2]), [0, 1, 2, 1])
    by_hand = np.corrcoef([1, 2, 10, 10], [1, 2, 10, 2])[0, 1]
    assert found["pearson"] == pytest.approx(by_hand)
    assert "spearman" not in found


def test_metrics_that_do_not_fit_the_labels_have_no_score():
    task = own_task("no", "yes", metrics=("pearson", "accuracy"))
    assert {"accuracy": 1.0}.items() <= evaluate(task, [0, 1], [0, 1]).items()
    assert "pearson" not in evaluate(task, [0, 1], [0, 1])


def test_several_labels_an_example_are_scored_by_label():
    task = own_task("a", "b", "c", multilabel=True, metrics=("micro_f1",))
    labels = [(0,), (0, 1), (), (1,)]
    true = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]], bool)
    probabilities = np.where(true, 0.9, 0.2)
    probabilities[1, 0] = probabilities[3, 1] = 0.1
    predictions = probabilities >= 0.5
    found = score_in_full(task, examples(labels), predictions, probabilities)
    assert found["micro_f1"] == pytest.approx(4 / 6)  # 2 right, 2 missed
    assert found["macro_f1"] == pytest.approx(2 / 3)  # "c" does not occur
    assert found["accuracy"] == 0.5  # all labels right
    assert found["log_loss"] == pytest.approx(
        log_loss(true.ravel(), probabilities.ravel())
    )
    brier = np.square(true - probabilities).mean()
    assert found["brier"] == pytest.approx(brier)
    assert found["labels"]["a"] | {"intervals": 0} == {
        "n": 2,
        "predicted": 1,
        "precision": 1.0,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3),
        "intervals": 0,
    }
    assert "confusion" not in found


@pytest.mark.parametrize(
    ("num_labels", "metrics"),
    [(2, ["f1"]), (4, ["macro_f1", "balanced_accuracy", "matthews"])],
)
def test_intervals_of_labels_are_those_of_the_bootstrap(num_labels, metrics):
    probabilities, predictions, labels = drawn(num_labels)
    task = own_task(*"abcd"[:num_labels])
    found = score_in_full(task, examples(labels), predictions, probabilities)
    for metric in metrics:
        low, high = found["intervals"][metric]
        error = bootstrap_error(METRICS[metric].formula, predictions, labels, seed=1)
        assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.15)
        assert (low + high) / 2 == pytest.approx(found[metric], abs=0.01)


def test_intervals_of_losses_are_those_of_a_mean():
    probabilities, _, labels = drawn(3)
    losses = -np.log(probabilities[np.arange(300), labels])
    half = 1.968 * losses.std(ddof=1) / math.sqrt(300)  # Student's t of 299
    expected = losses.mean() - half, losses.mean() + half
    assert interval("log_loss", probabilities, labels) == pytest.approx(expected, 1e-3)
    assert not METRICS["log_loss"].highest_is_best
    assert not METRICS["brier"].highest_is_best


def test_the_calibration_error_is_that_by_hand():
    # Tenths 0.6 to 0.7 (two of three right) and 0.9 to 1 (one of two).
    sure = np.array([0.62, 0.65, 0.68, 1.0, 0.9])
    probabilities = np.stack([sure, 1 - sure], axis=1)
    labels = np.array([0, 0, 1, 0, 1])
    assert reliability(labels, probabilities) == [
        pytest.approx({"n": 3, "confidence": 0.65, "accuracy": 2 / 3}),
        pytest.approx({"n": 2, "confidence": 0.95, "accuracy": 0.5}),
    ]
    by_hand = (3 * (2 / 3 - 0.65) + 2 * (0.95 - 0.5)) / 5
    assert calibration_error(labels, probabilities) == pytest.approx(by_hand)
    # Of several labels, each answer counts, also a "no".
    both = np.stack([labels == 0, labels == 1], axis=1)
    assert calibration_error(both, probabilities) == pytest.approx(by_hand)
