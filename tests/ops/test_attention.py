"""Causal attention against NumPy, and where its dropout acts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.ops.attention import (
    attention_probs,
    causal_attention,
    plain_causal_attention,
)
from gpt1_jax.ops.cached_attention import (
    LayerCache,
    cached_attention,
    in_lanes,
    init_layer_cache,
)
from gpt1_jax.ops.dropout import dropout, step_noise

SHAPE = (2, 7, 3, 4)  # [N, T, H, K]


def random_qkv(seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape).astype(np.float32) for _ in range(3))


FORMS = {
    form.__name__: jax.jit(form, static_argnames=("dropout_rate", "site"))
    for form in (causal_attention, plain_causal_attention)
}
BOTH_FORMS = pytest.mark.parametrize("form", FORMS)


def attend(query, key, value, rate=0.0, noise=None, site=1, form="causal_attention"):
    return FORMS[form](query, key, value, rate, noise, site)


def numpy_probs(query, key):
    """[N, H, T, S], one query and one visible key at a time."""
    num_seqs, seq_len, num_heads, head_dim = query.shape
    probs = np.zeros((num_seqs, num_heads, seq_len, seq_len))
    for n, h, t in np.ndindex(num_seqs, num_heads, seq_len):
        weights = np.exp(key[n, : t + 1, h] @ query[n, t, h] / np.sqrt(head_dim))
        probs[n, h, t, : t + 1] = weights / weights.sum()
    return probs


def test_attention_probs_equal_numpy():
    query, key, _ = random_qkv()
    expected = numpy_probs(query, key)
    np.testing.assert_allclose(attention_probs(query, key), expected, atol=1e-6)


@BOTH_FORMS
def test_causal_attention_equals_numpy(form):
    query, key, value = random_qkv()
    expected = np.einsum("nhts,nshk->nthk", numpy_probs(query, key), value)
    actual = attend(query, key, value, form=form)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_causal_attention_of_the_first_position_is_its_value():
    query, key, value = random_qkv()
    np.testing.assert_array_equal(attend(query, key, value)[:, 0], value[:, 0])


def test_causal_attention_survives_huge_scores():
    query, key, value = (100 * part for part in random_qkv())
    assert np.isfinite(attend(query, key, value)).all()
    gradient = jax.grad(lambda q: attend(q, key, value).sum())(query)
    assert np.isfinite(gradient).all()


@BOTH_FORMS
def test_causal_attention_drops_probabilities_after_the_softmax(form):
    """What remains is rescaled by 1 / (1 - rate), not renormalised to one."""
    query, key, value = random_qkv()
    noise = step_noise(0, jnp.int32(3), SHAPE[0])
    actual = attend(query, key, value, rate=0.5, noise=noise, site=7, form=form)
    ones = jnp.ones((2, 3, 7, 7))  # [N, H, T, S]
    mask = dropout(ones, 0.5, noise, 7, unit_ndim=3)
    assert set(np.unique(mask)) == {0.0, 2.0}
    probs = numpy_probs(query, key) * np.asarray(mask)
    np.testing.assert_allclose(
        actual, np.einsum("nhts,nshk->nthk", probs, value), atol=4e-6
    )


@functools.partial(jax.jit, static_argnames=("rate", "form"))
def output_and_gradients(parts, weights, rate, noise, form):
    """Also by query, key and value, of the output's weighted sum."""
    attended, backward = jax.vjp(
        lambda *parts: attend(*parts, rate, noise, form=form), *parts
    )
    return attended, *backward(weights.astype(attended.dtype))


@pytest.mark.parametrize(
    ("seq_len", "rate"), [(1, 0.3), (7, 0.0), (128, 0.3), (129, 0.0), (300, 0.3)]
)
def test_blocked_form_equals_the_plain_one(seq_len, rate):
    """Output and gradients, with one block of positions or several, and its mask."""
    parts = random_qkv(1, (2, seq_len, 2, 8))
    weights = random_qkv(2, (2, seq_len, 2, 8))[0]
    noise = step_noise(0, np.int32(3), 2)
    plain, blocked = (
        output_and_gradients(parts, weights, rate, noise, form)
        for form in ("plain_causal_attention", "causal_attention")
    )
    for expected, actual in zip(plain, blocked, strict=True):
        highest = float(np.abs(expected).max())
        np.testing.assert_allclose(actual, expected, atol=4e-6 * max(1, highest))


