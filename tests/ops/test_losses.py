"""The losses against NumPy and hand-computed numbers."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from gpt1_jax.ops import losses

FLOAT32, BFLOAT16 = jnp.dtype("float32"), jnp.dtype("bfloat16")
CHUNKS = [0, 1, 2, 3, 5, 100]  # of 5 positions: whole, with and without a remainder

next_token_nll = jax.jit(losses.next_token_nll, static_argnums=(3, 4))
next_token_loss = jax.jit(losses.next_token_loss, static_argnums=(4, 5))


@functools.partial(jax.jit, static_argnums=(4, 5))
def gradients(hidden, unembedding, tokens, weights, dtype=FLOAT32, chunk=0):
    """Of the loss by the hidden states, the softmax rows and the weights."""
    loss = functools.partial(losses.next_token_loss, dtype=dtype, chunk=chunk)
    by = jax.grad(loss, argnums=(0, 1, 3))
    return by(hidden, unembedding, tokens, weights)


def random_problem(num_seqs=3, seq_len=5, embed_dim=4, rows=11, scale=1.0):
    rng = np.random.default_rng(0)
    hidden = scale * rng.normal(size=(num_seqs, seq_len, embed_dim))
    unembedding = scale * rng.normal(size=(rows, embed_dim))
    tokens = rng.integers(0, rows, (num_seqs, seq_len))
    return hidden.astype(np.float32), unembedding.astype(np.float32), tokens


def random_weights(shape=(3, 5)):
    return np.random.default_rng(1).random(shape).astype(np.float32)


def numpy_next_token_nll(hidden, unembedding, tokens):
    """Eq. 1, one token at a time."""
    nll = np.zeros(tokens.shape)
    for n, t in np.ndindex(tokens.shape[0], tokens.shape[1] - 1):
        scores = unembedding.astype(np.float64) @ hidden[n, t]
        nll[n, t] = np.log(np.exp(scores).sum()) - scores[tokens[n, t + 1]]
    return nll


def numpy_gradients(hidden, unembedding, tokens, weights):
    """(softmax - one-hot), weighted, into the hidden states and the softmax rows."""
    scores = hidden[:, :-1].astype(np.float64) @ unembedding.T
    error = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    for n, t in np.ndindex(error.shape[:2]):
        error[n, t, tokens[n, t + 1]] -= 1
    error *= weights[:, :-1, None]
    to_hidden = np.zeros(hidden.shape)
    to_hidden[:, :-1] = error @ unembedding
    return to_hidden, np.einsum("ntv,ntd->vd", error, hidden[:, :-1])


@pytest.mark.parametrize("chunk", CHUNKS)
def test_next_token_nll_equals_numpy(chunk):
    hidden, unembedding, tokens = random_problem()
    actual = next_token_nll(hidden, unembedding, tokens, FLOAT32, chunk)
    assert actual.dtype == jnp.float32
    expected = numpy_next_token_nll(hidden, unembedding, tokens)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_next_token_loss_and_its_gradients_equal_numpy(chunk):
    hidden, unembedding, tokens = random_problem()
    weights = random_weights()
    nll = numpy_next_token_nll(hidden, unembedding, tokens)
    expected = (weights * nll).sum()
    for loss in (
        next_token_loss(hidden, unembedding, tokens, weights, FLOAT32, chunk),
        jax.value_and_grad(losses.next_token_loss)(
            hidden, unembedding, tokens, weights, FLOAT32, chunk
        )[0],
    ):
        assert loss.dtype == jnp.float32
        assert float(loss) == pytest.approx(expected, rel=1e-6)
    actual = gradients(hidden, unembedding, tokens, weights, FLOAT32, chunk)
    expected = (*numpy_gradients(hidden, unembedding, tokens, weights), nll)
    for each, numpy_gradient in zip(actual, expected, strict=True):
        np.testing.assert_allclose(each, numpy_gradient, atol=5e-6)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_next_token_loss_equals_the_plain_form(dtype, chunk):
    """The nats of each token, and the gradients of their weighted sum."""
    hidden, unembedding, tokens = random_problem(embed_dim=64, rows=137, scale=0.3)
    weights = random_weights()

    def plain_loss(hidden, unembedding, weights):
        nll = losses.plain_next_token_nll(hidden, unembedding, tokens, dtype)
        return (weights * nll).sum(), nll

    by = jax.grad(plain_loss, argnums=(0, 1, 2), has_aux=True)
    *plain, plain_nll = jax.tree.leaves(by(hidden, unembedding, weights))
    nll = next_token_nll(hidden, unembedding, tokens, dtype, chunk)
    np.testing.assert_allclose(nll, plain_nll, rtol=1e-5, atol=2e-6)
    actual = gradients(hidden, unembedding, tokens, weights, dtype, chunk)
    error = 1e-6 if dtype == FLOAT32 else 2**-7
    for ours, theirs in zip(actual, plain, strict=True):
        assert np.abs(ours - theirs).max() < error * np.abs(theirs).max()


def test_next_token_nll_of_a_hand_computed_example():
    """Scores (1, -1) and label 0 cost ln(1 + e^-2); label 1 costs 2 nats more."""
    hidden = jnp.ones((1, 3, 1))
    unembedding = jnp.array([[1.0], [-1.0]])
    tokens = jnp.array([[1, 0, 1]])
    actual = next_token_nll(hidden, unembedding, tokens, FLOAT32)
    np.testing.assert_allclose(actual, [[0.126928, 2.126928, 0.0]], atol=1e-6)
    weights = jnp.array([[1.0, 10.0, 100.0]])
    loss = next_token_loss(hidden, unembedding, tokens, weights, FLOAT32)
    assert float(loss) == pytest.approx(21.396208, abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(40478, 10.608514), (40000, 10.596635), (40990, 10.621083), (1, 0.0)],
)
def test_next_token_nll_of_uniform_logits_is_the_log_of_their_number(rows, expected):
    problem = jnp.zeros((1, 3, 2)), jnp.ones((rows, 2)), jnp.zeros((1, 3), int)
    for dtype in (FLOAT32, BFLOAT16):
        nll = next_token_nll(*problem, dtype)
        np.testing.assert_allclose(nll, [[expected, expected, 0.0]], atol=2e-6)
    assert expected == pytest.approx(math.log(rows), abs=5e-7)


def test_last_position_predicts_nothing():
    hidden, unembedding, tokens = random_problem()
    nll = next_token_nll(hidden, unembedding, tokens, FLOAT32)
    assert nll.shape == tokens.shape
    assert not nll[:, -1].any()
    assert nll[:, :-1].all()
    to_hidden, _, to_weights = gradients(hidden, unembedding, tokens, random_weights())
    assert not to_hidden[:, -1].any()
    assert np.abs(to_hidden[:, :-1]).max(-1).all()
    assert not to_weights[:, -1].any()


def test_first_token_is_not_predicted():
    hidden, unembedding, tokens = random_problem()
    other = tokens.copy()
    other[:, 0] = (other[:, 0] + 1) % 11
    np.testing.assert_array_equal(
        next_token_nll(hidden, unembedding, tokens, FLOAT32),
        next_token_nll(hidden, unembedding, other, FLOAT32),
    )


def test_next_token_nll_counts_position_rows_in_the_softmax():
    """More rows than tokens, as released: the rest only adds to the normaliser."""
    hidden, unembedding, tokens = random_problem(rows=11)
    tokens = tokens % 7
    fewer = next_token_nll(hidden, unembedding[:7], tokens, FLOAT32)
    more = next_token_nll(hidden, unembedding, tokens, FLOAT32)
    scores = hidden[:, :-1].astype(np.float64) @ unembedding.T
    added = np.log(np.exp(scores).sum(-1)) - np.log(np.exp(scores[..., :7]).sum(-1))
    np.testing.assert_allclose((more - fewer)[:, :-1], added, atol=2e-6)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("sign", [1, -1])
def test_loss_survives_huge_logits(dtype, sign):
    """All scores far above or below zero, where the padding's would be zero."""
    hidden = jnp.full((1, 3, 4), 50.0)
    unembedding = sign * (50.0 + jnp.arange(20).reshape(5, 4) / 8)
    tokens = jnp.array([[0, 1, 4]])
    nll = next_token_nll(hidden, unembedding, tokens, dtype)
    scores = hidden.astype(dtype).astype(jnp.float32) @ (
        unembedding.astype(dtype).astype(jnp.float32).T
    )
    assert float(jnp.abs(scores).min()) > 9000
    expected = jax.nn.logsumexp(scores, -1)[:, :2] - scores[0, 0, jnp.array([1, 4])]
    np.testing.assert_allclose(nll[:, :2], expected, rtol=1e-6)
    for each in gradients(hidden, unembedding, tokens, jnp.ones((1, 3)), dtype):
        assert np.isfinite(each).all()


