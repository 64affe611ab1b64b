"""Fine-tuned models: the decoder, and one linear layer on the extract token (sec. 3.2).

C sequences make an example (Figure 1). Their states at the extract token are summed
where the head judges them together (one text, or two in both orders), and judged one
by one where they are choices.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model import transformer
from gpt1_jax.model.dropout import ATTN_PROBS, Noise, block_site, dropout
from gpt1_jax.model.layers import Dense
from gpt1_jax.model.packing import Packing
from gpt1_jax.model.transformer import Output, Params


class Head(NamedTuple):
    """Shape and dropout of a head."""

    num_outputs: int  # K: classes, choices, or 1
    per_choice: bool  # one output for each of the C sequences, K = C
    dropout: float


def init_params(config: ModelConfig, head: Head, key: jax.Array) -> Params:
    """Fresh parameters of a fine-tuned model.

    Returns:
      `{"transformer": .., "head": {"kernel" [D, K or 1], "bias"}}`, float32; kernels
      N(0, 0.02^2), biases 0 (released code).
    """
    transformer_key, head_key = jax.random.split(key)
    pooled = jnp.zeros((1, config.embed_dim), jnp.float32)
    return {
        "transformer": transformer.init_params(config, transformer_key),
        "head": _dense(head).init(head_key, pooled)["params"],
    }


def apply(
    config: ModelConfig,
    head: Head,
    params: Params,
    tokens: jax.Array,
    noise: Noise | None = None,
    packing: Packing | None = None,
) -> tuple[jax.Array, Output]:
    """A fine-tuned model (eq. 3).

    Args:
      config: of the decoder; the last entry of its vocabulary is the extract token.
      head: of the task.
      params: as from `init_params`.
      tokens: [B, C, T]; each sequence holds the extract token.
      noise: of this training step, `rows` numbering the examples; None for no dropout.
      packing: of the B C sequences, to compute nothing for their padding.

    Returns:
      Logits [B, K] float32 before the softmax over classes or choices, and the
      decoder's output over the B C sequences, packed if they are.
    """
    num_examples, num_seqs, seq_len = tokens.shape
    flat = tokens.reshape(-1, seq_len)
    output = transformer.apply(
        config, params["transformer"], flat, _each_sequence(noise, num_seqs), packing
    )
    pooled = _at_token(output.hidden, flat, config.vocab_size - 1, packing)
    pooled = pooled.reshape(num_examples, num_seqs, -1).astype(jnp.float32)
    if noise is not None:
        # One mask an example, shared by its choices (released code).
        site = block_site(config.num_layers, ATTN_PROBS)  # the first after the blocks
        ones = jnp.ones_like(pooled[:, 0])
        mask = dropout(ones, head.dropout, noise, site, impl=config.dropout_impl)
        pooled = pooled * mask[:, None]
    if not head.per_choice:
        pooled = pooled.sum(axis=1)
    logits = _dense(head).apply({"params": params["head"]}, pooled)
    return logits.reshape(num_examples, head.num_outputs), output


def _dense(head: Head) -> nn.Module:
    return Dense(1 if head.per_choice else head.num_outputs, jnp.dtype("float32"))


def _each_sequence(noise: Noise | None, num_seqs: int) -> Noise | None:
    """The noise of B examples as that of their B C sequences."""
    if noise is None:
        return None
    rows = noise.rows[:, None] * num_seqs + jnp.arange(num_seqs, dtype=jnp.uint32)
    return Noise(noise.key, rows.reshape(-1))


def _at_token(
    hidden: jax.Array, tokens: jax.Array, token: int, packing: Packing | None
) -> jax.Array:
    """[N, D], states at the first place of a token, which each sequence holds."""
    places = jnp.argmax(tokens == token, axis=1)[:, None]
    if packing is not None:
        places = jnp.take_along_axis(packing.slots, places, axis=1)
    places = places.reshape(len(hidden), -1, 1)
    return jnp.take_along_axis(hidden, places, axis=1).reshape(-1, hidden.shape[-1])