def test_blocked_form_in_bfloat16_is_as_exact_as_the_plain_one():
    shape = 2, 200, 2, 16
    parts = [part.astype(jnp.bfloat16) for part in random_qkv(1, shape)]
    weights = random_qkv(2, shape)[0].astype(jnp.bfloat16).astype(np.float32)
    noise = step_noise(0, np.int32(3), 2)
    exact = [part.astype(np.float32) for part in parts]
    reference = output_and_gradients(
        exact, weights, 0.1, noise, "plain_causal_attention"
    )
    errors = {}
    for form in FORMS:
        actual = output_and_gradients(parts, weights, 0.1, noise, form)
        errors[form] = [
            np.abs(np.asarray(ours, np.float32) - expected).mean()
            for ours, expected in zip(actual, reference, strict=True)
        ]
    blocked, plain = errors["causal_attention"], errors["plain_causal_attention"]
    assert all(error > 0 for error in blocked)
    for ours, theirs in zip(blocked, plain, strict=True):
        assert ours < 1.2 * theirs


def test_blocked_form_keeps_no_square_array_for_the_backward_pass():
    """What is kept grows with T, not with its square."""
    kept = {}
    for seq_len in (256, 512):
        parts = random_qkv(0, (1, seq_len, 1, 4))
        noise = step_noise(0, jnp.int32(3), 1)
        backward = jax.eval_shape(
            lambda *parts: jax.vjp(lambda *p: attend(*p, 0.1, noise), *parts)[1],  # noqa: B023
            *parts,
        )
        kept[seq_len] = sum(leaf.size for leaf in jax.tree.leaves(backward))
    assert kept[512] < 2.1 * kept[256]
    assert kept[512] < 512 * 512 / 4


def test_blocked_form_of_one_query_block_ignores_later_keys():
    query, key, value = random_qkv(0, (1, 300, 2, 4))
    changed = attend(query, key.copy(), value)
    key[:, 200:], value[:, 200:] = 9.0, -9.0
    later = attend(query, key, value)
    np.testing.assert_array_equal(changed[:, :200], later[:, :200])
    assert not np.array_equal(changed[:, 200:], later[:, 200:])


@BOTH_FORMS
def test_causal_attention_without_noise_or_rate_is_without_dropout(form):
    parts = random_qkv()
    expected = attend(*parts)
    noise = step_noise(0, jnp.int32(3), SHAPE[0])
    for rate, given in ((0.5, None), (0.0, noise)):
        actual = attend(*parts, rate, given, form=form)
        np.testing.assert_allclose(actual, expected, atol=1e-6)


@BOTH_FORMS
def test_causal_attention_keeps_bfloat16_but_softmaxes_in_float32(form):
    query, key, value = (jnp.asarray(part, jnp.bfloat16) for part in random_qkv())
    assert attend(query, key, value, form=form).dtype == jnp.bfloat16
    jaxpr = str(jax.make_jaxpr(functools.partial(attend, form=form))(query, key, value))
    [line] = [line for line in jaxpr.splitlines() if "= exp " in line]
    assert "f32[2,3,7,7]" in line


# --- with a cache -------------------------------------------------------------


def test_cached_attention_equals_that_over_the_whole_sequence():
    """Three tokens, then two, then one at a time; the second sequence has one less."""
    query, key, value = random_qkv()
    expected = np.asarray(attend(query, key, value))
    padding = np.asarray([0, 1])
    later = [np.stack([x[0], np.roll(x[1], 1, axis=0)]) for x in (query, key, value)]
    memory = init_layer_cache((2, 9, 3, 4), "float32")
    cached = jax.jit(cached_attention)
    for start, stop in ((0, 3), (3, 5), (5, 6), (6, 7)):
        parts = [x[:, start:stop] for x in later]
        attended, memory = cached(*parts, memory, jnp.int32(start), padding)
        for n, places in enumerate(padding):
            first = max(start, places)
            np.testing.assert_allclose(
                attended[n, first - start :],
                expected[n, first - places : stop - places],
                atol=2e-6,
            )