def test_gradient_is_scaled_by_what_follows_the_loss():
    hidden, unembedding, tokens = random_problem()
    weights = random_weights()

    def scaled(hidden, unembedding):
        loss = losses.next_token_loss(hidden, unembedding, tokens, weights, FLOAT32)
        return 3.0 * loss

    plain = gradients(hidden, unembedding, tokens, weights)
    for each, once in zip(
        jax.grad(scaled, (0, 1))(hidden, unembedding), plain, strict=False
    ):
        np.testing.assert_allclose(each, 3.0 * once, rtol=1e-6)


def test_gradients_equal_finite_differences():
    hidden, unembedding, tokens = random_problem(2, 4, 3, 5)
    check_grads(
        lambda h, w: next_token_loss(h, w, tokens, jnp.ones((2, 4)), FLOAT32, 3),
        (hidden, unembedding),
        order=1,
        modes=["rev"],
        atol=2e-2,
        rtol=2e-2,
    )


@pytest.mark.parametrize("chunk", [0, 2])
def test_bfloat16_rounds_the_operands_only(chunk):
    """It is the float32 loss of rounded inputs, with gradients near to its own."""
    hidden, unembedding, tokens = random_problem(embed_dim=64, rows=137, scale=0.3)
    weights = random_weights()
    rounded = [
        np.asarray(jnp.asarray(part, BFLOAT16).astype(jnp.float32))
        for part in (hidden, unembedding)
    ]
    actual = next_token_nll(hidden, unembedding, tokens, BFLOAT16, chunk)
    assert actual.dtype == jnp.float32
    expected = next_token_nll(*rounded, tokens, FLOAT32)
    np.testing.assert_allclose(actual, expected, atol=5e-6)
    actual = gradients(hidden, unembedding, tokens, weights, BFLOAT16, chunk)
    expected = gradients(*rounded, tokens, weights)
    for each, exact in zip(actual, expected, strict=True):
        assert each.dtype == jnp.float32
        assert np.abs(each - exact).max() < 2**-7 * np.abs(exact).max()


