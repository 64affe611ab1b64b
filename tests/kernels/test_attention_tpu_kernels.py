"""What programs of the kernels for TPUs do with masks and with their lanes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gpt1_jax.kernels.attention_tpu_kernels import (
    Sizes,
    for_each_pair,
    hash_halves,
)
from gpt1_jax.ops.attention import MASK_NDIM
from gpt1_jax.ops.dropout import fold, hash_bits, keep_mask, row_counters

WORDS = jnp.array([0x12345678, 0x9ABCDEF0], jnp.uint32)
ROWS = jnp.array([7, 2**32 - 3], jnp.uint32)


def run(kernel, sizes, results, num_results=1):
    """[N, H / 2, *results] int32, what an interpreted kernel writes for each pair."""
    row_shape = sizes.num_heads, sizes.seq_len, sizes.seq_len
    first, row_key = row_counters(WORDS, ROWS, row_shape, MASK_NDIM)
    counters = jnp.stack([first, row_key, jnp.broadcast_to(WORDS[1], first.shape)])
    num_pairs, zeros = sizes.num_heads // 2, (0,) * (1 + len(results))

    def of_pair(pair, *refs):
        kernel(pair, *(ref.at[:, pair.lower] for ref in refs))

    shape = len(ROWS), num_pairs, *results
    return pl.pallas_call(
        functools.partial(for_each_pair, of_pair, sizes),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.int32)] * num_results,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(ROWS), num_pairs // sizes.neighbours),
            in_specs=[],
            out_specs=[pl.BlockSpec((1, *shape[1:]), lambda n, group, _: (n, *zeros))]
            * num_results,
        ),
        interpret=True,
    )(counters)


def test_halves_of_a_hash_are_its_lower_and_its_upper_bits():
    counters = jnp.array([0, 1, 77, 2**31, 2**32 - 1], jnp.uint32)
    key, word = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B)
    bits = np.asarray(hash_bits(counters, key, word))
    lower, upper = hash_halves(fold(counters ^ key), word)
    np.testing.assert_array_equal(lower, bits & 0xFFFF)
    np.testing.assert_array_equal(upper, bits >> 16)


@pytest.mark.parametrize(
    ("seq_len", "start"),
    [
        (500, (0, 0)),
        (500, (128, 128)),
        (500, (128, 384)),
        (512, (128, 384)),
        (64, (0, 0)),
        (272, (0, 128)),  # 16 x 17
    ],
)
def test_masks_are_those_of_keep_mask(seq_len, start):
    """Bit by bit, in any block, for rows of any page."""
    sizes, (key, query) = Sizes(seq_len, 4, 64, 0.3), start
    keys, queries = slice(key, key + 256), slice(query, query + 128)

    def kernel(pair, lower, upper):
        for ref, keep in zip((lower, upper), pair.keep(keys, queries), strict=True):
            ref[0] = keep.astype(jnp.int32)

    actual = jnp.concatenate(run(kernel, sizes, (256, 128), 2), axis=1)
    window = (0, 4), (query, 128), (key, 256)
    row_shape = 4, seq_len, seq_len
    expected = keep_mask(WORDS, ROWS, row_shape, 0.3, window, MASK_NDIM)
    # Beyond the last token there is no mask to compare with, and no need of one.
    real = np.s_[:, :, : seq_len - key, : seq_len - query]
    np.testing.assert_array_equal(actual[real], expected.swapaxes(2, 3)[real])
    assert 0.6 < actual.mean() < 0.8


def test_without_dropout_there_is_no_mask():
    def kernel(pair, ref):
        assert list(pair.keep(slice(0, 8), slice(0, 8))) == [None, None]
        ref[...] = jnp.ones_like(ref)

    assert run(kernel, Sizes(8, 2, 128, 0.0), (8, 128))[0].all()


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_each_program_has_its_own_lanes(head_dim):
    """Those of its pair of heads, and together all of them."""
    neighbours = Sizes(8, 2, head_dim, 0.0).neighbours
    sizes = Sizes(8, 4 * neighbours, head_dim, 0.0)

    def kernel(pair, ref):
        ref[...] = jnp.zeros_like(ref)
        ones = jnp.ones((8, sizes.width))
        for half in (0, 1):
            pair.write(ref, slice(0, 8), half, (2 + half) * pair.only_own(ones))

    [lanes] = run(kernel, sizes, (8, sizes.embed_dim))
    own = np.eye(sizes.num_heads // 2).repeat(head_dim, axis=1)
    expected = np.concatenate([2 * own, 3 * own], axis=1)  # [pairs, D]
    np.testing.assert_array_equal(lanes[0, :, 0], expected)
    assert sizes.width % 128 == 0 and sizes.width % head_dim == 0
