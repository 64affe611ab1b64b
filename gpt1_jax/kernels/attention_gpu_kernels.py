"""The kernels of `attention_gpu`, in Pallas for Triton.

The method is FlashAttention-2 (Dao 2023, algorithms 1 and 2): scores, probabilities
and masks exist only for one tile of queries and keys at a time. The mask is the one of
`gpt1_jax.ops.dropout`, recomputed from its hash in each of the three kernels. If the
number of heads is even, heads h and h + H / 2 share their hashes, so one program
computes both.

Blocks on the diagonal come first: in a loop whose sums begin with zeros instead of a
product, the assembler would wait for each `wgmma` by itself.

A program sees one sequence, and one head or such a pair. Arrays of heads are [T, G, K]
there, those with query, key and value [T, 3, G, K], and those of one float32 for each
query [G, T], with T and K padded.
"""

import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gpt1_jax.kernels.pallas_gpu import triton
from gpt1_jax.ops.attention import MASKED_SCORE
from gpt1_jax.ops.dropout import hash_bits, keep_scale, keep_threshold, num_hashes

QUERY, KEY, VALUE = range(3)  # their places in arrays of all three


class Tiles(NamedTuple):
    """How a kernel divides its work; all are powers of two."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


class Plan(NamedTuple):
    """The tiles of each kernel.

    In the two kernels by queries, `queries` is a multiple of `keys`; in the third,
    `keys` is a multiple of `queries`.
    """

    forward: Tiles
    query_gradient: Tiles
    key_value_gradient: Tiles

    @property
    def positions(self) -> int:
        """T is padded to a multiple of this."""
        return max(max(tiles.queries, tiles.keys) for tiles in self)


class Problem(NamedTuple):
    """The constants that the kernels are compiled for, besides the arrays' shapes."""

    seq_len: int  # T, without padding
    num_heads: int  # H
    head_dim: int  # K, without padding
    rate: float  # dropout rate; 0.0: no dropout
    plan: Plan

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


