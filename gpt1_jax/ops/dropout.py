"""Dropout whose mask is a function of seed, step, site and element.

A counter hash of (seed, step, site, global index of the element) decides whether an
element is kept, with 16 random bits per element. Each hash of 32 bits serves two
elements that lie half a vector or half of the heads apart, so that no device must move
bits to interleave them. The mask is therefore the same on one device or many, for a
whole batch or its accumulated parts, in a scan or unrolled, before or after a restart.
The backward pass asks for it again instead of keeping it. (For a TPU, XLA makes the
bits of the residual sums once and keeps them, 16 for each element.)
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Window = tuple[tuple[int, int], ...]  # (start, size) along each axis of a row


class Noise(NamedTuple):
    """Determines the dropout masks of one training step; None means no dropout."""

    key: jax.Array  # typed key of (seed, step)
    rows: jax.Array  # [N] uint32, the global index of each sequence of the batch


def step_noise(seed: int | jax.Array, step: jax.Array, num_rows: int) -> Noise:
    """The noise of one step over a whole batch of `num_rows` sequences."""
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)
    return Noise(key, jnp.arange(num_rows, dtype=jnp.uint32))


def dropout(
    x: jax.Array,
    rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    *,
    rows: jax.Array | None = None,
    unit_ndim: int = 1,
) -> jax.Array:
    """Inverted dropout: zeroes elements with probability `rate`, rescales the rest.

    Args:
      x: [N, ...] floats; axis 0 runs over `noise.rows`.
      rate: the probability of zero, rounded to a multiple of 2**-16. The scale comes
        from the rounded rate, so the expectation is exact.
      noise: this step's noise; None returns `x`.
      site: the number of this dropout in the forward pass.
      rows: global row indices if they are not `noise.rows`; x is [*rows.shape, ...].
      unit_ndim: how many trailing axes of a row form a unit of `random_bits`.

    Returns:
      An array like `x`.
    """
    if noise is None or rate == 0.0:
        return x
    rows = noise.rows if rows is None else rows
    return _dropout(x, site_words(noise, site), rows, rate, unit_ndim)


def site_words(noise: Noise, site: int | jax.Array) -> jax.Array:
    """[2] uint32, the key of one site's mask, as `keep_mask` takes it."""
    return jax.random.key_data(jax.random.fold_in(noise.key, site))


def plain_dropout(
    x: jax.Array, words: jax.Array, rows: jax.Array, rate: float, unit_ndim: int = 1
) -> jax.Array:
    """The formula of `dropout`; its autodiff keeps the mask."""
    scaled = (x.astype(jnp.float32) * keep_scale(rate)).astype(x.dtype)
    keep = keep_mask(words, rows, x.shape[rows.ndim :], rate, None, unit_ndim)
    return jnp.where(keep, scaled, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _dropout(
    x: jax.Array, words: jax.Array, rows: jax.Array, rate: float, unit_ndim: int
) -> jax.Array:
    return plain_dropout(x, words, rows, rate, unit_ndim)


def _dropout_fwd(x, words, rows, rate, unit_ndim):
    return _dropout(x, words, rows, rate, unit_ndim), (words, rows)


def _dropout_bwd(rate, unit_ndim, residuals, grad):
    """Dropout is linear: the gradient is masked and scaled as the input was."""
    words, rows = residuals
    return _dropout(grad, words, rows, rate, unit_ndim), None, None


_dropout.defvjp(_dropout_fwd, _dropout_bwd)


def keep_scale(rate: float) -> np.float32:
    """1 / P(an element is kept), the factor applied to kept elements."""
    return np.float32(2**16 / (2**16 - keep_threshold(rate)))  # bfloat16 is too coarse


# Inlined, so the program is the same; but equal masks are traced once.
@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5), inline=True)
def keep_mask(
    words: jax.Array,
    rows: jax.Array,
    row_shape: tuple[int, ...],
    rate: float,
    window: Window | None = None,
    unit_ndim: int = 1,
) -> jax.Array:
    """True for each element that is kept; the arguments are those of `random_bits`."""
    bits = random_bits(words, rows, row_shape, window, unit_ndim)
    return bits >= keep_threshold(rate)


def keep_threshold(rate: float) -> int:
    """An element is kept if its 16 random bits are at least this."""
    return round(rate * 2**16)


