"""Causal attention as fused kernels for NVIDIA GPUs, dropout included.

No [T, T] array is ever in memory. On a CPU the kernels are interpreted, for tests.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from gpt1_jax.ops.attention import mask_counters
from gpt1_jax.ops.attention_gpu_kernels import (
    Plan,
    Problem,
    Setup,
    Tiles,
    forward_kernel,
    key_value_kernel,
    query_kernel,
    triton,
)
from gpt1_jax.ops.dropout import Noise

# Chosen from what the compiler makes of them for an H100 with K = 64, not measured.
# 64 rows and 4 warps are one `wgmma`; larger tiles compute more that is masked. Two
# stages load a tile during the step before; more leave room for one program only.
PLAN = Plan(
    forward=Tiles(queries=64, keys=64, num_warps=4, num_stages=2),
    query_gradient=Tiles(queries=64, keys=64, num_warps=4, num_stages=2),
    # With its four sums for each key, 64 queries would spill registers.
    key_value_gradient=Tiles(queries=32, keys=64, num_warps=4, num_stages=2),
)
MIN_HEAD_DIM = 16  # the least that a tensor core's product sums over

# Of a head at one position. Above the first, shared memory has room for one stage;
# above the second, for none.
_BYTES_FOR_STAGES, _MAX_BYTES = 128, 512


def refusal(shape: tuple[int, ...], dtype: jnp.dtype) -> str:
    """Why these kernels, or this machine, cannot do it for arrays [N, T, H, K].

    Empty if they can.
    """
    if triton is None:
        return f"JAX {jax.__version__} has no Triton backend of Pallas any more"
    device = jax.local_devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    if not re.fullmatch(r"\d+\.\d+", capability):
        return f"they are for NVIDIA GPUs, and this is a {device.device_kind}"
    if float(capability) < 8.0:
        return (
            "they need an NVIDIA GPU of compute capability 8.0 (A100) or newer, and "
            f"{device.device_kind} has {capability}"
        )
    if _padded_dim(shape[-1]) * jnp.dtype(dtype).itemsize > _MAX_BYTES:
        return f"heads of {shape[-1]} dimensions in {dtype} are too large for them"
    return ""


def _padded_dim(head_dim: int) -> int:
    """K of the kernels' arrays."""
    return max(MIN_HEAD_DIM, pl.next_power_of_2(head_dim))


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
) -> jax.Array:
    """`causal_attention` without any [T, T] array, for what `refusal` does not refuse.

    Within `jax.shard_map` each device computes its own sequences. The compiler cannot
    split the kernels by itself: it would have each device compute all.

    For arguments and result see `causal_attention`.
    """
    _, seq_len, num_heads, head_dim = query.shape
    counters, rate = mask_counters(query.shape, dropout_rate, noise, site)
    problem = Problem(seq_len, num_heads, head_dim, rate, PLAN)
    seeds = jnp.pad(counters.T, ((0, 0), (0, 1)))  # the kernels load a zero, too
    # Keys beyond T come after every query; what is beyond K adds zeros to the scores.
    more_dims = _padded_dim(head_dim) - head_dim
    padding = (0, 0), (0, -seq_len % problem.plan.positions), (0, 0), (0, more_dims)
    inputs = [jnp.pad(x, padding) for x in (query, key, value)]
    shape = *inputs[0].shape[:2], problem.sharing, num_heads // problem.sharing, -1
    output = _fused(*(x.reshape(shape) for x in inputs), seeds, problem)
    return output.reshape(inputs[0].shape)[:, :seq_len, :, :head_dim]


# From here on, arrays of heads are [N, T, G, H / G, K] and those of one float32 for
# each query [N, G, H / G, T], with T and K padded. Of G = 2 heads that share their
# hashes, the first is of the lower half of all heads.


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _fused(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    seeds: jax.Array,
    problem: Problem,
) -> jax.Array:
    return _fused_fwd(query, key, value, seeds, problem)[0]


def _fused_fwd(query, key, value, seeds, problem):
    """Beside the output, log2 of the sum of exp2(score) of each query is kept."""
    inputs = seeds, query, key, value
    num_seqs, seq_len, *heads, _ = query.shape
    per_query = jax.ShapeDtypeStruct((num_seqs, *heads, seq_len), jnp.float32)
    tiles = problem.plan.forward
    output, log_sum = _call(forward_kernel, problem, tiles, inputs, (query, per_query))
    return output, (inputs, output, log_sum)


def _fused_bwd(problem, residuals, grad):
    """dK and dV need rowsum(dO * O), which the kernel of dQ computes and stores."""
    inputs, output, log_sum = residuals
    _, query, key, value = inputs
    inputs = *inputs, grad
    d_query, correction = _call(
        query_kernel,
        problem,
        problem.plan.query_gradient,
        (*inputs, output, log_sum),
        (query, log_sum),
    )
    d_key, d_value = _call(
        key_value_kernel,
        problem,
        problem.plan.key_value_gradient,
        (*inputs, log_sum, correction),
        (key, value),
    )
    return d_query, d_key, d_value, None


_fused.defvjp(_fused_fwd, _fused_bwd)


def _call(
    kernel: Callable[..., None],
    problem: Problem,
    tiles: Tiles,
    inputs: tuple[jax.Array, ...],
    outputs: tuple[Any, ...],
) -> list[jax.Array]:
    """Runs a kernel for each sequence, pair of heads and block of positions.

    All programs of a sequence and pair are given the whole arrays of both. They are
    neighbours in the grid: what they read is in the L2 cache.
    """
    num_seqs, seq_len, _, pairs, head_dim = inputs[1].shape
    block = tiles.keys if kernel is key_value_kernel else tiles.queries
    one_stage = head_dim * inputs[1].dtype.itemsize > _BYTES_FOR_STAGES
    num_stages = 1 if one_stage else tiles.num_stages

    def call(*inputs: jax.Array, interpret: bool) -> list[jax.Array]:
        params = None
        if not interpret:
            params = triton.CompilerParams(tiles.num_warps, num_stages)
        return pl.pallas_call(
            functools.partial(kernel, Setup(problem, tiles, interpret)),
            grid=(seq_len // block, pairs, num_seqs),
            in_specs=[_block_spec(x.shape) for x in inputs],
            out_specs=[_block_spec(x.shape) for x in outputs],
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
            compiler_params=params,
            interpret=interpret,
            name=f"attention_{kernel.__name__}",
        )(*inputs)

    interpreted, compiled = (
        functools.partial(call, interpret=interpret) for interpret in (True, False)
    )
    return jax.lax.platform_dependent(*inputs, cpu=interpreted, default=compiled)


def _block_spec(shape: tuple[int, ...]) -> pl.BlockSpec:
    """What a program sees of an array: its sequence and its heads."""
    if len(shape) == 2:  # seeds
        return pl.BlockSpec((None, shape[1]), lambda i, h, n: (n, 0))
    if len(shape) == 4:
        per_query = None, shape[1], None, shape[3]
        return pl.BlockSpec(per_query, lambda i, h, n: (n, 0, h, 0))
    heads = None, shape[1], shape[2], None, shape[4]
    return pl.BlockSpec(heads, lambda i, h, n: (n, 0, 0, h, 0))
