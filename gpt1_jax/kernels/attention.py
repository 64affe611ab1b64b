"""Causal attention, by kernels where the accelerator has them."""

import jax

from gpt1_jax.kernels.find import kernels_here
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.dropout import Noise

MODULES = {"tpu": "attention_tpu", "gpu": "attention_gpu"}


def fused_causal_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
) -> jax.Array:
    """`causal_attention`, without any [T, T] array in an accelerator's memory.

    Output, gradients and dropout masks are those of `causal_attention`, up to rounding.
    Without a kernel, this is `causal_attention`, and a warning says why.

    For arguments and result see `causal_attention`.
    """
    kernels = kernels_here("attention", MODULES, query.shape, query.dtype)
    attend = causal_attention if kernels is None else kernels.attention
    return attend(query, key, value, dropout_rate, noise, site)
