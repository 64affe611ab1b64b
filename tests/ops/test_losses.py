"""The losses against NumPy and hand-computed numbers."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import take_branches_of

from gpt1_jax.ops import losses

FLOAT32, BFLOAT16 = jnp.dtype("float32"), jnp.dtype("bfloat16")


class Found(NamedTuple):
    """The losses of a problem."""

    nll: jax.Array  # of each token
    loss: jax.Array  # their weighted sum
    thrice: jax.Array  # three times the same, where gradients are taken
    gradients: tuple  # of that by the hidden states, the softmax rows and the weights


@functools.partial(jax.jit, static_argnums=(4, 5))
def compute(hidden, unembedding, tokens, weights, dtype=FLOAT32, chunk=0):
    """All in one program: compiling is what takes the time."""
    given = hidden, unembedding, tokens, weights
    loss = functools.partial(losses.next_token_loss, dtype=dtype, chunk=chunk)
    nll = losses.next_token_nll(*given[:3], dtype, chunk)
    by = jax.value_and_grad(lambda *given: 3 * loss(*given), argnums=(0, 1, 3))
    return Found(nll, loss(*given), *by(*given))


@functools.partial(jax.jit, static_argnums=4)
def compute_plainly(hidden, unembedding, tokens, weights, dtype=FLOAT32):
    """Token by token; loss and gradients are those of autodiff."""

    def thrice(hidden, unembedding, weights):
        nll = losses.plain_next_token_nll(hidden, unembedding, tokens, dtype)
        return 3 * (weights * nll).sum(), nll

    by = jax.value_and_grad(thrice, argnums=(0, 1, 2), has_aux=True)
    (total, nll), gradients = by(hidden, unembedding, weights)
    return Found(nll, total / 3, total, gradients)


def random_problem(num_seqs=3, seq_len=5, embed_dim=4, rows=11, scale=1.0):
    rng = np.random.default_rng(0)
    hidden = scale * rng.normal(size=(num_seqs, seq_len, embed_dim))
    unembedding = scale * rng.normal(size=(rows, embed_dim))
    tokens = rng.integers(0, rows, (num_seqs, seq_len))
    return hidden.astype(np.float32), unembedding.astype(np.float32), tokens


def random_weights():
    return np.random.default_rng(1).random((3, 5)).astype(np.float32)


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


@pytest.mark.parametrize("chunk", [0, 1, 2, 100])  # with and without a remainder
def test_next_token_nll_equals_numpy(chunk):
    """And the loss, its gradients, and those of what follows it."""
    problem, weights = random_problem(), random_weights()
    nll = numpy_next_token_nll(*problem)
    found = compute(*problem, weights, FLOAT32, chunk)
    np.testing.assert_allclose(found.nll, nll, rtol=1e-5, atol=1e-6)
    for loss in (found.loss, found.thrice / 3):
        assert float(loss) == pytest.approx((weights * nll).sum(), rel=1e-6)
    expected = (*numpy_gradients(*problem, weights), nll)
    for each, numpy_gradient in zip(found.gradients, expected, strict=True):
        np.testing.assert_allclose(each / 3, numpy_gradient, atol=5e-6)


@pytest.mark.parametrize(
    ("dtype", "chunk"), [(FLOAT32, 0), (BFLOAT16, 0), (BFLOAT16, 2)]
)
def test_next_token_loss_equals_the_plain_form(dtype, chunk):
    """The nats of each token, and the gradients of their weighted sum.

    Both round operands to bfloat16, and all results are float32.
    """
    problem = random_problem(embed_dim=64, rows=137, scale=0.3), random_weights()
    plain = compute_plainly(*problem[0], problem[1], dtype)
    actual = compute(*problem[0], problem[1], dtype, chunk)
    assert {x.dtype for x in jax.tree.leaves(actual)} == {FLOAT32}
    np.testing.assert_allclose(actual.nll, plain.nll, rtol=1e-5, atol=2e-6)
    error = 1e-6 if dtype == FLOAT32 else 2**-7
    for ours, theirs in zip(actual.gradients, plain.gradients, strict=True):
        assert np.abs(ours - theirs).max() < error * np.abs(theirs).max()


def test_next_token_nll_of_a_hand_computed_example():
    """Scores (1, -1) and label 0 cost ln(1 + e^-2); label 1 costs 2 nats more."""
    hidden = np.ones((1, 3, 1), np.float32)
    unembedding = np.float32([[1.0], [-1.0]])
    tokens = np.array([[1, 0, 1]])
    found = compute(hidden, unembedding, tokens, np.float32([[1.0, 10.0, 100.0]]))
    np.testing.assert_allclose(found.nll, [[0.126928, 2.126928, 0.0]], atol=1e-6)
    assert float(found.loss) == pytest.approx(21.396208, abs=1e-5)


def test_next_token_nll_counts_position_rows_in_the_softmax():
    """More rows than tokens, as released: the rest only adds to the normaliser."""
    hidden, unembedding, tokens = random_problem(rows=11)
    tokens = tokens % 7
    fewer = compute(hidden, unembedding[:7], tokens, random_weights()).nll
    more = compute(hidden, unembedding, tokens, random_weights()).nll
    scores = hidden[:, :-1].astype(np.float64) @ unembedding.T
    added = np.log(np.exp(scores).sum(-1)) - np.log(np.exp(scores[..., :7]).sum(-1))
    np.testing.assert_allclose((more - fewer)[:, :-1], added, atol=2e-6)


@pytest.mark.parametrize(("dtype", "sign"), [(FLOAT32, 1), (BFLOAT16, -1)])
def test_loss_survives_huge_logits(dtype, sign):
    """All scores far above or below zero, where the padding's would be zero."""
    hidden = np.full((1, 3, 4), 50.0, np.float32)
    unembedding = sign * (50.0 + np.arange(20, dtype=np.float32).reshape(5, 4) / 8)
    tokens, weights = np.array([[0, 1, 4]]), np.ones((1, 3), np.float32)
    found = compute(hidden, unembedding, tokens, weights, dtype)
    rounded = (x.astype(dtype).astype(np.float64) for x in (hidden, unembedding.T))
    scores = np.matmul(*rounded)
    assert np.abs(scores).min() > 9000
    normalisers = np.logaddexp.reduce(scores, -1)[:, :2]
    expected = normalisers - scores[0, 0, [1, 4]]
    np.testing.assert_allclose(found.nll[:, :2], expected, rtol=1e-6)
    for each in found.gradients:
        assert np.isfinite(each).all()


