"""The kernels of `attention_gpu`, in Pallas for Triton.

The method is FlashAttention-2 (Dao 2023, algorithms 1 and 2): scores and probabilities
exist only for one tile of queries and keys at a time. The dropout mask, that of
`gpt1_jax.ops.dropout`, comes first, in a kernel of its own, and is kept as bits for the
others: to hash takes more instructions than the rest of attention.

Blocks on the diagonal come first: in a loop whose sums begin with zeros instead of a
product, the assembler would wait for each `wgmma` by itself.

A program sees one sequence and one head; that of the mask sees all heads that share
their hashes. Arrays of heads are [T, K] there, those with query, key and value
[T, 3, K], those of one float32 for each query [T], and the mask is [T / 64, T, 8], with
T and K padded.
"""

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gpt1_jax.kernels.pallas_gpu import triton
from gpt1_jax.ops.attention import MASKED_SCORE
from gpt1_jax.ops.dropout import (
    fold,
    hash_bits,
    hash_folded,
    keep_scale,
    keep_threshold,
    num_hashes,
)

QUERY, KEY, VALUE = range(3)  # their places in arrays of all three
# A word of the dropout mask has a bit of every eighth of 64 keys.
MASK_BITS, MASK_LANES = 8, 8
MASK_KEYS = MASK_BITS * MASK_LANES


class Tiles(NamedTuple):
    """How a kernel divides its work; all are powers of two."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


class Plan(NamedTuple):
    """The tiles of each kernel.

    `keys` is a multiple of 64. In the two kernels by queries, `queries` is a multiple
    of `keys`; in the third, `keys` is a multiple of `queries`.
    """

    forward: Tiles
    query_gradient: Tiles
    key_value_gradient: Tiles

    @property
    def positions(self) -> int:
        """T is padded to a multiple of this."""
        return max(max(tiles.queries, tiles.keys) for tiles in self)


MASK_TILES = Tiles(queries=64, keys=MASK_KEYS, num_warps=4, num_stages=1)


class Problem(NamedTuple):
    """The constants that the kernels are compiled for, besides the arrays' shapes."""

    seq_len: int  # T, without padding
    num_heads: int  # H
    head_dim: int  # K, without padding
    rate: float  # dropout rate; 0.0: no dropout
    plan: Plan

    @property
    def padded_len(self) -> int:
        """The padded T of the kernels' arrays."""
        return self.seq_len + -self.seq_len % self.plan.positions

    @property
    def sharing(self) -> int:
        """G, how many heads share their hashes."""
        return 1 if self.num_heads % 2 else 2

    @property
    def probs_shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.seq_len, self.seq_len

    @property
    def score_scale(self) -> float:
        """Turns a product of query and key into an exponent of 2."""
        return math.log2(math.e) / math.sqrt(self.head_dim)


class Setup(NamedTuple):
    """The compile-time constants of one kernel, and whether it is interpreted."""

    problem: Problem
    tiles: Tiles
    interpret: bool


def mask_kernel(setup: Setup, seeds_ref: Any, mask_ref: Any) -> None:
    """The dropout mask of a block of queries: a bit for each key that they may see.

    Key 64 b + 8 i + c has bit i of the word c in block b. The matrix units leave every
    eighth element of a product's row to the same thread, so that each reads few words.

    Args:
      setup: the constants.
      seeds_ref: [3] uint32, the counter of the row's first hash, its key and the second
        word of the site's key.
      mask_ref: [G, T / 64, T, 8] uint8, of the G heads that share their hashes.
    """
    problem, tiles, _ = setup
    seeds = [seeds_ref[i] for i in range(3)]
    rows = pl.ds(pl.program_id(0) * tiles.queries, tiles.queries)
    queries = (rows.start + jnp.arange(tiles.queries))[:, None]
    by_query = (pl.program_id(1) * problem.seq_len + queries) * problem.seq_len
    lanes = jnp.arange(MASK_LANES)[None]

    def pack(block: jax.Array, _: None) -> None:
        index = (by_query + (block * MASK_KEYS + lanes)).astype(jnp.uint32)
        words = [jnp.zeros(index.shape, jnp.int32)] * problem.sharing
        for bit in range(MASK_BITS):
            kept = _kept(problem, seeds, index, bit * MASK_LANES)
            words = [
                jnp.where(keep, old | 2**bit, old)
                for old, keep in zip(words, kept, strict=True)
            ]
        for g, packed in enumerate(words):
            mask_ref[g, block, rows] = packed.astype(jnp.uint8)

    stop = jax.lax.div(rows.start + tiles.queries - 1, np.int32(MASK_KEYS)) + 1
    jax.lax.fori_loop(0, stop, pack, None)


