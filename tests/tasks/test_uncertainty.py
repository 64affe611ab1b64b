"""Thresholds and standard errors, against the formulas tried one by one."""

import math

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from gpt1_jax.tasks.uncertainty import (
    auc,
    best_threshold,
    bootstrap_error,
    standard_error,
)


@pytest.mark.parametrize("seed", range(10))
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


def test_a_threshold_separates_what_can_be_separated():
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


def test_bootstrapped_errors_are_those_of_theory():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    predictions = np.where(rng.random(400) < 0.7, labels, 1 - labels)

    def accuracy(a, b):
        return float(np.mean(a == b))

    found = bootstrap_error(accuracy, predictions, labels, seed=0)
    theory = standard_error("accuracy", predictions, labels, seed=0)
    assert found == pytest.approx(theory, rel=0.15)
    assert bootstrap_error(accuracy, predictions, labels, seed=0) == found
    matthews = standard_error("matthews", predictions, labels, seed=0)
    assert matthews == pytest.approx(2 * theory, rel=0.15)  # balanced: 2 accuracy - 1


def test_one_example_has_no_error():
    assert standard_error("matthews", np.array([1]), np.array([1]), seed=0) == 0.0
