"""A language model as pure functions: parameters, hidden states, logits, losses.

These functions hide which kind of model a configuration describes; the rest of the
package uses only them.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model import transformer
from gpt1_jax.model.execution import Execution
from gpt1_jax.model.lstm import LSTM
from gpt1_jax.model.transformer import Transformer
from gpt1_jax.ops import losses
from gpt1_jax.ops.attention import check_rule
from gpt1_jax.ops.settings import own_settings

Params = dict[str, Any]  # nested, of float32 arrays

_RULE_CHECKED = 2048  # positions
# The values of config.model.kind.
_MODULES: dict[str, Any] = {"transformer": Transformer, "lstm": LSTM}


class Output(NamedTuple):
    """The output of a language model; its logits are `hidden @ unembedding.T`."""

    hidden: jax.Array  # [N, T, D], or [S, R, D] if unpadded
    unembedding: jax.Array  # [rows, D]: V tokens, then positions if configured


@own_settings()
@functools.partial(jax.jit, static_argnums=0)  # jit drops the forward pass
def init_params(model: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters: matrices N(0, 0.02^2), biases 0, gains 1 (sec. 4.1)."""
    tokens = jnp.zeros((1, 1), jnp.int32)  # no shape depends on their number
    return _MODULES[model.kind](model).init(key, tokens, Execution(model))["params"]


def apply(
    model: ModelConfig,
    params: Params,
    tokens: jax.Array,
    how: Execution | None = None,
) -> Output:
    """Runs the model on sequences of tokens.

    Args:
      model: sizes and implementations.
      params: as returned by `init_params`.
      tokens: [N, T] integers in [0, V), T at most `max_seq_len`.
      how: how to compute it; by default whole sequences, without dropout.

    Raises:
      ValueError: if T exceeds `max_seq_len`, or a token may attend to later ones.
    """
    if tokens.shape[-1] > model.max_seq_len:
        raise ValueError(
            f"tokens has {tokens.shape[-1]} positions but the model has max_seq_len="
            f"{model.max_seq_len}; shorten the sequences or raise max_seq_len."
        )
    if model.kind == "transformer":
        check_rule(min(model.max_seq_len, _RULE_CHECKED))
    how = how or Execution(model)
    return Output(*_MODULES[model.kind](model).apply({"params": params}, tokens, how))


def rounded_dtype(model: ModelConfig, name: str) -> jnp.dtype | None:
    """The dtype that a parameter is rounded to before each use; None if it is not.

    `wte` counts as rounded if only lookups use it as it is.

    Args:
      model: the model's configuration.
      name: the parameter's path, "h_0/mlp/c_fc/kernel".
    """
    *parents, last = name.split("/")
    if last == "wte":
        rounded = (model.embed_dropout_on, model.softmax_rows) in (
            ("sum", "tokens"),
            ("lookups", "tokens"),
        )
    else:
        rounded = last == "kernel" and any(part.startswith("h_") for part in parents)
    return jnp.dtype(model.dtype) if rounded else None


def has_layer_boundaries(model: ModelConfig) -> bool:
    """Whether devices can exchange layer by layer: not if a loop computes them all."""
    return model.kind == "transformer" and model.layer_loop == "unrolled"


def logits(model: ModelConfig, output: Output) -> jax.Array:
    """Logits h_L W_e^T, whose softmax is P(u) (eq. 2): [N, T, rows] float32."""
    return transformer.logits(*output, model.dtype)


def next_token_loss(
    model: ModelConfig, output: Output, tokens: jax.Array, weights: jax.Array
) -> jax.Array:
    """The weighted sum of next-token losses, for training; a scalar in nats.

    Args:
      model: its dtype and `loss_chunk` are used.
      output: the output of `apply` for the tokens.
      tokens: [N, T], or unpadded [S, R] if `output` is.
      weights: float32, shaped like `tokens`; column t weighs the loss of token t + 1.
    """
    dtype = jnp.dtype(model.dtype)
    return losses.next_token_loss(*output, tokens, weights, dtype, model.loss_chunk)


def next_token_nll(model: ModelConfig, output: Output, tokens: jax.Array) -> jax.Array:
    """-log P of every token given those before it, for evaluation; nats.

    Args:
      model: its dtype and `loss_chunk` are used.
      output: the output of `apply` for the tokens.
      tokens: [N, T].

    Returns:
      [N, T] float32; column t is the loss of token t + 1, the last column 0.
    """
    dtype = jnp.dtype(model.dtype)
    return losses.next_token_nll(*output, tokens, dtype, model.loss_chunk)
