"""The kernels' masks, and their tiles; interpreted on a CPU."""

import functools

import jax
import numpy as np
import pytest

from gpt1_jax.kernels import attention_gpu
from gpt1_jax.kernels.attention_gpu import attention
from gpt1_jax.kernels.attention_gpu_kernels import Plan, Tiles
from gpt1_jax.ops.attention import plain_causal_attention
from gpt1_jax.ops.dropout import Noise, keep_mask, keep_scale, site_words

SITE = 5


def noise_of(*rows):
    return Noise(jax.random.key(3), np.array(rows, np.uint32))


def outputs_and_gradients(form, parts, rate, noise, weights):
    """[N, T, H, K] each: the output, and the gradients of its weighted sum."""

    def both(parts, noise, weights):
        output, backward = jax.vjp(lambda *p: form(*p, rate, noise, SITE), *parts)
        return output, *backward(weights)

    return jax.jit(both)(parts, noise, weights)


@pytest.mark.parametrize(
    ("num_heads", "seq_len"), [(3, 65), (4, 65), (4, 64), (4, 72), (2, 96)]
)
def test_mask_is_that_of_keep_mask_bit_for_bit(num_heads, seq_len):
    """In both passes, for any rows: equal weights and unit vectors show the mask.

    Lengths divided by 1, 8, 32 and 64 have that many keys whose counters are alike.
    """
    rate = 0.3
    shape = 5, seq_len, num_heads, seq_len
    rows_per_page = 2**32 // -(-num_heads * seq_len**2 // 2)
    noise = noise_of(0, 7, rows_per_page - 1, rows_per_page, 3 * rows_per_page + 11)
    units = np.broadcast_to(np.eye(seq_len, dtype=np.float32)[:, None], shape)
    parts = 0 * units, 0 * units, units
    results = outputs_and_gradients(attention, parts, rate, noise, units)
    output, _, _, d_value = map(np.asarray, results)
    probs_shape = num_heads, seq_len, seq_len

    @jax.jit
    def keep_of(noise):
        words = site_words(noise, SITE)
        return keep_mask(words, noise.rows, probs_shape, rate, None, 3)

    keep = np.asarray(keep_of(noise))
    scale = keep_scale(rate) / np.arange(1, seq_len + 1)[:, None]
    expected = np.where(keep, np.tril(np.ones((seq_len, seq_len))) * scale, 0)
    # [N, H, T, S] both, as the forward and the backward pass see them
    for dropped in output.transpose(0, 2, 1, 3), d_value.transpose(0, 2, 3, 1):
        np.testing.assert_array_equal(dropped != 0, expected != 0)
        np.testing.assert_allclose(dropped, expected, rtol=1e-6)


def results_of(form):
    rng = np.random.default_rng(0)
    *parts, weights = rng.normal(size=(4, 1, 130, 2, 8)).astype(np.float32)
    return outputs_and_gradients(form, tuple(parts), 0.2, noise_of(9), weights)


@functools.cache
def plain_results():
    return results_of(plain_causal_attention)


@pytest.mark.parametrize(
    "tiles",
    [
        Plan(Tiles(128, 64, 4, 2), Tiles(128, 128, 4, 1), Tiles(16, 64, 4, 2)),
        Plan(Tiles(64, 64, 4, 1), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 3)),
    ],
)
def test_any_plan_computes_the_same(tiles, monkeypatch):
    """Several blocks on the diagonal, and several before it."""
    monkeypatch.setattr(attention_gpu, "PLAN", tiles)
    expected, actual = plain_results(), results_of(attention)
    for theirs, ours in zip(expected, actual, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