def take_branches_of(platform, monkeypatch):
    def accelerator(*arrays, default, **others):
        return others.get(platform, default)(*arrays)

    monkeypatch.setattr(jax.lax, "platform_dependent", accelerator)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("sign", [1, -1])
def test_rows_filled_up_on_accelerators_change_nothing(monkeypatch, sign, platform):
    """An accelerator's branches, taken here: 11 rows become 128, none of them seen."""
    hidden, unembedding, tokens = random_problem(scale=0.3)
    hidden[..., 0], unembedding[:, 0] = 8.0, sign * 8.0  # scores near 64 or -64
    weights = random_weights()
    rounded = [
        np.asarray(jnp.asarray(part, BFLOAT16).astype(jnp.float32))
        for part in (hidden, unembedding)
    ]
    expected = next_token_nll(*rounded, tokens, FLOAT32)
    expected_gradients = gradients(*rounded, tokens, weights)

    take_branches_of(platform, monkeypatch)
    loss = functools.partial(losses.next_token_loss, dtype=BFLOAT16)
    with jax.disable_jit():  # XLA's CPU backend would leave out some of the rounding
        actual = losses.next_token_nll(hidden, unembedding, tokens, BFLOAT16)
        by = jax.grad(loss, argnums=(0, 1))(hidden, unembedding, tokens, weights)
    # Scores are rounded to bfloat16, which has steps of 1/4 and 1/2 near 64.
    np.testing.assert_allclose(actual, expected, atol=0.5)
    for each, exact in zip(by, expected_gradients, strict=False):
        assert each.shape == exact.shape
        assert np.abs(each - exact).max() < 0.25 * np.abs(exact).max()


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_rows_filled_up_give_no_nan_beside_scores_far_below_zero(monkeypatch, platform):
    """Their own scores are 0, and e^200 is too much for float32."""
    hidden, unembedding, tokens = random_problem(scale=0.3)
    hidden[..., 0], unembedding[:, 0] = 10.0, -20.0
    take_branches_of(platform, monkeypatch)
    loss = functools.partial(losses.next_token_loss, dtype=BFLOAT16)
    by = jax.grad(loss, argnums=(0, 1))(hidden, unembedding, tokens, random_weights())
    assert all(np.isfinite(each).all() for each in by)


