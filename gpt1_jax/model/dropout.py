"""The one definition of a dropout mask.

Whether an element is kept is a pure function of (seed, step, site, global index
of the element): a counter hash, 16 random bits an element. The mask is therefore
the same on one device or many, in one batch or in accumulated parts, in a scan
or unrolled, before or after a restart; and it is never stored, because dropout
is linear in its input and the backward pass forms the same mask again.

A forward pass has 1 + 3 L sites: the embedding, and in each block the attention
probabilities, the attention output and the MLP output (37 for GPT-1).
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

EMBED_SITE = 0
ATTN_PROBS, ATTN_OUTPUT, MLP_OUTPUT = 1, 2, 3
EMBED_POSITION_SITE = 2**32 - 1  # only for embed_dropout_on="lookups"


def block_site(layer: int | jax.Array, place: int) -> int | jax.Array:
    """The site of one place (1, 2, 3) in one layer; `layer` may be traced."""
    return 3 * layer + place


Window = Sequence[tuple[int, int]]  # (start, size) along each axis of a row


class Noise(NamedTuple):
    """What dropout draws from in one training step; None means no dropout."""

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
    impl: str = "hash",
    rows: jax.Array | None = None,
) -> jax.Array:
    """Inverted dropout: zeroes elements with probability `rate`, rescales the rest.

    Args:
      x: [N, ...] floats; axis 0 runs over `noise.rows`.
      rate: probability of zero, to within 2**-17 for the hash; the scale is the
        inverse of the probability as realised, so the expectation is exact.
      noise: of this step; None returns `x`.
      site: which of the forward pass's dropouts this is.
      impl: "hash", or "threefry" for `jax.random.bernoulli`.
      rows: global row indices where they are not the batch's; x is [*rows.shape, ..].

    Returns:
      An array like `x`.
    """
    if noise is None or rate == 0.0:
        return x
    rows = noise.rows if rows is None else rows
    if impl == "threefry":
        first = rows.reshape(-1)[0]
        key = jax.random.fold_in(jax.random.fold_in(noise.key, site), first)
        keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
        return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))
    return _hash_dropout(x, site_words(noise, site), rows, rate)


def site_words(noise: Noise, site: int | jax.Array) -> jax.Array:
    """[2] uint32, the key of one site's mask, as `keep_mask` takes it."""
    return jax.random.key_data(jax.random.fold_in(noise.key, site))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _hash_dropout(
    x: jax.Array, words: jax.Array, rows: jax.Array, rate: float
) -> jax.Array:
    scaled = (x.astype(jnp.float32) * keep_scale(rate)).astype(x.dtype)
    return jnp.where(keep_mask(words, rows, x.shape[rows.ndim :], rate), scaled, 0)


def _hash_dropout_fwd(x, words, rows, rate):
    return _hash_dropout(x, words, rows, rate), (words, rows)


def _hash_dropout_bwd(rate, residuals, grad):
    words, rows = residuals
    return _hash_dropout(grad, words, rows, rate), None, None


_hash_dropout.defvjp(_hash_dropout_fwd, _hash_dropout_bwd)


def keep_scale(rate: float) -> np.float32:
    """1 / P(an element is kept), by which the hash's dropout multiplies it."""
    return np.float32(2**16 / (2**16 - _threshold(rate)))  # more than bf16 can hold


def keep_mask(
    words: jax.Array,
    rows: jax.Array,
    row_shape: tuple[int, ...],
    rate: float,
    window: Window | None = None,
) -> jax.Array:
    """Which elements the hash's dropout keeps; for the arguments see `random_bits`."""
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

    Element e of row r has the flat index i = r * prod(row_shape) + e; half
    `i % 2` of the 32-bit hash of the counter `i // 2` is its value. Rows beyond
    the 2**32 elements that a counter can number go to further pages, whose number
    is mixed into the key.

    Args:
      words: [2] uint32, the key.
      rows: uint32, global row indices, of any shape.
      row_shape: the shape of one row.
      window: (start, size) along each axis of a row, to get a part of it.

    Returns:
      [*rows.shape, *row_shape], or [*rows.shape, *sizes] of the window; uint16.
    """
    window = window or [(0, size) for size in row_shape]
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
    """[*sizes] uint32, indices in an array of `shape` of a window's elements."""
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