def random_bits(
    words: jax.Array,
    rows: jax.Array,
    row_shape: tuple[int, ...],
    window: Window | None = None,
    unit_ndim: int = 1,
) -> jax.Array:
    """16 random bits for every element of the given global rows.

    A row of several axes consists of units: vectors along its last axis, or arrays over
    its last `unit_ndim` axes. A unit of S elements has h = ceil(S / 2) hashes. Element
    e of unit u gets half e // h, the lower before the upper, of the hash of the
    counter u h + e % h, where units are numbered through all rows. There are 2**32
    counters; rows beyond are on further pages, whose number is mixed into the key.

    Args:
      words: [2] uint32, the key.
      rows: uint32, global row indices, of any shape.
      row_shape: the shape of one row.
      window: (start, size) along each axis of a row, to compute only a part of it.
      unit_ndim: how many trailing axes of a row form a unit.

    Returns:
      [*rows.shape, *row_shape] uint16; [*rows.shape, *sizes] with a window.
    """
    window = window or tuple((0, size) for size in row_shape)
    starts, sizes = (tuple(pair[i] for pair in window) for i in (0, 1))
    axis = max(0, len(row_shape) - unit_ndim)  # the first of a unit
    outer, unit = row_shape[:axis], row_shape[axis:]
    of_rows = rows.shape + (1,) * len(row_shape)
    counters = row_counters(words, rows, row_shape, unit_ndim)
    first, key = (x.reshape(of_rows) for x in counters)

    def hashed(counter: jax.Array) -> jax.Array:
        return hash_bits(first + counter, key, words[1])

    if unit and sizes[axis] == unit[0] and unit[0] % 2 == 0:
        # Takes both halves of each hash: its elements lie half of this axis apart.
        sizes = (*sizes[:axis], unit[0] // 2, *sizes[axis + 1 :])
        bits = hashed(_flat_index((*outer, unit[0] // 2, *unit[1:]), starts, sizes))
        halves = [bits.astype(jnp.uint16), (bits >> 16).astype(jnp.uint16)]
        return jnp.concatenate(halves, axis=rows.ndim + axis)
    number = _flat_index(outer, starts[:axis], sizes[:axis])
    number = number.reshape(*number.shape, *(1,) * len(unit))
    element = _flat_index(unit, starts[axis:], sizes[axis:])
    half = num_hashes(unit)
    upper = element >= np.uint32(half)
    place = jnp.where(upper, element - np.uint32(half), element)
    bits = hashed(number * np.uint32(half) + place)
    return jnp.where(upper, bits >> 16, bits).astype(jnp.uint16)


def num_hashes(unit: tuple[int, ...]) -> int:
    """How many hashes a unit of this shape takes: ceil(S / 2)."""
    return -(-math.prod(unit) // 2)


def row_counters(
    words: jax.Array,
    rows: jax.Array,
    row_shape: tuple[int, ...],
    unit_ndim: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """The counter of each row's first hash, and its key for `hash_bits`.

    The arguments are those of `random_bits`.

    Returns:
      Two uint32 arrays like `rows`.
    """
    axis = max(0, len(row_shape) - unit_ndim)
    per_row = math.prod(row_shape[:axis]) * num_hashes(row_shape[axis:])
    rows_per_page = min(max(1, 2**32 // per_row), 2**32 - 1)
    page, row = rows // np.uint32(rows_per_page), rows % np.uint32(rows_per_page)
    return row * np.uint32(per_row), words[0] ^ mix(page)  # mix(0) == 0


def hash_bits(counter: jax.Array, key: jax.Array, word: jax.Array) -> jax.Array:
    """The 32 random bits of counters; all are uint32.

    Args:
      counter: the counters of the hashes.
      key: the keys of their rows, from `row_counters`.
      word: the second word of the site's key.
    """
    return hash_folded(fold(counter ^ key), word)


def hash_folded(folded: jax.Array, word: jax.Array) -> jax.Array:
    """`hash_bits` after its first step, `fold(counter ^ key)`.

    Counters that differ only in their lower 16 bits differ in the same bits afterwards.
    """
    return mix(fold(mix_folded(folded)) + word)


def _flat_index(
    shape: tuple[int, ...], starts: tuple[int, ...], sizes: tuple[int, ...]
) -> jax.Array:
    """[*sizes] uint32, the indices of a window's elements in an array of `shape`."""
    index = jnp.zeros(sizes, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        steps = jax.lax.broadcasted_iota(jnp.uint32, sizes, axis)
        index = index + (steps + np.uint32(starts[axis])) * np.uint32(stride)
        stride *= shape[axis]
    return index


def mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 with full avalanche (C. Wellons' lowbias32)."""
    return fold(mix_folded(fold(x)))


def fold(x: jax.Array) -> jax.Array:
    """The first and the last step of `mix`: the upper 16 bits stay as they are."""
    return x ^ (x >> 16)


def mix_folded(x: jax.Array) -> jax.Array:
    """The steps of `mix` between the first and the last."""
    x = x * np.uint32(0x7FEB352D)
    return (x ^ (x >> 15)) * np.uint32(0x846CA68B)