@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize(
    ("size", "error"), [(0.3, 1e-5), (4.0, 1e-4), (20.0, 1e-3), (-20.0, 1e-3)]
)
def test_loss_of_a_tpu_equals_the_plain_form(monkeypatch, size, error, chunk):
    """Sums of powers of e as they are, or from the largest where they may overflow.

    Scores are up to 1, 70, 1000; and at most -300, whose powers are all zero.
    """
    hidden, unembedding, tokens = random_problem(embed_dim=4, rows=137)
    hidden, unembedding = abs(size) * np.abs(hidden), size * np.abs(unembedding)
    hidden, unembedding = hidden + (size < 0), unembedding - 5 * (size < 0)
    weights = random_weights()

    def plain_loss(hidden, unembedding):
        nll = losses.plain_next_token_nll(hidden, unembedding, tokens, FLOAT32)
        return (weights * nll).sum()

    by = (0, 1)
    expected = jax.value_and_grad(plain_loss, by)(hidden, unembedding)
    take_branches_of("tpu", monkeypatch)
    ours = functools.partial(losses.next_token_loss, dtype=FLOAT32, chunk=chunk)
    actual = jax.value_and_grad(ours, by)(hidden, unembedding, tokens, weights)
    for each, exact in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert np.abs(each - exact).max() < error * np.abs(exact).max()


@pytest.mark.parametrize(("size", "in_range"), [(1.0, True), (10.0, False)])
def test_a_tpu_sums_powers_as_they_are_if_they_are_in_range(
    monkeypatch, size, in_range
):
    hidden, unembedding, tokens = random_problem(rows=137)
    take_branches_of("tpu", monkeypatch)
    seen, cond = [], jax.lax.cond

    def seen_cond(predicate, *branches_and_arrays):
        seen.append(bool(predicate))
        return cond(predicate, *branches_and_arrays)

    monkeypatch.setattr(jax.lax, "cond", seen_cond)
    with jax.disable_jit():
        losses.next_token_nll(size * hidden, size * unembedding, tokens, FLOAT32)
    assert seen == [in_range]


def test_training_loss_keeps_no_logits():
    """Its memory is a chunk's scores, not the batch's."""
    seqs, length, rows, dim = 2, 64, 5000, 8
    shapes = [(seqs, length, dim), (rows, dim), (seqs, length), (seqs, length)]
    dtypes = [jnp.float32, jnp.float32, jnp.int32, jnp.float32]
    specs = [jax.ShapeDtypeStruct(*each) for each in zip(shapes, dtypes, strict=True)]

    def temporary_bytes(chunk):
        compiled = gradients.lower(*specs, FLOAT32, chunk).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = 4 * seqs * length * rows
    assert temporary_bytes(0) < 2.2 * logits
    assert temporary_bytes(8) < 0.5 * logits


# --- fine-tuning ----------------------------------------------------------------


def test_fine_tuning_loss_of_a_hand_computed_example():
    """Two choices of 6 and 4 tokens: each averaged by itself, then their mean."""
    nll = jnp.array([[2.0, 1, 3, 2, 2, 0], [4, 2, 3, 7, 7, 0]])
    lengths = jnp.array([6, 4])
    lm_loss = (losses.sequence_mean_weights(lengths, 6) * nll).sum()
    assert float(lm_loss) == pytest.approx(2.5, rel=1e-6)
    assert float(lm_loss) != pytest.approx(19 / 8, rel=1e-2), "the mean over tokens"
    logits, targets = jnp.array([[1.0, -1.0]]), jnp.array([[1.0, 0.0]])
    clf_loss = losses.classification_loss(logits, targets)
    assert float(clf_loss) == pytest.approx(0.126928, abs=1e-6)
    assert float(clf_loss + 0.5 * lm_loss) == pytest.approx(1.376928, abs=1e-6)


