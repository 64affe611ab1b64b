"""The language modelling loss against NumPy and hand-computed numbers."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from gpt1_jax.training.losses import next_token_nll, token_nll

FLOAT32 = jnp.dtype("float32")


def random_problem(num_seqs=3, seq_len=5, embed_dim=4, rows=11, scale=1.0):
    rng = np.random.default_rng(0)
    hidden = scale * rng.normal(size=(num_seqs, seq_len, embed_dim))
    unembedding = scale * rng.normal(size=(rows, embed_dim))
    tokens = rng.integers(0, rows, (num_seqs, seq_len))
    return hidden.astype(np.float32), unembedding.astype(np.float32), tokens


def numpy_next_token_nll(hidden, unembedding, tokens):
    """Eq. 1, one token at a time."""
    nll = np.zeros(tokens.shape)
    for n, t in np.ndindex(tokens.shape[0], tokens.shape[1] - 1):
        scores = unembedding.astype(np.float64) @ hidden[n, t]
        nll[n, t] = np.log(np.exp(scores).sum()) - scores[tokens[n, t + 1]]
    return nll


def test_next_token_nll_equals_numpy():
    hidden, unembedding, tokens = random_problem()
    actual = next_token_nll(hidden, unembedding, tokens, FLOAT32)
    assert actual.dtype == jnp.float32
    expected = numpy_next_token_nll(hidden, unembedding, tokens)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_next_token_nll_of_a_hand_computed_example():
    """Scores (1, -1) and label 0 cost ln(1 + e^-2); label 1 costs 2 nats more."""
    hidden = jnp.ones((1, 3, 1))
    unembedding = jnp.array([[1.0], [-1.0]])
    actual = next_token_nll(hidden, unembedding, jnp.array([[1, 0, 1]]), FLOAT32)
    np.testing.assert_allclose(actual, [[0.126928, 2.126928, 0.0]], atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(40478, 10.608514), (40000, 10.596635), (40990, 10.621083), (1, 0.0)],
)
def test_token_nll_of_uniform_logits_is_the_log_of_their_number(rows, expected):
    nll = token_nll(
        jnp.zeros((1, 3, 2)), jnp.ones((rows, 2)), jnp.zeros((1, 3), int), FLOAT32
    )
    np.testing.assert_allclose(nll, np.full((1, 3), expected), atol=2e-6)
    assert expected == pytest.approx(math.log(rows), abs=5e-7)


def test_next_token_nll_has_nothing_in_its_last_column():
    hidden, unembedding, tokens = random_problem()

    def total(hidden):
        return next_token_nll(hidden, unembedding, tokens, FLOAT32).sum()

    nll = next_token_nll(hidden, unembedding, tokens, FLOAT32)
    gradient = np.asarray(jax.grad(total)(hidden))
    assert nll.shape == tokens.shape
    assert not nll[:, -1].any()
    assert nll[:, :-1].all()
    assert not gradient[:, -1].any(), "the last hidden state predicts nothing"
    assert np.abs(gradient[:, :-1]).max(-1).all()


def test_next_token_nll_does_not_predict_the_first_token():
    hidden, unembedding, tokens = random_problem()
    other = tokens.copy()
    other[:, 0] = (other[:, 0] + 1) % 11
    np.testing.assert_array_equal(
        next_token_nll(hidden, unembedding, tokens, FLOAT32),
        next_token_nll(hidden, unembedding, other, FLOAT32),
    )


def test_token_nll_counts_position_rows_in_the_softmax():
    """More rows than tokens, as released: the rest only adds to the normaliser."""
    hidden, unembedding, _ = random_problem(rows=11)
    labels = np.random.default_rng(1).integers(0, 7, hidden.shape[:2])
    fewer = token_nll(hidden, unembedding[:7], labels, FLOAT32)
    more = token_nll(hidden, unembedding, labels, FLOAT32)
    scores = hidden.astype(np.float64) @ unembedding.T
    added = np.log(np.exp(scores).sum(-1)) - np.log(np.exp(scores[..., :7]).sum(-1))
    np.testing.assert_allclose(more - fewer, added, atol=2e-6)


def test_token_nll_survives_huge_logits():
    hidden, unembedding, tokens = random_problem(scale=100.0)
    nll = token_nll(hidden, unembedding, tokens, FLOAT32)
    gradient = jax.grad(lambda h: token_nll(h, unembedding, tokens, FLOAT32).sum())
    assert np.isfinite(nll).all()
    assert np.isfinite(gradient(hidden)).all()


def test_next_token_nll_gradients_equal_numpy():
    """(softmax - one-hot) into the hidden states and into every softmax row."""
    hidden, unembedding, tokens = random_problem()
    nll_gradient = jax.jit(
        jax.grad(
            lambda h, w: next_token_nll(h, w, tokens, FLOAT32).sum(), argnums=(0, 1)
        )
    )
    scores = hidden[:, :-1].astype(np.float64) @ unembedding.T
    error = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    for n, t in np.ndindex(error.shape[:2]):
        error[n, t, tokens[n, t + 1]] -= 1
    to_hidden, to_unembedding = nll_gradient(hidden, unembedding)
    np.testing.assert_allclose(to_hidden[:, :-1], error @ unembedding, atol=3e-6)
    expected = np.einsum("ntv,ntd->vd", error, hidden[:, :-1])
    np.testing.assert_allclose(to_unembedding, expected, atol=5e-6)


def test_next_token_nll_gradients_equal_finite_differences():
    hidden, unembedding, tokens = random_problem(2, 4, 3, 5)
    loss = functools.partial(next_token_nll, tokens=tokens, dtype=FLOAT32)
    check_grads(
        jax.jit(lambda h, w: loss(h, w).sum()),
        (hidden, unembedding),
        order=1,
        modes=["rev"],
        atol=2e-2,
        rtol=2e-2,
    )


def test_next_token_nll_of_bfloat16_operands_is_float32():
    """Only the operands are rounded: it is the float32 loss of rounded inputs."""
    hidden, unembedding, tokens = random_problem(embed_dim=64, scale=0.3)
    rounded = [
        np.asarray(jnp.asarray(part, jnp.bfloat16).astype(jnp.float32))
        for part in (hidden, unembedding)
    ]
    actual = next_token_nll(hidden, unembedding, tokens, jnp.dtype("bfloat16"))
    assert actual.dtype == jnp.float32
    expected = next_token_nll(*rounded, tokens, FLOAT32)
    np.testing.assert_allclose(actual, expected, atol=5e-6)
