"""Causal attention against NumPy, and where its dropout acts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import assert_near, kept, mean_errors, with_gradients

from gpt1_jax.ops.attention import (
    attention_probs,
    causal_attention,
    plain_causal_attention,
)
from gpt1_jax.ops.cached_attention import LayerCache, cached_attention, in_lanes
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
    actual = jax.jit(attention_probs)(query, key)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@BOTH_FORMS
def test_causal_attention_equals_numpy(form):
    """Without noise there is no dropout, whatever its rate."""
    query, key, value = random_qkv()
    expected = np.einsum("nhts,nshk->nthk", numpy_probs(query, key), value)
    actual = attend(query, key, value, rate=0.5, form=form)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_causal_attention_survives_huge_scores():
    query, key, value = (100 * part for part in random_qkv())
    for found in with_gradients(attend, np.ones(SHAPE), query, key, value):
        assert np.isfinite(found).all()


@BOTH_FORMS
def test_causal_attention_drops_probabilities_after_the_softmax(form):
    """What remains is rescaled by 1 / (1 - rate), not renormalised to one."""
    query, key, value = random_qkv()
    noise = step_noise(0, jnp.int32(3), SHAPE[0])
    actual = attend(query, key, value, rate=0.5, noise=noise, site=7, form=form)
    ones = np.ones((2, 3, 7, 7), np.float32)  # [N, H, T, S]
    mask = jax.jit(lambda x: dropout(x, 0.5, noise, 7, unit_ndim=3))(ones)
    assert set(np.unique(mask)) == {0.0, 2.0}
    probs = numpy_probs(query, key) * np.asarray(mask)
    np.testing.assert_allclose(
        actual, np.einsum("nhts,nshk->nthk", probs, value), atol=4e-6
    )


def both_forms(parts, weights, rate):
    """Output and gradients of the formula, then those of the blocked form."""
    noise = step_noise(0, np.int32(3), len(weights))
    for form in ("plain_causal_attention", "causal_attention"):
        attention = functools.partial(attend, rate=rate, noise=noise, form=form)
        yield with_gradients(attention, weights, *parts)


@pytest.mark.parametrize(("seq_len", "rate"), [(1, 0.3), (128, 0.0), (300, 0.3)])
def test_blocked_form_equals_the_plain_one(seq_len, rate):
    """Output and gradients, with one block of positions or several, and its mask."""
    parts = random_qkv(1, (2, seq_len, 2, 8))
    weights = random_qkv(2, (2, seq_len, 2, 8))[0]
    expected, actual = both_forms(parts, weights, rate)
    assert_near(actual, expected, 4e-6)


def test_blocked_form_in_bfloat16_is_as_exact_as_the_plain_one():
    shape = 2, 200, 2, 16
    parts = [part.astype(jnp.bfloat16) for part in random_qkv(1, shape)]
    weights = random_qkv(2, shape)[0].astype(jnp.bfloat16).astype(np.float32)
    exact = next(both_forms([x.astype(np.float32) for x in parts], weights, 0.1))
    plain, blocked = (
        mean_errors(found, exact) for found in both_forms(parts, weights, 0.1)
    )
    for ours, theirs in zip(blocked, plain, strict=True):
        assert 0 < ours < 1.2 * theirs


def test_blocked_form_keeps_no_square_array_for_the_backward_pass():
    """What is kept grows with T, not with its square."""
    sizes = {}
    for seq_len in (128, 256):
        noise, parts = step_noise(0, jnp.int32(3), 1), random_qkv(0, (1, seq_len, 1, 4))
        form = functools.partial(attend, rate=0.1, noise=noise)
        sizes[seq_len] = sum(leaf.size for leaf in kept(form, *parts))
    assert sizes[256] < 2.1 * sizes[128]
    assert sizes[256] < 256 * 256 / 4


def test_the_first_tokens_are_masked_as_in_the_longer_sequence():
    """Causal: outputs and gradients are those of the sequence they begin."""
    noise, whole, length = step_noise(3, jnp.int32(1), 2), (2, 160, 2, 8), 140

    def alone(*qkv):
        first = (x[:, :length] for x in qkv)
        return causal_attention(*first, 0.5, noise, 1, mask_len=whole[1])

    def within(*qkv):
        return causal_attention(*qkv, 0.5, noise, 1)[:, :length]

    qkv, weights = random_qkv(shape=whole), random_qkv(1, (2, length, 2, 8))[0]
    found, expected = (with_gradients(f, weights, *qkv) for f in (alone, within))
    assert_near(found, expected, 2e-5, scaled=False)


SEVERAL_TOKENS = [(0, 40), (40, 65), (65, 66), (66, 70)]
ONE_TOKEN = [(place, place + 1) for place in range(70)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("parts", [SEVERAL_TOKENS, ONE_TOKEN], ids=["rows", "lanes"])
def test_cached_attention_equals_that_over_the_whole_sequence(parts, dtype):
    """The second sequence lies behind padding, which ends behind a block of lanes.

    A cache in lanes takes one token at a time. Only on accelerators does
    `init_layer_cache` make one of bfloat16.
    """
    shape, padding = (2, 70, 3, 4), np.asarray([0, 33])
    qkv = [x.astype(dtype) for x in random_qkv(shape=shape)]
    expected = np.asarray(attend(*qkv), np.float32)
    placed = [np.stack([x[0], np.roll(x[1], 33, axis=0)]) for x in qkv]
    cache = LayerCache(*jnp.zeros((2, 6, 70, 4), dtype))
    if parts is ONE_TOKEN:
        cache = in_lanes(cache, dtype)
        assert cache.keys.shape == (96, 4, 6)  # whole blocks of places
    error = 2e-2 if dtype == "bfloat16" else 2e-6  # of probabilities and results
    cached, stored = jax.jit(cached_attention), cache.keys.dtype
    for start, stop in parts:
        new = (x[:, start:stop] for x in placed)
        found, cache = cached(*new, cache, jnp.int32(start), padding)
        assert cache.keys.dtype == stored
        for n, places in enumerate(padding):
            first = max(start, places)
            np.testing.assert_allclose(
                np.asarray(found, np.float32)[n, first - start :],
                expected[n, first - places : max(stop - places, 0)],
                rtol=error,
                atol=error,
            )
