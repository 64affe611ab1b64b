"""The terms of fine-tuning's loss (eq. 4 and 5) against hand-computed numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.finetuning import heads, steps
from gpt1_jax.finetuning.predictor import mean_loss
from gpt1_jax.ops import losses

classification_loss = jax.jit(heads.classification_loss, static_argnums=2)
classification_gradient = jax.jit(jax.value_and_grad(heads.classification_loss))
plain_nll = jax.jit(losses.plain_next_token_nll, static_argnums=3)
sequence_mean_weights = jax.jit(steps.sequence_mean_weights, static_argnums=1)


@jax.jit
def next_token_loss(hidden, unembedding, tokens, weights):
    """The weighted loss, and its gradients by the states and the softmax rows."""
    loss = jax.value_and_grad(losses.next_token_loss, argnums=(0, 1))
    return loss(hidden, unembedding, tokens, weights, jnp.dtype("float32"))


def test_fine_tuning_loss_of_a_hand_computed_example():
    """Two choices of 6 and 4 tokens: each averaged by itself, then their mean."""
    nll = np.array([[2.0, 1, 3, 2, 2, 0], [4, 2, 3, 7, 7, 0]])
    lengths = np.array([6, 4])
    lm_loss = (sequence_mean_weights(lengths, 6) * nll).sum()
    assert float(lm_loss) == pytest.approx(2.5, rel=1e-6)
    assert float(lm_loss) != pytest.approx(19 / 8, rel=1e-2), "the mean over tokens"
    logits, targets = np.float32([[1.0, -1.0]]), np.float32([[1.0, 0.0]])
    clf_loss = classification_loss(logits, targets)
    assert float(clf_loss) == pytest.approx(0.126928, abs=1e-6)
    assert float(clf_loss + 0.5 * lm_loss) == pytest.approx(1.376928, abs=1e-6)


def test_sequence_mean_weights_by_hand():
    weights = sequence_mean_weights(np.array([2, 5, 3]), 5)
    assert weights.dtype == jnp.float32
    expected = [[1, 0, 0, 0, 0], [1 / 4] * 4 + [0], [1 / 2, 1 / 2, 0, 0, 0]]
    np.testing.assert_allclose(weights, np.array(expected) / 3, rtol=1e-6)


def test_padding_has_no_part_in_the_language_modelling_loss():
    """Neither in its value nor in a gradient, however much of it and whatever it is."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 6, 4)).astype(np.float32)
    unembedding = rng.normal(size=(11, 4)).astype(np.float32)
    tokens = rng.integers(0, 11, (2, 6))
    lengths, results = np.array([6, 4]), []
    for padded, filling in ((6, 0), (9, 0), (9, 5)):
        wider = ((0, 0), (0, padded - 6))
        states = np.pad(hidden, (*wider, (0, 0)), constant_values=filling)
        ids = np.pad(tokens, wider, constant_values=filling)
        ids[1, 4:], states[1, 4:] = filling, filling
        weights = sequence_mean_weights(lengths, padded)
        loss, gradients = next_token_loss(states, unembedding, ids, weights)
        to_hidden, to_rows = map(np.asarray, gradients)
        assert not to_hidden[1, 3:].any()
        assert np.abs(to_hidden[1, :3]).max(-1).all()
        results.append((loss, to_hidden[:, :6], to_rows))
    for other in results[1:]:
        for each, first in zip(other, results[0], strict=True):
            np.testing.assert_allclose(each, first, rtol=1e-6, atol=1e-7)
    nll = plain_nll(hidden, unembedding, tokens, jnp.float32)
    expected = (nll[0, :5].mean() + nll[1, :3].mean()) / 2
    assert float(results[0][0]) == pytest.approx(float(expected), rel=1e-6)


def test_classification_loss_of_soft_labels():
    """3.8 is 0.2 of class 3 and 0.8 of class 4: the cross-entropy by hand."""
    targets = np.float32([[0, 0, 0, 0.2, 0.8, 0]])
    uniform = classification_loss(np.zeros((1, 6), np.float32), targets)
    assert float(uniform) == pytest.approx(math.log(6), rel=1e-6)
    exact = classification_loss(np.log(targets + np.float32(1e-12)), targets)
    entropy = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    assert float(exact) == pytest.approx(entropy, rel=1e-6)
    logits = np.float32([[0.0, 1, 2, 3, 4, 5]])
    loss, gradient = classification_gradient(logits, targets)
    powers = np.exp(logits.astype(np.float64))
    assert float(loss) == pytest.approx(np.log(powers.sum()) - 3.8, rel=1e-6)
    np.testing.assert_allclose(gradient, powers / powers.sum() - targets, atol=1e-6)


def test_classification_loss_is_the_mean_over_examples():
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    labels = np.array([0, 2, 1, 1, 2])
    loss = classification_loss(logits, np.eye(3, dtype=np.float32)[labels])
    log_sums = np.log(np.exp(logits.astype(np.float64)).sum(1))
    expected = (log_sums - logits[np.arange(5), labels]).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    moved = classification_loss(
        logits + np.float32(1e4), np.eye(3, dtype=np.float32)[labels]
    )
    assert float(moved) == pytest.approx(expected, rel=1e-2), "huge logits are finite"


def test_classification_loss_of_one_column_is_the_squared_error():
    logits, scores = np.float32([[1.0], [4.0]]), np.float32([[3.5], [4.5]])
    loss, gradient = classification_gradient(logits, scores)
    assert float(loss) == pytest.approx((2.5**2 + 0.5**2) / 2)
    np.testing.assert_allclose(gradient, logits - scores, rtol=1e-6)


def test_loss_of_several_labels_is_a_binary_one_averaged_over_them():
    logits = np.float32([[0.0, math.log(3)], [-200.0, 1.0]])
    targets = np.float32([[1, 0], [1, 1]])
    by_hand = (math.log(2) + math.log(4) + 200 + math.log1p(math.exp(-1))) / 4
    loss = classification_loss(logits, targets, True)
    assert float(loss) == pytest.approx(by_hand, rel=1e-6)
    assert mean_loss(logits, targets, True) == pytest.approx(by_hand, rel=1e-6)
