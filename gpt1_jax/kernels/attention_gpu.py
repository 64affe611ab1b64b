"""Causal attention as fused kernels for NVIDIA GPUs, dropout included.

No [T, T] array is ever in memory except the dropout mask, a bit for each score. On a
CPU the kernels are interpreted, for tests.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from gpt1_jax.kernels import pallas_gpu
from gpt1_jax.kernels.attention import mask_counters
from gpt1_jax.kernels.attention_gpu_kernels import (
    MASK_KEYS,
    MASK_LANES,
    MASK_TILES,
    Plan,
    Problem,
    Setup,
    Tiles,
    forward_kernel,
    key_value_kernel,
    mask_kernel,
    query_kernel,
)
from gpt1_jax.kernels.pallas_gpu import Launch
from gpt1_jax.ops.dropout import Noise

# Chosen by the compiler's output for an H100 with K = 64; no others have been timed.
# 64 rows and 4 warps are one `wgmma`; larger tiles compute more scores that are masked.
# With two stages a tile is loaded during the step before. Registers leave room for
# four programs at a time of the first two kernels, and three of the last.
PLAN = Plan(
    forward=Tiles(queries=64, keys=64, num_warps=4, num_stages=2),
    query_gradient=Tiles(queries=64, keys=64, num_warps=4, num_stages=2),
    # It has four sums for each key: with 64 queries there is room for two programs.
    key_value_gradient=Tiles(queries=32, keys=64, num_warps=4, num_stages=2),
)
MIN_HEAD_DIM = 16  # the least that a tensor core's product sums over

# Bytes of a head at one position. Above the first number, shared memory has room for
# one stage; above the second, for none.
_BYTES_FOR_STAGES, _MAX_BYTES = 128, 512


def refusal(shape: tuple[int, ...], dtype: jnp.dtype) -> str:
    """Why the kernels cannot run here on arrays [N, T, H, K]; empty if they can."""
    if why := pallas_gpu.refusal():
        return why
    if _padded_dim(shape[-1]) * jnp.dtype(dtype).itemsize > _MAX_BYTES:
        return f"heads of {shape[-1]} dimensions in {dtype} are too large for them"
    return ""


def _padded_dim(head_dim: int) -> int:
    """The padded K of the kernels' arrays."""
    return max(MIN_HEAD_DIM, pl.next_power_of_2(head_dim))


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
) -> jax.Array:
    """`causal_attention` without arrays of scores, where `refusal` is empty.

    Within `jax.shard_map` each device computes its own sequences. The compiler cannot
    split the kernels by itself: it would have each device compute all.

    For arguments and result see `causal_attention`.
    """
    num_seqs, seq_len, num_heads, head_dim = query.shape
    counters, rate = mask_counters(query.shape, dropout_rate, noise, site)
    problem = Problem(seq_len, num_heads, head_dim, rate, PLAN)
    flat = [x.reshape(num_seqs, seq_len, -1) for x in (query, key, value)]
    qkv = jnp.concatenate(flat, axis=-1)
    qkv = qkv.reshape(num_seqs, seq_len, 3, num_heads, head_dim)
    # Keys beyond T come after every query; dimensions beyond K add zeros to the scores.
    more_dims = _padded_dim(head_dim) - head_dim
    padding = 0, problem.padded_len - seq_len, 0, 0, more_dims
    qkv = jnp.pad(qkv, [(0, more) for more in padding])
    return _fused(qkv, counters.T, problem)[:, :seq_len, :, :head_dim]


# From here on, arrays of heads are [N, T, H, K], or [N, T, 3, H, K] with query, key and
# value; arrays of one float32 for each query are [N, H, T], and the mask is
# [N, H, T / 64, T, 8]. It is made as [N, G, H / G, ..], where G = 2 if heads h and
# h + H / 2 share their hashes. T and K are padded.


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fused(qkv: jax.Array, seeds: jax.Array, problem: Problem) -> jax.Array:
    return _fused_fwd(qkv, seeds, problem)[0]