def by_branches_of(platform, monkeypatch):
    """`compute` in bfloat16 on another platform, rounded where the program says so."""
    take_branches_of(platform, monkeypatch)
    return jax.jit(
        lambda *given: compute.__wrapped__(*given, dtype=BFLOAT16),
        compiler_options={"xla_allow_excess_precision": False},
    )


def problem_of_scores(of_hidden, of_rows, rows=11):
    """A problem, its operands rounded to bfloat16, with scores near a product."""
    hidden, unembedding, tokens = random_problem(scale=0.3, rows=rows)
    hidden[..., 0], unembedding[:, 0] = of_hidden, of_rows
    rounded = (x.astype(BFLOAT16).astype(np.float32) for x in (hidden, unembedding))
    return *rounded, tokens, random_weights()


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_rows_filled_up_on_accelerators_change_nothing(monkeypatch, platform):
    """11 rows become 128, none of them seen."""
    problems = [problem_of_scores(8.0, sign * 8.0) for sign in (1, -1)]
    expected = [compute(*given) for given in problems]
    there = by_branches_of(platform, monkeypatch)
    for given, usual in zip(problems, expected, strict=True):
        actual = there(*given)
        # Scores are rounded to bfloat16, which has steps of 1/4 and 1/2 near 64.
        np.testing.assert_allclose(actual.nll, usual.nll, atol=0.5)
        assert np.abs(actual.nll - usual.nll).max() > 1e-3, "they are not"
        for each, exact in zip(actual.gradients[:2], usual.gradients, strict=False):
            assert each.shape == exact.shape
            assert np.abs(each - exact).max() < 0.25 * np.abs(exact).max()
    # The scores of rows filled up are 0, and e^200 is too much for float32.
    found = there(*problem_of_scores(10.0, -20.0))
    assert all(np.isfinite(each).all() for each in found.gradients[:2])


