"""Fine-tuned models: a language model with a linear head (sec. 3.2), and its loss.

An example has C sequences (Figure 1), each with an extract token. The head reads the
hidden states there: summed over the sequences of an example (one text, or two in both
orders), or one by one if the sequences are choices.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt1_jax.config import ModelConfig
from gpt1_jax.finetuning.unpad import Unpadded, Unpadding
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import ATTN_PROBS, Execution, Wrap, block_site, unchanged
from gpt1_jax.model.language_model import Output, Params
from gpt1_jax.model.layers import Dense
from gpt1_jax.ops.dropout import Noise, dropout
from gpt1_jax.ops.products import dense
from gpt1_jax.ops.settings import own_settings


class Head(NamedTuple):
    """The head that a task needs."""

    num_outputs: int  # K: classes, choices, or 1
    per_choice: bool  # one output for each of the C sequences, K = C
    dropout: float  # dropout rate on the head's input
    extract_token: int  # the head reads the state where it first occurs
    multilabel: bool = False  # an output for each label is a decision of its own


@own_settings()
@functools.partial(jax.jit, static_argnums=(0, 1))
def init_params(model: ModelConfig, head: Head, key: jax.Array) -> Params:
    """Fresh parameters of a fine-tuned model.

    Returns:
      `{"transformer": .., "head": {"kernel" [D, K or 1], "bias"}}`, float32; kernels
      N(0, 0.02^2), biases 0 (released code).
    """
    transformer_key, head_key = jax.random.split(key)
    num_logits = 1 if head.per_choice else head.num_outputs
    return {
        "transformer": language_model.init_params(model, transformer_key),
        "head": Dense(model.embed_dim, num_logits).init(head_key)["params"],
    }


def apply(
    model: ModelConfig,
    head: Head,
    params: Params,
    tokens: jax.Array,
    noise: Noise | None = None,
    unpadding: Unpadding | None = None,
    wrap: Wrap = unchanged,
) -> tuple[jax.Array, Output]:
    """Runs a fine-tuned model: logits whose softmax is P(y | x) (eq. 3).

    Args:
      model: configuration of the decoder.
      head: the task's head.
      params: as returned by `init_params`.
      tokens: [B, C, T]; each sequence holds the extract token.
      noise: the step's dropout noise, whose rows are the B examples; None for no
        dropout.
      unpadding: the padding removal of the B C sequences; None to compute padding too.
      wrap: changes the execution on devices that hold only parts of the parameters.

    Returns:
      Logits [B, K] float32 before the softmax over classes or choices, and the
      decoder's output for the B C sequences, unpadded if they are.
    """
    num_examples, num_seqs, seq_len = tokens.shape
    flat = tokens.reshape(-1, seq_len)
    of_sequences = _each_sequence(noise, num_seqs)
    how = Execution(model, of_sequences)
    if unpadding is not None:
        how = Unpadded(model, of_sequences, unpadding)
    output = language_model.apply(model, params["transformer"], flat, wrap(how))
    pooled = _at_token(output.hidden, flat, head.extract_token, unpadding)
    pooled = pooled.reshape(num_examples, num_seqs, -1).astype(jnp.float32)
    if noise is not None:
        # One mask per example, shared by its choices (released code).
        site = block_site(model.depth, ATTN_PROBS)  # the first after the blocks
        ones = jnp.ones_like(pooled[:, 0])
        pooled = pooled * dropout(ones, head.dropout, noise, site)[:, None]
    if not head.per_choice:
        pooled = pooled.sum(axis=1)
    kernel, bias = params["head"]["kernel"], params["head"]["bias"]
    logits = dense(pooled, kernel, bias, jnp.dtype("float32"))
    return logits.reshape(num_examples, head.num_outputs), output


def classification_loss(
    logits: jax.Array, targets: jax.Array, multilabel: bool = False
) -> jax.Array:
    """L2 (eq. 4): the cross-entropy in nats, averaged over examples.

    A single column of logits is a regression, whose loss is the squared error. With
    several labels per example, it is the binary cross-entropy, averaged over labels
    too.

    Args:
      logits: [B, K] float32.
      targets: [B, K] float32, class probabilities, scores if K = 1, or 1 for each label
        that an example has.
      multilabel: whether an example may have several of the labels, or none.
    """
    if multilabel:
        return optax.sigmoid_binary_cross_entropy(logits, targets).mean()
    if logits.shape[1] == 1:
        return jnp.square(logits - targets).mean()
    return -(targets * jax.nn.log_softmax(logits)).sum(axis=1).mean()


def _each_sequence(noise: Noise | None, num_seqs: int) -> Noise | None:
    """The noise of B C sequences, from the noise of their B examples."""
    if noise is None:
        return None
    rows = noise.rows[:, None] * num_seqs + jnp.arange(num_seqs, dtype=jnp.uint32)
    return Noise(noise.key, rows.reshape(-1))


def _at_token(
    hidden: jax.Array, tokens: jax.Array, token: int, unpadding: Unpadding | None
) -> jax.Array:
    """[N, D], the state in each sequence where the token first occurs."""
    indices = jnp.argmax(tokens == token, axis=1)[:, None]
    if unpadding is not None:
        indices = jnp.take_along_axis(unpadding.slots, indices, axis=1)
    indices = indices.reshape(len(hidden), -1, 1)
    return jnp.take_along_axis(hidden, indices, axis=1).reshape(-1, hidden.shape[-1])
