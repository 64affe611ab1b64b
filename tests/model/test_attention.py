"""Causal attention against NumPy, and where its dropout acts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.model.attention import causal_attention
from gpt1_jax.model.dropout import dropout, step_noise

SHAPE = (2, 7, 3, 4)  # [N, T, H, K]


def random_qkv(seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape).astype(np.float32) for _ in range(3))


@functools.partial(jax.jit, static_argnames=("rate", "site", "impl"))
def attend(query, key, value, rate=0.0, noise=None, site=1, impl="hash"):
    return causal_attention(
        query,
        key,
        value,
        dropout_rate=rate,
        noise=noise,
        site=site,
        dropout_impl=impl,
    )


def numpy_probs(query, key):
    """[N, H, T, S], one query and one visible key at a time."""
    num_seqs, seq_len, num_heads, head_dim = query.shape
    probs = np.zeros((num_seqs, num_heads, seq_len, seq_len))
    for n, h, t in np.ndindex(num_seqs, num_heads, seq_len):
        weights = np.exp(key[n, : t + 1, h] @ query[n, t, h] / np.sqrt(head_dim))
        probs[n, h, t, : t + 1] = weights / weights.sum()
    return probs


def test_causal_attention_equals_numpy():
    query, key, value = random_qkv()
    expected = np.einsum("nhts,nshk->nthk", numpy_probs(query, key), value)
    np.testing.assert_allclose(attend(query, key, value), expected, atol=2e-6)


def test_causal_attention_of_the_first_position_is_its_value():
    query, key, value = random_qkv()
    np.testing.assert_array_equal(attend(query, key, value)[:, 0], value[:, 0])


def test_causal_attention_survives_huge_scores():
    query, key, value = (100 * part for part in random_qkv())
    assert np.isfinite(attend(query, key, value)).all()
    gradient = jax.grad(lambda q: attend(q, key, value).sum())(query)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("impl", ["hash", "threefry"])
def test_causal_attention_drops_probabilities_after_the_softmax(impl):
    """What remains is rescaled by 1 / (1 - rate), not renormalised to one."""
    query, key, value = random_qkv()
    noise = step_noise(0, jnp.int32(3), SHAPE[0])
    actual = attend(query, key, value, rate=0.5, noise=noise, site=7, impl=impl)
    mask = dropout(jnp.ones((2, 3, 7, 7)), 0.5, noise, 7, impl=impl)  # [N, H, T, S]
    assert set(np.unique(mask)) == {0.0, 2.0}
    probs = numpy_probs(query, key) * np.asarray(mask)
    np.testing.assert_allclose(
        actual, np.einsum("nhts,nshk->nthk", probs, value), atol=4e-6
    )


def test_causal_attention_keeps_bfloat16_but_softmaxes_in_float32():
    query, key, value = (jnp.asarray(part, jnp.bfloat16) for part in random_qkv())
    assert attend(query, key, value).dtype == jnp.bfloat16
    jaxpr = str(jax.make_jaxpr(attend)(query, key, value))
    [line] = [line for line in jaxpr.splitlines() if "= exp " in line]
    assert "f32[2,3,7,7]" in line