def test_a_group_of_rows_filled_up_alone_gives_no_nan(monkeypatch):
    """As a GPU has it of 5 rows."""
    found = by_branches_of("cuda", monkeypatch)(*problem_of_scores(10.0, -20.0, rows=5))
    assert all(np.isfinite(each).all() for each in found.gradients[:2])


@pytest.mark.parametrize(
    ("platform", "rows", "chunk"), [("tpu", 137, 2), ("cuda", 137, 0), ("cuda", 144, 2)]
)
def test_loss_of_an_accelerator_equals_the_plain_form(
    monkeypatch, platform, rows, chunk
):
    """On a TPU sums of powers of e as they are, or from the largest if one overflows.

    On a GPU sums of groups, nine of 144 rows. Scores are up to 1, 70, 1000; and at most
    -300, whose powers are all zero.
    """
    take_branches_of(platform, monkeypatch)
    there = jax.jit(functools.partial(compute.__wrapped__, chunk=chunk))
    for size, error in ((0.3, 1e-5), (4.0, 1e-4), (20.0, 1e-3), (-20.0, 1e-3)):
        hidden, unembedding, tokens = random_problem(embed_dim=4, rows=rows)
        hidden, unembedding = abs(size) * np.abs(hidden), size * np.abs(unembedding)
        hidden, unembedding = hidden + (size < 0), unembedding - 5 * (size < 0)
        given = *map(np.float32, (hidden, unembedding)), tokens, random_weights()
        expected, actual = compute_plainly(*given), there(*given)
        values = (expected.thrice, *expected.gradients[:2])
        found = (actual.thrice, *actual.gradients[:2])
        for each, exact in zip(found, values, strict=True):
            assert np.abs(each - exact).max() < error * np.abs(exact).max(), size


def test_a_tpu_sums_powers_as_they_are_if_they_are_in_range(monkeypatch):
    hidden, unembedding, tokens = random_problem(rows=137)
    take_branches_of("tpu", monkeypatch)
    seen, cond = [], jax.lax.cond

    def seen_cond(predicate, *branches_and_arrays):
        jax.debug.callback(lambda value: seen.append(bool(value)), predicate)
        return cond(predicate, *branches_and_arrays)

    monkeypatch.setattr(jax.lax, "cond", seen_cond)
    nll = jax.jit(lambda *arrays: losses.next_token_nll(*arrays, tokens, FLOAT32))
    for size in (1, 10):
        nll(np.float32(size) * hidden, np.float32(size) * unembedding)
        jax.effects_barrier()
    assert seen == [True, False]


def test_training_loss_keeps_no_logits():
    """Its memory is a chunk's scores, not the batch's."""
    seqs, length, rows, dim = 2, 64, 5000, 8
    shapes = [(seqs, length, dim), (rows, dim), (seqs, length), (seqs, length)]
    dtypes = [jnp.float32, jnp.float32, jnp.int32, jnp.float32]
    specs = [jax.ShapeDtypeStruct(*each) for each in zip(shapes, dtypes, strict=True)]

    def temporary_bytes(chunk):
        loss = functools.partial(losses.next_token_loss, dtype=FLOAT32, chunk=chunk)
        compiled = jax.jit(jax.grad(loss, (0, 1, 3))).lower(*specs).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = 4 * seqs * length * rows
    assert temporary_bytes(0) < 2.2 * logits
    assert temporary_bytes(8) < 0.5 * logits
