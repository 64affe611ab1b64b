"""Calibrated probabilities: the temperature, and where it is used."""

import numpy as np
import pytest

from gpt1_jax.finetuning.calibration import fit_temperature
from gpt1_jax.finetuning.predictor import mean_loss


def drawn(temperature, several, count=20_000):
    """Outputs that are too sure by a factor, and labels drawn by what is right."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (count, 3))
    if several:
        targets = rng.random((count, 3)) < 1 / (1 + np.exp(-logits))
    else:
        targets = np.eye(3)[(logits + rng.gumbel(size=(count, 3))).argmax(1)]
    return (logits * temperature).astype(np.float32), targets.astype(np.float32)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_is_the_one_that_labels_were_drawn_with(temperature, several):
    logits, targets = drawn(temperature, several)
    fitted = fit_temperature(logits, targets, several)
    assert fitted == pytest.approx(temperature, rel=0.05)
    best = mean_loss(logits / fitted, targets, several)
    for other in (0.98 * fitted, 1.02 * fitted):
        assert mean_loss(logits / other, targets, several) > best


def test_temperature_is_bounded_where_all_labels_are_right():
    targets = np.eye(2, dtype=np.float32)
    assert 0.1 <= fit_temperature(targets, targets) < 0.11
    assert 9.9 < fit_temperature(targets, 1 - targets) <= 10
