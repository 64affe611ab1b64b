"""Causal multi-head attention with dropout on its probabilities."""

import math

import jax
import jax.numpy as jnp

from gpt1_jax.model.dropout import Noise, dropout

MASKED_SCORE = -1e9  # replaces the score of a key after the query (released code)


def causal_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    dropout_impl: str,
) -> jax.Array:
    """softmax(Q K^T / sqrt(K)) V over the keys at or before each query.

    Scores and softmax are float32; the products take operands of the inputs'
    dtype.

    Args:
      query, key, value: [N, T, H, K].
      dropout_rate: of the probabilities, after the softmax.
      noise: of this step; None for no dropout.
      site: dropout site of the probabilities.
      dropout_impl: see `dropout`.

    Returns:
      [N, T, H, K] in the inputs' dtype.
    """
    seq_len, head_dim = query.shape[1], query.shape[-1]
    scores = jnp.einsum(
        "NTHK,NSHK->NHTS", query, key, preferred_element_type=jnp.float32
    ) / math.sqrt(head_dim)
    causal = jnp.tril(jnp.ones((seq_len, seq_len), bool))
    scores = jnp.where(causal, scores, MASKED_SCORE)  # [N, H, T, S]
    probs = jax.nn.softmax(scores, axis=-1)
    probs = dropout(probs, dropout_rate, noise, site, impl=dropout_impl)
    return jnp.einsum(
        "NHTS,NSHK->NTHK",
        probs.astype(value.dtype),
        value,
        preferred_element_type=jnp.float32,
    ).astype(value.dtype)
