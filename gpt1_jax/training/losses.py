"""Language modelling loss (eq. 1) as pure array functions."""

import jax
import jax.numpy as jnp

from gpt1_jax.model.layers import matmul


def token_nll(
    hidden: jax.Array, unembedding: jax.Array, labels: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """Negative log-likelihood of each label under the tied softmax (eq. 2).

    Args:
      hidden: [N, T, D] states of the last layer.
      unembedding: [rows, D], at least as many rows as label values.
      labels: [N, T] integers.
      dtype: of the operands of the logits product; the rest is float32.

    Returns:
      [N, T] float32, nats.
    """
    scores = matmul(hidden, unembedding.T, dtype)  # [N, T, rows]
    label_scores = jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - label_scores


def next_token_nll(
    hidden: jax.Array, unembedding: jax.Array, tokens: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """Nats of every token given those before it (eq. 1).

    As in the released code the first token is not predicted: T tokens give T - 1
    losses.

    Args:
      hidden: [N, T, D], position t has seen tokens 0..t.
      unembedding: [rows, D].
      tokens: [N, T] integers.
      dtype: see `token_nll`.

    Returns:
      [N, T] float32, nats; column t belongs to token t + 1, the last column is 0.
    """
    nll = token_nll(hidden, unembedding, jnp.roll(tokens, -1, axis=1), dtype)
    return nll.at[:, -1].set(0.0)
