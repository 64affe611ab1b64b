"""Dropout whose mask is a function of seed, step, site and element.

Whether an element is kept is decided by a counter hash of (seed, step, site, global
index of the element), 16 random bits per element. The mask is therefore the same on
one device or many, for a whole batch or its accumulated parts, in a scan or unrolled,
before or after a restart. It is never stored: the backward pass recomputes it.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Window = tuple[tuple[int, int], ...]  # (start, size) along each axis of a row


class Noise(NamedTuple):
    """What determines the dropout masks of one training step; None is no dropout."""

    key: jax.Array  # typed key of (seed, step)
    rows: jax.Array  # [N] uint32, the global index of each sequence of the batch


def step_noise(seed: int | jax.Array, step: jax.Array, num_rows: int) -> Noise:
    """The noise of one step over a whole batch of `num_rows` sequences."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return Noise(key, jnp.arange(num_rows, dtype=jnp.uint32))


def dropout(
    x: jax.Array,
    rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    *,
    rows: jax.Array | None = None,
) -> jax.Array:
    """Inverted dropout: zeroes elements with probability `rate`, rescales the rest.

    Args:
      x: [N, ...] floats; axis 0 runs over `noise.rows`.
      rate: the probability of zero, rounded to a multiple of 2**-16. The scale comes
        from the rounded rate, so the expectation is exact.
      noise: this step's; None returns `x`.
      site: the number of this dropout in the forward pass.
      rows: global row indices if they are not `noise.rows`; x is [*rows.shape, ...].

    Returns:
      An array like `x`.
    """
    if noise is None or rate == 0.0:
        return x
    rows = noise.rows if rows is None else rows
    return _dropout(x, site_words(noise, site), rows, rate)


def site_words(noise: Noise, site: int | jax.Array) -> jax.Array:
    """[2] uint32, the key of one site's mask, as `keep_mask` takes it."""
    return jax.random.key_data(jax.random.fold_in(noise.key, site))


def plain_dropout(
    x: jax.Array, words: jax.Array, rows: jax.Array, rate: float
) -> jax.Array:
    """The formula of `dropout`; its autodiff keeps the mask."""
    scaled = (x.astype(jnp.float32) * keep_scale(rate)).astype(x.dtype)
    return jnp.where(keep_mask(words, rows, x.shape[rows.ndim :], rate), scaled, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dropout(x: jax.Array, words: jax.Array, rows: jax.Array, rate: float) -> jax.Array:
    return plain_dropout(x, words, rows, rate)


def _dropout_fwd(x, words, rows, rate):
    return _dropout(x, words, rows, rate), (words, rows)


def _dropout_bwd(rate, residuals, grad):
    """Dropout is linear: the gradient is masked and scaled as the input was."""
    words, rows = residuals
    return _dropout(grad, words, rows, rate), None, None


_dropout.defvjp(_dropout_fwd, _dropout_bwd)


def keep_scale(rate: float) -> np.float32:
    """1 / P(an element is kept), the factor applied to kept elements."""
    return np.float32(2**16 / (2**16 - _threshold(rate)))  # bfloat16 is too coarse


# Inlined, so the program is the same; but equal masks are traced once.
@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
def keep_mask(
    words: jax.Array,
    rows: jax.Array,
    row_shape: tuple[int, ...],
    rate: float,
    window: Window | None = None,
) -> jax.Array:
    """Which elements are kept; for the arguments see `random_bits`."""
    return random_bits(words, rows, row_shape, window) >= _threshold(rate)


def _threshold(rate: float) -> int:
    return round(rate * 2**16)


def random_bits(
    words: jax.Array,
    rows: jax.Array,
    row_shape: tuple[int, ...],
    window: Window | None = None,
) -> jax.Array:
    """16 random bits for every element of the given global rows.

    Element e of row r has the flat index i = r * prod(row_shape) + e. Its bits are
    half `i % 2` of the 32-bit hash of the counter `i // 2`. The index numbers 2**32
    elements; rows beyond are on further pages, whose number is mixed into the key.

    Args:
      words: [2] uint32, the key.
      rows: uint32, global row indices, of any shape.
      row_shape: the shape of one row.
      window: (start, size) along each axis of a row, for only part of it.

    Returns:
      [*rows.shape, *row_shape] uint16; [*rows.shape, *sizes] with a window.
    """
    window = window or tuple((0, size) for size in row_shape)
    starts, sizes = (tuple(pair[i] for pair in window) for i in (0, 1))
    row_size = math.prod(row_shape)
    rows_per_page = min(max(1, 2**32 // row_size), 2**32 - 1)
    page, row = rows // np.uint32(rows_per_page), rows % np.uint32(rows_per_page)
    per_row = rows.shape + (1,) * len(row_shape)
    key = (words[0] ^ _mix(page)).reshape(per_row)  # _mix(0) == 0
    first = (row * np.uint32(row_size)).reshape(per_row)
    lasts = (row_shape[-1:], starts[-1:], sizes[-1:])
    if row_shape and not any(last[0] % 2 for last in lasts):
        # Each hash serves two neighbours.
        halved = ((*each[:-1], each[-1] // 2) for each in (row_shape, starts, sizes))
        counter = (first >> 1) + _flat_index(*halved)
        hashed = _mix(_mix(counter ^ key) + words[1])
        halves = jax.lax.bitcast_convert_type(hashed, jnp.uint16)
        return halves.reshape(*rows.shape, *sizes)
    index = first + _flat_index(row_shape, starts, sizes)
    hashed = _mix(_mix((index >> 1) ^ key) + words[1])
    return (hashed >> (16 * (index & 1))).astype(jnp.uint16)


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


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 with full avalanche (C. Wellons' lowbias32)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