def forward_kernel(setup: Setup, *refs: Any) -> None:
    """The output of a block of queries, one block of keys after another."""
    seeds_ref, qkv_ref, output_ref, log_sum_ref = refs
    problem, tiles, _ = setup
    heads, dropout = range(problem.sharing), _dropout(problem, seeds_ref)
    block = pl.num_programs(0) - 1 - pl.program_id(0)  # the longest first
    rows = pl.ds(block * tiles.queries, tiles.queries)
    queries = [qkv_ref[rows, QUERY, g] for g in heads]
    positions = (rows.start + jnp.arange(tiles.queries))[:, None]

    def step(i, state, diagonal):
        columns = pl.ds(i * tiles.keys, tiles.keys)
        places = positions, (columns.start + jnp.arange(tiles.keys))[None]
        drop = dropout(*places)
        new_state = []
        for g, (summed, total, highest) in zip(heads, state, strict=True):
            scores = _product(queries[g], qkv_ref[columns, KEY, g], 1, 1)
            if diagonal:
                scores = jnp.where(places[1] <= places[0], scores, MASKED_SCORE)
            new_highest = jnp.maximum(highest, scores.max(1) * problem.score_scale)
            weights = _exp2(setup, scores, new_highest[:, None])
            shrink = jnp.exp2(highest - new_highest)
            kept = drop(weights, g).astype(qkv_ref.dtype)
            summed = summed * shrink[:, None]
            summed = summed + _product(kept, qkv_ref[columns, VALUE, g], 1, 0)
            total = total * shrink + weights.sum(1)
            new_state.append((summed, total, new_highest))
        return tuple(new_state)

    summed = jnp.zeros((tiles.queries, qkv_ref.shape[-1]), jnp.float32)
    total = jnp.zeros(tiles.queries, jnp.float32)
    state = tuple((summed, total, total - jnp.inf) for g in heads)
    seen = jax.lax.div(rows.start, np.int32(tiles.keys))  # blocks before all queries
    for i in range(tiles.queries // tiles.keys):
        state = step(seen + i, state, diagonal=True)
    state = jax.lax.fori_loop(0, seen, functools.partial(step, diagonal=False), state)
    for g, (summed, total, highest) in zip(heads, state, strict=True):
        output = summed * (_scale(problem) / total)[:, None]
        output_ref[rows, g] = output.astype(output_ref.dtype)
        log_sum_ref[g, rows] = highest + jnp.log2(total)


def query_kernel(setup: Setup, *refs: Any) -> None:
    """The gradient of a block of queries, one block of keys after another.

    With P the probabilities, M the scaled mask, O the output: c = rowsum(dO * O),
    dS = P * (dO V^T * M - c), dQ = dS K / sqrt(K). The scale of M is applied to the
    sums at the end: here dS lacks it, and c, which is also stored, is divided by it.
    """
    seeds_ref, qkv_ref, grad_ref, output_ref, log_sum_ref, *result_refs = refs
    d_qkv_ref, correction_ref = result_refs
    problem, tiles, _ = setup
    heads, dropout = range(problem.sharing), _dropout(problem, seeds_ref)
    block = pl.num_programs(0) - 1 - pl.program_id(0)  # the longest first
    rows = pl.ds(block * tiles.queries, tiles.queries)
    positions = (rows.start + jnp.arange(tiles.queries))[:, None]
    queries, grads, log_sums, corrections = [], [], [], []
    for g in heads:
        queries.append(qkv_ref[rows, QUERY, g])
        grads.append(grad_ref[rows, g])
        log_sums.append(log_sum_ref[g, rows][:, None])
        output = output_ref[rows, g].astype(jnp.float32)
        correction = (grads[g].astype(jnp.float32) * output).sum(1) / _scale(problem)
        correction_ref[g, rows] = correction
        corrections.append(correction[:, None])

    def step(i, d_queries, diagonal):
        columns = pl.ds(i * tiles.keys, tiles.keys)
        places = positions, (columns.start + jnp.arange(tiles.keys))[None]
        drop = dropout(*places)
        sums = []
        for g in heads:
            keys = qkv_ref[columns, KEY, g]
            scores = _product(queries[g], keys, 1, 1)
            if diagonal:
                scores = jnp.where(places[1] <= places[0], scores, MASKED_SCORE)
            probs = _exp2(setup, scores, log_sums[g])
            d_kept = drop(_product(grads[g], qkv_ref[columns, VALUE, g], 1, 1), g)
            d_scores = (probs * (d_kept - corrections[g])).astype(keys.dtype)
            sums.append(d_queries[g] + _product(d_scores, keys, 1, 0))
        return tuple(sums)

    zeros = jnp.zeros((tiles.queries, qkv_ref.shape[-1]), jnp.float32)
    seen = jax.lax.div(rows.start, np.int32(tiles.keys))
    sums = (zeros,) * len(heads)
    for i in range(tiles.queries // tiles.keys):
        sums = step(seen + i, sums, diagonal=True)
    sums = jax.lax.fori_loop(0, seen, functools.partial(step, diagonal=False), sums)
    for g in heads:
        d_query = sums[g] * (_scale(problem) / math.sqrt(problem.head_dim))
        d_qkv_ref[rows, QUERY, g] = d_query.astype(d_qkv_ref.dtype)


def key_value_kernel(setup: Setup, *refs: Any) -> None:
    """The gradients of a block of keys and values, one block of queries after another.

    With A = P * M: dV = A^T dO, dK = dS^T Q / sqrt(K). All tiles are transposed, keys
    by queries, so that these products take them from registers.
    """
    seeds_ref, qkv_ref, grad_ref, log_sum_ref, correction_ref, _, d_qkv_ref = refs
    problem, tiles, _ = setup
    heads, dropout = range(problem.sharing), _dropout(problem, seeds_ref)
    first = pl.program_id(0) * tiles.keys
    columns = pl.ds(first, tiles.keys)
    positions = (first + jnp.arange(tiles.keys))[:, None]
    keys = [qkv_ref[columns, KEY, g] for g in heads]
    values = [qkv_ref[columns, VALUE, g] for g in heads]

    def step(i, state, diagonal):
        rows = pl.ds(i * tiles.queries, tiles.queries)
        places = (rows.start + jnp.arange(tiles.queries))[None], positions
        drop = dropout(*places)
        new_state = []
        for g, (d_key, d_value) in zip(heads, state, strict=True):
            queries, grads = qkv_ref[rows, QUERY, g], grad_ref[rows, g]
            scores = _product(keys[g], queries, 1, 1)
            if diagonal:
                scores = jnp.where(places[1] <= places[0], scores, MASKED_SCORE)
            probs = _exp2(setup, scores, log_sum_ref[g, rows][None])
            kept = drop(probs, g)
            d_value = d_value + _product(kept.astype(grads.dtype), grads, 1, 0)
            d_kept = _product(values[g], grads, 1, 1)
            d_scores = kept * d_kept - probs * correction_ref[g, rows][None]
            d_key = d_key + _product(d_scores.astype(queries.dtype), queries, 1, 0)
            new_state.append((d_key, d_value))
        return tuple(new_state)

    zeros = jnp.zeros((tiles.keys, qkv_ref.shape[-1]), jnp.float32)
    state = ((zeros, zeros),) * len(heads)
    start = jax.lax.div(first, np.int32(tiles.queries))
    for i in range(tiles.keys // tiles.queries):
        state = step(start + i, state, diagonal=True)
    start = start + tiles.keys // tiles.queries
    stop = qkv_ref.shape[0] // tiles.queries
    full_step = functools.partial(step, diagonal=False)
    state = jax.lax.fori_loop(start, stop, full_step, state)
    for g, (d_key, d_value) in zip(heads, state, strict=True):
        d_key = d_key * (_scale(problem) / math.sqrt(problem.head_dim))
        d_qkv_ref[columns, KEY, g] = d_key.astype(d_qkv_ref.dtype)
        d_qkv_ref[columns, VALUE, g] = (d_value * _scale(problem)).astype(
            d_qkv_ref.dtype
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
    [powers] = triton.elementwise_inline_asm(
        f"""{{
        .reg .f32 x;
        fma.rn.ftz.f32 x, $1, 0f{immediate:08X}, $2;
        ex2.approx.ftz.f32 $0, x;
        }}""",
        args=[scores, jnp.broadcast_to(-shift, scores.shape)],
        constraints="=f,f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(scores.shape, scores.dtype)],
    )
    return powers


def _scale(problem: Problem) -> np.float32:
    return keep_scale(problem.rate)


def _product(left: jax.Array, right: jax.Array, *summed: int) -> jax.Array:
    """A matrix product over the given axes, with float32 sums and result."""
    axes = (summed[:1], summed[1:]), ((), ())
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def _dropout(problem: Problem, seeds_ref: Any) -> Callable[..., Any]:
    """Dropout of tiles of this program's heads, without its scale.

    Args:
      problem: the rate and the shape of the mask.
      seeds_ref: [4] uint32: the counter of the row's first hash, its key, and the
        second word of the site's key.

    Returns:
      A function of the tile's positions, int32 [queries, 1] and [1, keys], or both
      transposed. It returns a function of a tile and the number of its head, below G.
    """
    bound = keep_threshold(problem.rate)
    if bound == 0:
        return lambda queries, keys: lambda tile, g: tile
    first, key, word, zero = (seeds_ref[i] for i in range(4))
    zero = zero.astype(jnp.float32)
    start = pl.program_id(1) * problem.seq_len

    def at(queries: jax.Array, keys: jax.Array) -> Callable[..., jax.Array]:
        by_query = ((start + queries) * problem.seq_len).astype(jnp.uint32)
        keys = keys.astype(jnp.uint32)
        if problem.sharing == 2:
            bits = hash_bits(first + by_query + keys, key, word)
            kept = [x >= np.uint32(bound << 16) for x in (bits << 16, bits)]
            return lambda tile, g: jnp.where(kept[g], tile, zero)
        index, half = by_query + keys, np.uint32(num_hashes(problem.probs_shape))
        upper = index >= half
        counter = first + jnp.where(upper, index - half, index)
        bits = hash_bits(counter, key, word)
        bits = jnp.where(upper, bits >> 16, bits & 0xFFFF)
        return lambda tile, g: jnp.where(bits >= np.uint32(bound), tile, zero)

    return at
