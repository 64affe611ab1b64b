"""Causal attention, by kernels where the accelerator has them."""

import jax
import jax.numpy as jnp

from gpt1_jax.kernels.choice import kernels_here
from gpt1_jax.ops.attention import MASK_NDIM, causal_attention
from gpt1_jax.ops.dropout import Noise, row_counters, site_words


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
    kernels = kernels_here("attention", query.shape, query.dtype)
    attend = causal_attention if kernels is None else kernels
    return attend(query, key, value, dropout_rate, noise, site)


def mask_counters(
    shape: tuple[int, ...], rate: float, noise: Noise | None, site: int | jax.Array
) -> tuple[jax.Array, float]:
    """The counters from which kernels compute the dropout masks of the probabilities.

    Args:
      shape: shape of the queries, [N, T, H, K].
      rate: dropout rate.
      noise: this step's noise; None for no dropout.
      site: dropout site of the probabilities.

    Returns:
      [3, N] uint32, for each sequence the counter of its first hash, its key and the
      second word of the site's key, as `hash_bits` takes them; and the rate, 0.0
      without dropout.
    """
    num_seqs, seq_len, num_heads, _ = shape
    if noise is None or rate == 0.0:
        return jnp.zeros((3, num_seqs), jnp.uint32), 0.0
    words = site_words(noise, site)
    probs_shape = num_heads, seq_len, seq_len
    first, key = row_counters(words, noise.rows, probs_shape, MASK_NDIM)
    return jnp.stack([first, key, jnp.broadcast_to(words[1], first.shape)]), rate