def test_sequence_mean_weights_by_hand():
    weights = losses.sequence_mean_weights(jnp.array([2, 5, 3]), 5)
    assert weights.dtype == jnp.float32
    expected = [[1, 0, 0, 0, 0], [1 / 4] * 4 + [0], [1 / 2, 1 / 2, 0, 0, 0]]
    np.testing.assert_allclose(weights, np.array(expected) / 3, rtol=1e-6)


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=20))
@settings(deadline=None, max_examples=20)
def test_sequence_mean_weights_are_equal_shares(lengths):
    weights = np.asarray(losses.sequence_mean_weights(jnp.array(lengths), 41))
    np.testing.assert_allclose(weights.sum(1), 1 / len(lengths), rtol=1e-5)
    assert (weights > 0).sum(1).tolist() == [length - 1 for length in lengths]
    assert not weights[:, -1].any()


def test_padding_has_no_part_in_the_language_modelling_loss():
    """Neither in its value nor in a gradient, however much of it and whatever it is."""
    hidden, unembedding, tokens = random_problem(num_seqs=2, seq_len=6)
    lengths = np.array([6, 4])
    results = []
    for padded, filling in ((6, 0), (9, 0), (9, 5)):
        wider = ((0, 0), (0, padded - 6))
        states = np.pad(hidden, (*wider, (0, 0)), constant_values=filling)
        ids = np.pad(tokens, wider, constant_values=filling)
        ids[1, 4:], states[1, 4:] = filling, filling
        weights = losses.sequence_mean_weights(jnp.asarray(lengths), padded)
        loss = next_token_loss(states, unembedding, ids, weights, FLOAT32)
        to_hidden, to_rows, _ = gradients(states, unembedding, ids, weights)
        assert not to_hidden[1, 3:].any()
        assert np.abs(to_hidden[1, :3]).max(-1).all()
        results.append((loss, to_hidden[:, :6], to_rows))
    for other in results[1:]:
        for each, first in zip(other, results[0], strict=True):
            np.testing.assert_allclose(each, first, rtol=1e-6, atol=1e-7)
    nll = numpy_next_token_nll(hidden, unembedding, tokens)
    expected = (nll[0, :5].mean() + nll[1, :3].mean()) / 2
    assert float(results[0][0]) == pytest.approx(expected, rel=1e-6)


def test_classification_loss_of_soft_labels():
    """3.8 is 0.2 of class 3 and 0.8 of class 4: the cross-entropy by hand."""
    targets = jnp.array([[0, 0, 0, 0.2, 0.8, 0]])
    uniform = losses.classification_loss(jnp.zeros((1, 6)), targets)
    assert float(uniform) == pytest.approx(math.log(6), rel=1e-6)
    exact = losses.classification_loss(jnp.log(targets + 1e-12), targets)
    entropy = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    assert float(exact) == pytest.approx(entropy, rel=1e-6)
    logits = jnp.array([[0.0, 1, 2, 3, 4, 5]])
    log_sum = math.log(sum(math.exp(k) for k in range(6)))
    loss = losses.classification_loss(logits, targets)
    assert float(loss) == pytest.approx(log_sum - 3.8, rel=1e-6)
    gradient = jax.grad(losses.classification_loss)(logits, targets)
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits) - targets, atol=1e-6)


def test_classification_loss_is_the_mean_over_examples():
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    labels = np.array([0, 2, 1, 1, 2])
    loss = losses.classification_loss(logits, np.eye(3, dtype=np.float32)[labels])
    log_sums = np.log(np.exp(logits.astype(np.float64)).sum(1))
    expected = (log_sums - logits[np.arange(5), labels]).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    moved = losses.classification_loss(logits + 1e4, np.eye(3)[labels])
    assert float(moved) == pytest.approx(expected, rel=1e-2), "huge logits are finite"


def test_classification_loss_of_one_column_is_the_squared_error():
    logits, scores = jnp.array([[1.0], [4.0]]), jnp.array([[3.5], [4.5]])
    loss = losses.classification_loss(logits, scores)
    assert float(loss) == pytest.approx((2.5**2 + 0.5**2) / 2)
    gradient = jax.grad(losses.classification_loss)(logits, scores)
    np.testing.assert_allclose(gradient, logits - scores, rtol=1e-6)
