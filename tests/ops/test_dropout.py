"""The dropout mask: what it is a function of, its statistics, its gradient."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import assert_near, kept, with_gradients

from gpt1_jax.config.sections import DropoutRate
from gpt1_jax.errors import UserError
from gpt1_jax.ops import dropout as dropout_module
from gpt1_jax.ops.dropout import plain_dropout, site_words, step_noise

# Compiled as a whole: one by one, these small operations would take minutes.
dropout = jax.jit(dropout_module.dropout, static_argnames=("rate", "site"))
random_bits = jax.jit(
    dropout_module.random_bits, static_argnames=("row_shape", "unit_ndim")
)

WORDS = jnp.array([0x9E3779B9, 0x243F6A88], jnp.uint32)
KEEP = (2**16 - 6554) / 2**16  # of rate 0.1, as 16 bits realise it


def numpy_mix(x):
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def numpy_bits(words, rows, row_shape, unit_ndim=1):
    """The definition in 64-bit arithmetic, element by element (index form)."""
    size, unit_size = math.prod(row_shape), math.prod(row_shape[-unit_ndim:])
    half = (unit_size + 1) // 2
    per_row = size // unit_size * half
    word0, word1 = (np.uint64(word) for word in np.asarray(words))
    unit, element = np.divmod(np.arange(size, dtype=np.uint64), np.uint64(unit_size))
    upper, place = np.divmod(element, np.uint64(half))
    bits = []
    for global_row in np.asarray(rows).tolist():
        page, row = divmod(global_row, min(2**32 // per_row, 2**32 - 1))
        counter = np.uint64(row * per_row) + unit * np.uint64(half) + place
        hashed = numpy_mix(counter ^ word0 ^ numpy_mix(np.uint64(page)))
        hashed = numpy_mix((hashed + word1) & 0xFFFFFFFF)
        bits.append((hashed >> (16 * upper)) & 0xFFFF)
    return np.stack(bits).reshape(-1, *row_shape)


@functools.partial(jax.jit, static_argnames=("shape", "rate"))
def jitted_mask(shape, rate, seed, step, site):
    noise = step_noise(seed, step, shape[0])
    return dropout_module.dropout(jnp.ones(shape), rate, noise, site) != 0


@functools.cache
def keep_mask(shape, rate=0.1, *, seed=0, step=0, site=0):
    """Which elements of an array of `shape` survive."""
    numbers = np.uint32(seed), np.int32(step), np.uint32(site)
    return np.asarray(jitted_mask(shape, rate, *numbers))


def z_of_counts(count, num, probability):
    return (count - num * probability) / np.sqrt(num * probability * (1 - probability))


def test_random_bits_never_change():
    """Were these numbers to change, a resumed run would leave its first half."""
    bits = random_bits(*np.array([[1, 2], [0, 5]], np.uint32), (4,))
    assert bits[0].tolist() == [58256, 8577, 51967, 53523]
    assert bits[1].tolist() == [22950, 29351, 49414, 13660]
    mask = keep_mask((2, 16), 0.5, seed=1, step=2, site=3)
    shown = ["".join(map(str, row.astype(int))) for row in mask]
    assert shown == ["1101011100100101", "0011110111001001"]


SHAPES = (), (1,), (1, 1), (6,), (3, 4), (2, 3, 8), (5,), (4, 3, 3), (3, 3, 3)


@pytest.mark.parametrize("unit_ndim", [1, 2, 3])
def test_random_bits_equal_the_index_form(unit_ndim):
    """Units with an even first axis take two elements of a hash at once."""
    rows = np.array([0, 1, 2, 17, 10**6 + 1, 2**31 + 5], np.uint32)

    @jax.jit
    def bits_of_all_shapes(rows):
        function = dropout_module.random_bits
        return [function(WORDS, rows, s, unit_ndim=unit_ndim) for s in SHAPES]

    for row_shape, bits in zip(SHAPES, bits_of_all_shapes(rows), strict=True):
        assert bits.dtype == jnp.uint16
        assert bits.shape == (6, *row_shape)
        expected = numpy_bits(WORDS, rows, row_shape, unit_ndim)
        np.testing.assert_array_equal(bits, expected)


WINDOWS = (
    ((0, 3), (0, 6), (0, 7)),
    ((0, 3), (2, 4), (0, 4)),
    ((1, 2), (3, 3), (2, 4)),
    ((1, 1), (3, 2), (3, 4)),
    ((2, 1), (0, 1), (6, 1)),
)


@pytest.mark.parametrize("unit_ndim", [1, 2, 3])
@pytest.mark.parametrize("row_shape", [(4, 6, 8), (3, 6, 7)])
def test_random_bits_of_a_window_are_a_part_of_the_whole(row_shape, unit_ndim):
    """Where it holds all of the first axis of a unit, and where it does not."""

    @jax.jit
    def bits_of_all_windows(rows):
        function = dropout_module.random_bits
        windows = None, *WINDOWS
        return [function(WORDS, rows, row_shape, w, unit_ndim) for w in windows]

    whole, *parts = bits_of_all_windows(np.array([0, 5, 2**30], np.uint32))
    for window, part in zip(WINDOWS, parts, strict=True):
        index = tuple(slice(start, start + size) for start, size in window)
        np.testing.assert_array_equal(part, np.asarray(whole)[:, *index])


@pytest.mark.parametrize("row_shape", [(2**10, 2**6), (3, 2**14 + 1), (3, 5000)])
def test_random_bits_turn_to_a_new_page_beyond_the_counter(row_shape):
    """Rows beyond 2**32 elements neither wrap around nor repeat an earlier page."""
    half = (row_shape[-1] + 1) // 2
    per_page = 2**32 // (math.prod(row_shape[:-1]) * half)
    turns = [0, 1, per_page - 1, per_page, per_page + 1, 2 * per_page]
    rows = np.array([*turns, 3 * per_page + 1], np.uint32)
    bits = np.asarray(random_bits(WORDS, rows, row_shape))
    np.testing.assert_array_equal(bits, numpy_bits(WORDS, rows, row_shape))
    flat = bits.reshape(len(rows), -1)
    for one, other in itertools.combinations(flat, 2):
        assert np.sum(one == other) < 12  # chance gives 65536 / 65536 = 1


def test_random_bits_are_uniform():
    """Chi-square over 256 bins of the high and of the low byte, 2**22 draws."""
    bits = np.asarray(
        random_bits(WORDS, np.arange(64, dtype=np.uint32), (2**16,))
    ).ravel()
    for byte in (bits >> 8, bits & 255):
        counts = np.bincount(byte, minlength=256)
        expected = bits.size / 256
        chi_square = np.sum((counts - expected) ** 2 / expected)
        assert abs(chi_square - 255) < 4 * np.sqrt(2 * 255)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_dropout_keeps_a_share_of_one_minus_rate(rate):
    keep = keep_mask((64, 2**14), rate)
    assert abs(z_of_counts(keep.sum(), keep.size, 1 - rate)) < 4
    assert np.abs(z_of_counts(keep.sum(1), 2**14, 1 - rate)).max() < 5


@pytest.mark.parametrize(("rate", "threshold"), [(0.1, 6554), (0.99999, 2**16 - 1)])
def test_dropout_scale_is_the_inverse_of_the_realised_keep_probability(rate, threshold):
    """Also at the largest rate that a configuration takes: the next rounds to 1."""
    noise = step_noise(0, jnp.int32(0), 16)
    found = np.unique(dropout(jnp.ones((16, 2**16)), rate, noise, 0))
    assert found.tolist() == [0.0, np.float32(2**16 / (2**16 - threshold))]
    within = next(iter(DropoutRate.__metadata__))
    within("rate", rate)
    with pytest.raises(UserError, match=r"rate=0\.999993 must lie in .* 0\.99999\]"):
        within("rate", 0.999993)


def test_dropout_scales_bfloat16_in_float32():
    """Rounding 1.1111 to bfloat16 first would scale everything by 1.1094."""
    x = jnp.linspace(0.5, 2, 4096).reshape(4, 1024).astype(jnp.bfloat16)
    noise = step_noise(0, jnp.int32(0), 4)
    y = dropout(x, 0.1, noise, 0)
    assert y.dtype == jnp.bfloat16
    expected = (np.asarray(x, np.float32) * np.float32(1 / KEEP)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(y, np.where(np.asarray(y) != 0, expected, 0))


def random_array(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", ["seed", "step", "site"])
def test_dropout_masks_are_independent_of_each_other(name):
    values = [0, 1, 2, 3, 36, 2**31 - 1] + ([2**32 - 1] if name == "site" else [])
    dropped = [~keep_mask((16, 4096), **{name: value}) for value in values]
    for one, other in itertools.combinations(dropped, 2):
        both = np.sum(one & other)
        assert abs(z_of_counts(both, one.size, (1 - KEEP) ** 2)) < 4


def test_dropout_stores_no_mask_for_the_backward_pass():
    noise, x = step_noise(0, jnp.int32(0), 4), jnp.ones((4, 64, 64))
    leaves = kept(lambda x: dropout_module.dropout(x, 0.1, noise, 0), x)
    assert sum(leaf.size for leaf in leaves) <= 16  # the key and the row numbers
    words = site_words(noise, 0)
    leaves = kept(lambda x: plain_dropout(x, words, noise.rows, 0.1), x)
    assert max(leaf.size for leaf in leaves) >= x.size, "this test sees nothing"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_equals_the_plain_form(dtype):
    """To the bit, its gradient too."""
    noise = step_noise(0, jnp.int32(0), 4)
    x, words = random_array(4, 5, 6).astype(jnp.dtype(dtype)), site_words(noise, 7)
    found, expected = (
        with_gradients(form, x[::-1], x)
        for form in (
            lambda x: dropout_module.dropout(x, 0.3, noise, 7),
            lambda x: plain_dropout(x, words, noise.rows, 0.3),
        )
    )
    assert_near(found, expected, 0)


def test_dropout_without_noise_or_rate_is_the_identity():
    x, noise = random_array(2, 3), step_noise(0, jnp.int32(0), 2)
    assert dropout_module.dropout(x, 0.1, None, 0) is x
    assert dropout_module.dropout(x, 0.0, noise, 0) is x


def test_dropout_of_infinities_gives_zeros():
    noise = step_noise(0, jnp.int32(0), 4)
    found = np.unique(dropout(jnp.full((4, 64), jnp.inf), 0.5, noise, 0))
    assert found.tolist() == [0.0, np.inf]