def test_cached_attention_ignores_padding_and_what_lies_behind():
    query, key, value = random_qkv(shape=(2, 1, 3, 4))
    taken, padding = np.int32(5), np.array([2, 0], np.int32)
    dirty = jax.tree.map(
        lambda x: np.full(x.shape, 9, x.dtype),
        init_layer_cache((2, 9, 3, 4), "float32"),
    )
    places = np.arange(9)
    real = (places >= np.repeat(padding, 3)[:, None]) & (places < taken)
    clean = jax.tree.map(lambda x: x * real[..., None].astype(x.dtype), dirty)
    one, other = (
        jax.jit(cached_attention)(query, key, value, memory, taken, padding)[0]
        for memory in (dirty, clean)
    )
    np.testing.assert_array_equal(one, other)


def test_cached_attention_takes_the_bfloat16_memory_of_accelerators():
    """It is made there only; values weighted on a CPU are float32 too."""
    shape, length = (2, 1, 3, 4), 9
    query, key, value = (x.astype(jnp.bfloat16) for x in random_qkv(shape=shape))
    attended = {}
    for dtype in ("float32", "bfloat16"):
        memory = LayerCache(*(jnp.ones((6, length, 4), dtype) for _ in range(2)))
        arguments = memory, jnp.int32(5), jnp.zeros(2, jnp.int32)
        attended[dtype], longer = jax.jit(cached_attention)(
            query, key, value, *arguments
        )
        assert longer.keys.dtype == dtype
    expected = np.asarray(attended["float32"], np.float32)
    np.testing.assert_allclose(attended["bfloat16"], expected, rtol=2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cached_attention_in_lanes_is_that_of_rows(dtype):
    """One token at a time, over three blocks; a padding ends behind the first block."""
    shape, padding = (2, 70, 3, 4), np.asarray([0, 33])
    query, key, value = (x.astype(dtype) for x in random_qkv(shape=shape))
    rows = init_layer_cache(shape, "float32")
    lanes = in_lanes(rows, dtype)
    assert lanes.keys.shape == (96, 4, 6)
    cached = jax.jit(cached_attention)
    for place in range(shape[1]):
        new = [x[:, place : place + 1] for x in (query, key, value)]
        expected, rows = cached(*new, rows, jnp.int32(place), padding)
        attended, lanes = cached(*new, lanes, jnp.int32(place), padding)
        real = np.flatnonzero(padding <= place)
        attended, expected = (
            np.asarray(x, np.float32)[real] for x in (attended, expected)
        )
        error = 2e-2 if dtype == "bfloat16" else 1e-6  # of probabilities and results
        np.testing.assert_allclose(attended, expected, rtol=error, atol=error)
    again = in_lanes(rows, dtype)
    np.testing.assert_array_equal(lanes.keys, again.keys, strict=True)
    np.testing.assert_array_equal(lanes.values, again.values, strict=True)


@pytest.mark.parametrize("length", [60, 140])  # one block and two
def test_the_first_tokens_are_masked_as_in_the_longer_sequence(length):
    """Causal: outputs and gradients are those of the sequence they begin."""
    noise, whole = step_noise(3, jnp.int32(1), 2), (2, 160, 2, 8)

    @jax.jit
    def both(qkv, weights):
        def alone(*qkv):
            first = (x[:, :length] for x in qkv)
            return causal_attention(*first, 0.5, noise, 1, mask_len=whole[1])

        def within(*qkv):
            return causal_attention(*qkv, 0.5, noise, 1)[:, :length]

        return [
            (output, gradients(weights))
            for output, gradients in (jax.vjp(form, *qkv) for form in (alone, within))
        ]

    weights = random_qkv(1, (2, length, 2, 8))[0]
    found, expected = both(random_qkv(shape=whole), weights)
    for actual, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(actual, other, atol=2e-5)