def _kept(
    problem: Problem, seeds: Sequence[jax.Array], index: jax.Array, more: int
) -> list[jax.Array]:
    """Which elements of the heads that share their hashes are kept.

    Args:
      problem: the rate and the shape of the mask.
      seeds: as for `mask_kernel`.
      index: uint32, the places in the mask of elements of the first head, with the
        first 8 keys of a block of 64.
      more: a multiple of 8 below 64, added to the keys.
    """
    bound, (first, key, word) = keep_threshold(problem.rate), seeds
    if problem.sharing == 2:
        # Counters of so many keys differ only in their last bits: one fold serves all.
        alike = max(MASK_LANES, problem.seq_len & -problem.seq_len)
        counter = first + (index + np.uint32(more - more % alike))
        bits = hash_folded(fold(counter ^ key) ^ np.uint32(more % alike), word)
        return [x >= np.uint32(bound << 16) for x in (bits << 16, bits)]
    index, half = index + np.uint32(more), np.uint32(num_hashes(problem.probs_shape))
    upper = index >= half
    bits = hash_bits(first + jnp.where(upper, index - half, index), key, word)
    bits = jnp.where(upper, bits >> 16, bits & 0xFFFF)
    return [bits >= np.uint32(bound)]


def forward_kernel(setup: Setup, *refs: Any) -> None:
    """The output of a block of queries, one block of keys after another."""
    qkv_ref, *mask_ref, output_ref, log_sum_ref = refs
    problem, tiles, _ = setup
    block = pl.num_programs(0) - 1 - pl.program_id(0)  # the longest first
    rows = pl.ds(block * tiles.queries, tiles.queries)
    query = qkv_ref[rows, QUERY]
    positions = (rows.start + jnp.arange(tiles.queries))[:, None]

    def step(i, state, diagonal):
        summed, total, highest = state
        columns = pl.ds(i * tiles.keys, tiles.keys)
        scores = _product(query, qkv_ref[columns, KEY], 1, 1)
        if diagonal:
            places = (columns.start + jnp.arange(tiles.keys))[None]
            scores = jnp.where(places <= positions, scores, MASKED_SCORE)
        new_highest = jnp.maximum(highest, scores.max(1) * problem.score_scale)
        weights = _exp2(setup, scores, new_highest[:, None])
        shrink = jnp.exp2(highest - new_highest)
        kept = _drop(setup, weights, mask_ref, i, rows)
        summed = summed * shrink[:, None]
        value = qkv_ref[columns, VALUE]
        summed = summed + _product(kept.astype(value.dtype), value, 1, 0)
        return summed, total * shrink + weights.sum(1), new_highest

    summed = jnp.zeros((tiles.queries, qkv_ref.shape[-1]), jnp.float32)
    total = jnp.zeros(tiles.queries, jnp.float32)
    state = summed, total, total - jnp.inf
    seen = jax.lax.div(rows.start, np.int32(tiles.keys))  # blocks before all queries
    for i in range(tiles.queries // tiles.keys):
        state = step(seen + i, state, diagonal=True)
    state = jax.lax.fori_loop(0, seen, functools.partial(step, diagonal=False), state)
    summed, total, highest = state
    output = summed * (_scale(problem) / total)[:, None]
    output_ref[rows] = output.astype(output_ref.dtype)
    log_sum_ref[rows] = highest + jnp.log2(total)


def query_kernel(setup: Setup, *refs: Any) -> None:
    """The gradient of a block of queries, one block of keys after another.

    With P the probabilities, M the scaled mask, O the output: c = rowsum(dO * O),
    dS = P * (dO V^T * M - c), dQ = dS K / sqrt(K). The scale of M is applied to the
    sums at the end: here dS lacks it, and c, which is also stored, is divided by it.
    """
    qkv_ref, grad_ref, output_ref, log_sum_ref, *mask_ref = refs[:-2]
    d_qkv_ref, correction_ref = refs[-2:]
    problem, tiles, _ = setup
    block = pl.num_programs(0) - 1 - pl.program_id(0)  # the longest first
    rows = pl.ds(block * tiles.queries, tiles.queries)
    positions = (rows.start + jnp.arange(tiles.queries))[:, None]
    query, grad, log_sum = qkv_ref[rows, QUERY], grad_ref[rows], log_sum_ref[rows]
    output = output_ref[rows].astype(jnp.float32)
    correction = (grad.astype(jnp.float32) * output).sum(1) / _scale(problem)
    correction_ref[rows] = correction

    def step(i, d_query, diagonal):
        columns = pl.ds(i * tiles.keys, tiles.keys)
        key = qkv_ref[columns, KEY]
        scores = _product(query, key, 1, 1)
        if diagonal:
            places = (columns.start + jnp.arange(tiles.keys))[None]
            scores = jnp.where(places <= positions, scores, MASKED_SCORE)
        probs = _exp2(setup, scores, log_sum[:, None])
        d_kept = _product(grad, qkv_ref[columns, VALUE], 1, 1)
        d_kept = _drop(setup, d_kept, mask_ref, i, rows)
        d_scores = probs * (d_kept - correction[:, None])
        return d_query + _product(d_scores.astype(key.dtype), key, 1, 0)

    d_query = jnp.zeros((tiles.queries, qkv_ref.shape[-1]), jnp.float32)
    seen = jax.lax.div(rows.start, np.int32(tiles.keys))
    for i in range(tiles.queries // tiles.keys):
        d_query = step(seen + i, d_query, diagonal=True)
    full_step = functools.partial(step, diagonal=False)
    d_query = jax.lax.fori_loop(0, seen, full_step, d_query)
    d_query = d_query * (_scale(problem) / math.sqrt(problem.head_dim))
    d_qkv_ref[rows, QUERY] = d_query.astype(d_qkv_ref.dtype)


def key_value_kernel(setup: Setup, *refs: Any) -> None:
    """The gradients of a block of keys and values, one block of queries after another.

    With A = P * M: dV = A^T dO, dK = dS^T Q / sqrt(K). All tiles are transposed, keys
    by queries, so that these products take them from registers.
    """
    qkv_ref, grad_ref, log_sum_ref, correction_ref, *mask_ref = refs[:-2]
    d_qkv_ref = refs[-1]  # the one before is the same memory
    problem, tiles, _ = setup
    block = pl.program_id(0)
    columns = pl.ds(block * tiles.keys, tiles.keys)
    positions = (columns.start + jnp.arange(tiles.keys))[:, None]
    key, value = qkv_ref[columns, KEY], qkv_ref[columns, VALUE]

    def step(i, state, diagonal):
        d_key, d_value = state
        rows = pl.ds(i * tiles.queries, tiles.queries)
        query, grad = qkv_ref[rows, QUERY], grad_ref[rows]
        scores = _product(key, query, 1, 1)
        if diagonal:
            places = (rows.start + jnp.arange(tiles.queries))[None]
            scores = jnp.where(positions <= places, scores, MASKED_SCORE)
        probs = _exp2(setup, scores, log_sum_ref[rows][None])
        kept = _drop(setup, probs, mask_ref, block, rows, transposed=True)
        d_value = d_value + _product(kept.astype(grad.dtype), grad, 1, 0)
        d_kept = _product(value, grad, 1, 1)
        d_scores = kept * d_kept - probs * correction_ref[rows][None]
        d_key = d_key + _product(d_scores.astype(query.dtype), query, 1, 0)
        return d_key, d_value

    zeros = jnp.zeros((tiles.keys, qkv_ref.shape[-1]), jnp.float32)
    state = zeros, zeros
    start = jax.lax.div(columns.start, np.int32(tiles.queries))
    for i in range(tiles.keys // tiles.queries):
        state = step(start + i, state, diagonal=True)
    start = start + tiles.keys // tiles.queries
    stop = qkv_ref.shape[0] // tiles.queries
    full_step = functools.partial(step, diagonal=False)
    d_key, d_value = jax.lax.fori_loop(start, stop, full_step, state)
    d_key = d_key * (_scale(problem) / math.sqrt(problem.head_dim))
    d_qkv_ref[columns, KEY] = d_key.astype(d_qkv_ref.dtype)
    d_qkv_ref[columns, VALUE] = (d_value * _scale(problem)).astype(d_qkv_ref.dtype)


def _drop(
    setup: Setup,
    tile: jax.Array,
    mask_ref: Sequence[Any],
    block: jax.Array,
    rows: Any,
    transposed: bool = False,
) -> jax.Array:
    """Zeroes the elements of a tile that the mask drops; the caller scales the rest.

    Args:
      setup: the constants.
      tile: float32, queries by keys, or transposed.
      mask_ref: the reference to the mask; none without dropout.
      block: the number of the tile's block of keys.
      rows: the tile's queries.
      transposed: whether the tile is keys by queries.
    """
    if not mask_ref:
        return tile
    num_blocks = setup.tiles.keys // MASK_KEYS
    words = mask_ref[0][pl.ds(block * num_blocks, num_blocks), rows].astype(jnp.int32)
    bits = np.int32(1) << jnp.arange(MASK_BITS)
    if transposed:  # [blocks, 8 bits, 8 words, queries]
        kept = words.swapaxes(1, 2)[:, None] & bits[:, None, None]
    else:  # [queries, blocks, 8 bits, 8 words]
        kept = words.swapaxes(0, 1)[:, :, None] & bits[:, None]
    kept = kept.reshape(tile.shape)
    if setup.interpret:
        return jnp.where(kept != 0, tile, 0.0)
    # The compiler would select after rounding to bfloat16, which takes longer.
    return _assembled(
        """{
        .reg .pred kept;
        setp.ne.s32 kept, $2, 0;
        selp.f32 $0, $1, 0f00000000, kept;
        }""",
        tile,
        kept,
        "=f,f,r",
    )


def _exp2(setup: Setup, scores: jax.Array, shift: jax.Array) -> jax.Array:
    """2^(scale * scores - shift); the shift may be [queries, 1] or [1, queries].

    By itself the compiler neither fuses product and difference nor leaves out the
    instructions for subnormal results, which takes more than twice as long.
    """
    scale = setup.problem.score_scale
    if setup.interpret:
        return jnp.exp2(scores * scale - shift)
    [immediate] = struct.unpack("I", struct.pack("f", scale))
    return _assembled(
        f"""{{
        .reg .f32 x, y;
        neg.f32 y, $2;
        fma.rn.ftz.f32 x, $1, 0f{immediate:08X}, y;
        ex2.approx.ftz.f32 $0, x;
        }}""",
        scores,
        jnp.broadcast_to(shift, scores.shape),
        "=f,f,f",
    )


def _assembled(
    text: str, left: jax.Array, right: jax.Array, constraints: str
) -> jax.Array:
    """An element-wise function of two arrays, in PTX; the result is float32."""
    [result] = triton.elementwise_inline_asm(
        text,
        args=[left, right],
        constraints=constraints,
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(left.shape, jnp.float32)],
    )
    return result


def _scale(problem: Problem) -> np.float32:
    return keep_scale(problem.rate)


def _product(left: jax.Array, right: jax.Array, *summed: int) -> jax.Array:
    """A matrix product over the given axes, with float32 sums and result."""
    axes = (summed[:1], summed[1:]), ((), ())
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)
