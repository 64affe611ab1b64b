"""Causal attention for TPUs: one kernel forward, one backward (Pallas).

Scores, probabilities and dropout masks stay on the chip; no array of them is ever in
memory. Results and masks are those of `attention`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gpt1_jax.kernels.attention import mask_counters
from gpt1_jax.kernels.attention_tpu_kernels import (
    Sizes,
    backward_kernel,
    for_each_pair,
    forward_kernel,
)
from gpt1_jax.ops.dropout import Noise

MAX_SEQ_LEN = 1024  # the kernels hold all blocks of a sequence at once
_MAX_CHIP_BYTES = 56 * 2**20  # TPU v5p and v7 have 64 MiB; v5e and v6e have 128


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
) -> jax.Array:
    """`causal_attention` as a kernel, where `refusal` is empty.

    The kernel reads query, key and value from one array; if they are its parts, XLA
    passes it on as it is. On other devices than TPUs the kernel is interpreted: the
    same numbers, slowly.

    For arguments and result see `causal_attention`.
    """
    num_seqs, seq_len, num_heads, head_dim = query.shape
    counters, rate = mask_counters(query.shape, dropout_rate, noise, site)
    sizes = Sizes(seq_len, num_heads, head_dim, rate)
    parts = [x.reshape(num_seqs, seq_len, -1) for x in (query, key, value)]
    # Padding has no effect: its keys come after all queries, and the gradient of its
    # outputs is zero.
    padding = (0, 0), (0, sizes.padded_len - seq_len), (0, 0)
    qkv = jnp.pad(jnp.concatenate(parts, axis=-1), padding)
    return _attention(qkv, counters, sizes)[:, :seq_len].reshape(query.shape)


def refusal(shape: tuple[int, ...], dtype: jnp.dtype) -> str:
    """Why there is no kernel for such arrays [N, T, H, K]; empty if there is."""
    _, seq_len, num_heads, head_dim = shape
    sizes = Sizes(seq_len, num_heads, head_dim, 0.0)
    if num_heads % (2 * sizes.neighbours):
        return (
            f"heads of {head_dim} fill the chip's vectors by {2 * sizes.neighbours}, "
            f"and there are {num_heads}"
        )
    if seq_len > MAX_SEQ_LEN or _chip_bytes(sizes, dtype) > _MAX_CHIP_BYTES:
        return f"sequences of {seq_len} tokens do not fit on the chip"
    return ""


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _attention(qkv: jax.Array, counters: jax.Array, sizes: Sizes) -> jax.Array:
    """[N, T, 3 D] to [N, T, D]; counters [3, N] are those of `Pair`."""
    return _attention_fwd(qkv, counters, sizes)[0]


def _attention_fwd(qkv, counters, sizes):
    num_seqs, seq_len, _ = qkv.shape
    results = (
        jax.ShapeDtypeStruct((num_seqs, seq_len, sizes.embed_dim), qkv.dtype),
        jax.ShapeDtypeStruct((num_seqs, sizes.num_heads, 1, seq_len), jnp.float32),
    )
    output, log_sum = _run(forward_kernel, sizes, results, counters, [qkv])
    return output, (qkv, output, log_sum, counters)


def _attention_bwd(sizes, residuals, grad):
    qkv, output, log_sum, counters = residuals
    results = (jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),)
    arrays = qkv, output, grad, log_sum
    return *_run(backward_kernel, sizes, results, counters, arrays), None


_attention.defvjp(_attention_fwd, _attention_bwd)


def _run(
    kernel: Callable[..., None],
    sizes: Sizes,
    results: tuple[jax.ShapeDtypeStruct, ...],
    counters: jax.Array,
    arrays: Sequence[jax.Array],
) -> Any:
    """Runs a kernel for every sequence and pair of heads.

    From an array [N, T, x D] a program reads, for each D, the lanes of its lower and
    its upper heads. It has other arrays and the results whole, for one sequence.
    """
    half = sizes.embed_dim // 2 // sizes.width  # of an array's vectors

    def whole(array: Any) -> pl.BlockSpec:
        zeros = (0,) * (array.ndim - 1)
        return pl.BlockSpec((1, *array.shape[1:]), lambda n, group, _: (n, *zeros))

    def lanes(first: int) -> pl.BlockSpec:
        shape = 1, sizes.padded_len, sizes.width
        return pl.BlockSpec(shape, lambda n, group, _: (n, 0, first + group))

    operands, specs = [], []
    for array in arrays:
        parts = 2 * array.shape[2] // sizes.embed_dim if array.ndim == 3 else 0
        specs += [lanes(i * half) for i in range(parts)] or [whole(array)]
        operands += [array] * max(1, parts)

    def call(interpret: bool, *operands: jax.Array) -> Any:
        sums = (2, sizes.padded_len, sizes.width), (2, 1, sizes.padded_len)
        scratch = [pltpu.VMEM(shape, jnp.float32) for shape in sums]
        return pl.pallas_call(
            functools.partial(for_each_pair, kernel, sizes),
            out_shape=results,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(len(operands[1]), half),
                in_specs=specs,
                out_specs=[whole(result) for result in results],
                scratch_shapes=scratch if kernel is backward_kernel else [],
            ),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "arbitrary"),
                vmem_limit_bytes=_chip_bytes(sizes, results[0].dtype),
            ),
            name=kernel.__name__,
            interpret=interpret,
        )(*operands)

    compiled, interpreted = (functools.partial(call, how) for how in (False, True))
    return jax.lax.platform_dependent(
        counters, *operands, tpu=compiled, default=interpreted
    )


def _chip_bytes(sizes: Sizes, dtype: jnp.dtype) -> int:
    """Bytes of the chip's own memory for the backward kernel, which needs the most.

    Arrays are double-buffered; blocks of scores take up to some 16 bytes for each
    element of [T, T].
    """
    length, item = sizes.padded_len, jnp.dtype(dtype).itemsize
    row = 2 * item * (10 * sizes.width + 3 * sizes.embed_dim) + 8 * sizes.width
    return length * (row + 16 * length) + 4 * 2**20