def _fused_fwd(qkv, seeds, problem):
    """Keeps, besides the output, the mask and log2 of each query's sum of exp2(score).

    Without dropout there is no mask.
    """
    num_seqs, seq_len, _, num_heads, head_dim = qkv.shape
    sharing, plan, mask = problem.sharing, problem.plan, []
    if problem.rate:
        words = seq_len // MASK_KEYS, seq_len, MASK_LANES
        grid = num_heads // sharing, num_seqs
        shape = num_seqs, sharing, grid[0], *words
        whole = (jax.ShapeDtypeStruct(shape, jnp.uint8),)
        made = _call(mask_kernel, problem, MASK_TILES, grid, (seeds,), whole)
        mask = [bits.reshape(num_seqs, num_heads, *words) for bits in made]
    outputs = (
        jax.ShapeDtypeStruct((num_seqs, seq_len, num_heads, head_dim), qkv.dtype),
        jax.ShapeDtypeStruct((num_seqs, num_heads, seq_len), jnp.float32),
    )
    grid = num_heads, num_seqs
    output, log_sum = _call(
        forward_kernel, problem, plan.forward, grid, (qkv, *mask), outputs
    )
    return output, (qkv, output, log_sum, mask)


def _fused_bwd(problem, residuals, grad):
    """dK and dV need rowsum(dO * O), which the kernel of dQ computes and stores.

    The array of its result has room for both.
    """
    qkv, output, log_sum, mask = residuals
    part, grid = qkv.nbytes // 3, (qkv.shape[3], len(qkv))
    d_qkv, correction = _call(
        query_kernel,
        problem,
        problem.plan.query_gradient,
        grid,
        (qkv, grad, output, log_sum, *mask),
        (qkv, log_sum),
        untouched=2 * part,
    )
    inputs = qkv, grad, log_sum, correction, *mask, d_qkv
    [d_qkv] = _call(
        key_value_kernel,
        problem,
        problem.plan.key_value_gradient,
        grid,
        inputs,
        (qkv,),
        aliases={len(inputs) - 1: 0},
        untouched=4 * part,
    )
    return d_qkv, None


_fused.defvjp(_fused_fwd, _fused_bwd)


def _call(
    kernel: Callable[..., None],
    problem: Problem,
    tiles: Tiles,
    grid: tuple[int, int],
    inputs: tuple[jax.Array, ...],
    outputs: tuple[Any, ...],
    **more: Any,
) -> list[jax.Array]:
    """Runs a kernel for each block of positions of each head and sequence of the grid.

    All programs of a sequence and head read the whole arrays of both. They are
    neighbours in the grid, so they find the arrays in the L2 cache.
    """
    block = tiles.keys if kernel is key_value_kernel else tiles.queries
    one_stage = inputs[0].shape[-1] * inputs[0].dtype.itemsize > _BYTES_FOR_STAGES
    launch = Launch(
        f"attention_{kernel.__name__}",
        (problem.padded_len // block, *grid),
        tiles.num_warps,
        1 if one_stage else tiles.num_stages,
        **more,
    )

    def run(interpret: bool, *refs: Any) -> None:
        kernel(Setup(problem, tiles, interpret), *refs)

    return pallas_gpu.run(run, launch, inputs, outputs, _block_spec)


def _block_spec(array: Any) -> pl.BlockSpec:
    """The part of an array that a program sees: its sequence and its heads."""
    ndim = len(array.shape)
    axis = ndim - 2  # of the heads
    if ndim == 3 or array.dtype == jnp.uint8:
        axis = 2 if ndim == 6 else 1  # 6: of the heads that share their hashes
    sliced = {0, axis}
    shape = [None if i in sliced else size for i, size in enumerate(array.shape)]

    def index(i: Any, head: Any, sequence: Any) -> tuple[Any, ...]:
        del i
        places = {axis: head, 0: sequence}  # seeds have no heads: their axis is 0
        return tuple(places.get(i, 0) for i in range(ndim))

    return pl.BlockSpec(shape, index)
