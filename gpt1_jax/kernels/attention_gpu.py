"""Causal attention as fused kernels for NVIDIA GPUs, dropout included.

No [T, T] array is ever in memory. On a CPU the kernels are interpreted, for tests.
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
    Plan,
    Problem,
    Setup,
    Tiles,
    forward_kernel,
    key_value_kernel,
    query_kernel,
)
from gpt1_jax.kernels.pallas_gpu import Launch
from gpt1_jax.ops.dropout import Noise

# Chosen by the compiler's output for an H100 with K = 64; no others have been timed.
# 64 rows and 4 warps are one `wgmma`; larger tiles compute more scores that are masked.
# With two stages a tile is loaded during the step before; more leave room for only one
# program.
PLAN = Plan(
    forward=Tiles(queries=64, keys=64, num_warps=4, num_stages=2),
    query_gradient=Tiles(queries=64, keys=64, num_warps=4, num_stages=2),
    # It has four sums for each key: 64 queries would spill registers.
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
    """`causal_attention` without any [T, T] array, where `refusal` is empty.

    Within `jax.shard_map` each device computes its own sequences. The compiler cannot
    split the kernels by itself: it would have each device compute all.

    For arguments and result see `causal_attention`.
    """
    num_seqs, seq_len, num_heads, head_dim = query.shape
    counters, rate = mask_counters(query.shape, dropout_rate, noise, site)
    problem = Problem(seq_len, num_heads, head_dim, rate, PLAN)
    seeds = jnp.pad(counters.T, ((0, 0), (0, 1)))  # the kernels load a zero, too
    flat = [x.reshape(num_seqs, seq_len, -1) for x in (query, key, value)]
    qkv = jnp.concatenate(flat, axis=-1)
    qkv = qkv.reshape(num_seqs, seq_len, 3, num_heads, head_dim)
    # Keys beyond T come after every query; dimensions beyond K add zeros to the scores.
    more_dims = _padded_dim(head_dim) - head_dim
    padding = 0, -seq_len % problem.plan.positions, 0, 0, more_dims
    qkv = jnp.pad(qkv, [(0, more) for more in padding])
    heads = problem.sharing, num_heads // problem.sharing, qkv.shape[-1]
    output = _fused(qkv.reshape(*qkv.shape[:3], *heads), seeds, problem)
    output = output.reshape(*output.shape[:2], num_heads, -1)
    return output[:, :seq_len, :, :head_dim]


# From here on, arrays of heads are [N, T, G, H / G, K], or [N, T, 3, G, H / G, K] with
# query, key and value; arrays of one float32 for each query are [N, G, H / G, T]. T and
# K are padded. If G = 2 heads share their hashes, the first is in the lower half of all
# heads.


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fused(qkv: jax.Array, seeds: jax.Array, problem: Problem) -> jax.Array:
    return _fused_fwd(qkv, seeds, problem)[0]


def _fused_fwd(qkv, seeds, problem):
    """Keeps, besides the output, log2 of the sum of exp2(score) of each query."""
    num_seqs, seq_len, _, *heads, head_dim = qkv.shape
    outputs = (
        jax.ShapeDtypeStruct((num_seqs, seq_len, *heads, head_dim), qkv.dtype),
        jax.ShapeDtypeStruct((num_seqs, *heads, seq_len), jnp.float32),
    )
    tiles = problem.plan.forward
    output, log_sum = _call(forward_kernel, problem, tiles, (seeds, qkv), outputs)
    return output, (seeds, qkv, output, log_sum)


def _fused_bwd(problem, residuals, grad):
    """dK and dV need rowsum(dO * O), which the kernel of dQ computes and stores.

    The array of its result has room for both.
    """
    seeds, qkv, output, log_sum = residuals
    part = qkv.nbytes // 3
    d_qkv, correction = _call(
        query_kernel,
        problem,
        problem.plan.query_gradient,
        (seeds, qkv, grad, output, log_sum),
        (qkv, log_sum),
        untouched=2 * part,
    )
    [d_qkv] = _call(
        key_value_kernel,
        problem,
        problem.plan.key_value_gradient,
        (seeds, qkv, grad, log_sum, correction, d_qkv),
        (qkv,),
        aliases={5: 0},
        untouched=4 * part,
    )
    return d_qkv, None


_fused.defvjp(_fused_fwd, _fused_bwd)


def _call(
    kernel: Callable[..., None],
    problem: Problem,
    tiles: Tiles,
    inputs: tuple[jax.Array, ...],
    outputs: tuple[Any, ...],
    **more: Any,
) -> list[jax.Array]:
    """Runs a kernel for each sequence, pair of heads and block of positions.

    All programs of a sequence and pair read the whole arrays of both. They are
    neighbours in the grid, so they find the arrays in the L2 cache.
    """
    num_seqs, seq_len, _, _, pairs, head_dim = inputs[1].shape
    block = tiles.keys if kernel is key_value_kernel else tiles.queries
    one_stage = head_dim * inputs[1].dtype.itemsize > _BYTES_FOR_STAGES
    launch = Launch(
        f"attention_{kernel.__name__}",
        (seq_len // block, pairs, num_seqs),
        tiles.num_warps,
        1 if one_stage else tiles.num_stages,
        **more,
    )

    def run(interpret: bool, *refs: Any) -> None:
        kernel(Setup(problem, tiles, interpret), *refs)

    return pallas_gpu.run(run, launch, inputs, outputs, _block_spec)


def _block_spec(array: Any) -> pl.BlockSpec:
    """The part of an array that a program sees: its sequence and its heads."""
    shape = array.shape
    if len(shape) == 2:  # seeds
        return pl.BlockSpec((None, shape[1]), lambda i, h, n: (n, 0))
    if len(shape) == 4:
        per_query = None, shape[1], None, shape[3]
        return pl.BlockSpec(per_query, lambda i, h, n: (n, 0, h, 0))
    zeros = (0,) * (len(shape) - 3)
    heads = None, *shape[1:-2], None, shape[-1]
    return pl.BlockSpec(heads, lambda i, h, n: (n, *zeros, h, 0))
