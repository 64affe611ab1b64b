"""A language model as pure functions: parameters, hidden states, logits, losses.

These functions hide which kind of model a configuration describes; the rest of the
package uses only them.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.errors import UserError
from gpt1_jax.model import lstm, transformer
from gpt1_jax.model.context import Cache, Context
from gpt1_jax.model.lstm import LSTM
from gpt1_jax.model.transformer import Transformer
from gpt1_jax.ops import losses
from gpt1_jax.ops.products import einsum
from gpt1_jax.ops.settings import own_settings

Params = dict[str, Any]  # nested, of float32 arrays

# The values of config.model.kind.
_MODULES: dict[str, Any] = {"transformer": Transformer, "lstm": LSTM}
_FUNCTIONS: dict[str, Any] = {"transformer": transformer, "lstm": lstm}


class Output(NamedTuple):
    """The output of a language model; its logits are `hidden @ unembedding.T`."""

    hidden: jax.Array  # [N, T, D], or [S, R, D] if unpadded
    unembedding: jax.Array  # [rows, D]: V tokens, then positions if configured


@own_settings()
@functools.partial(jax.jit, static_argnums=0)  # jit drops the forward pass
def init_params(model: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters: matrices N(0, 0.02^2), biases 0, gains 1 (sec. 4.1)."""
    tokens = jnp.zeros((1, 1), jnp.int32)  # no shape depends on their number
    return _MODULES[model.kind](model).init(key, tokens)["params"]


def apply(
    model: ModelConfig,
    params: Params,
    tokens: jax.Array,
    context: Context = Context(),
) -> Output:
    """Runs the model on sequences of tokens.

    Args:
      model: sizes, dropout rates and implementations.
      params: as returned by `init_params`.
      tokens: [N, T] integers in [0, V), T at most `max_seq_len`.
      context: dropout and padding removal.
    """
    module = _MODULES[model.kind](model)
    hidden, unembedding, _ = module.apply({"params": params}, tokens, context)
    return Output(hidden, unembedding)


def init_cache(model: ModelConfig, padding: jax.Array, size: int) -> Cache:
    """A cache that has read nothing yet.

    Args:
      model: sizes and dtype.
      padding: [N] int32, how many padding tokens each sequence will begin with.
      size: the most tokens that a sequence may get, padding included; at most
        `max_seq_len` of them are real.
    """
    return _FUNCTIONS[model.kind].init_cache(model, padding, size)


def decode(
    model: ModelConfig, params: Params, tokens: jax.Array, cache: Cache
) -> tuple[Output, Cache]:
    """Like `apply`, for tokens [N, T] that follow those in the cache.

    Returns:
      The output, and the cache with these tokens added.
    """
    module, context = _MODULES[model.kind](model), Context(cache=cache)
    hidden, unembedding, longer = module.apply({"params": params}, tokens, context)
    return Output(hidden, unembedding), longer


def shared_units(model: ModelConfig) -> dict[str, int]:
    """The units that tensor parallelism splits, by configuration key; {} if none."""
    if model.kind != "transformer":
        return {}  # devices would exchange their units at every position
    return {"num_heads": model.num_heads, "mlp_dim": model.mlp_dim}


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


def hidden_states(
    model: ModelConfig, params: Params, tokens: jax.Array
) -> list[jax.Array]:
    """The state of each token [N, T, D] before the first layer and after each."""
    return _FUNCTIONS[model.kind].hidden_states(model, params, tokens)


def check_attention(model: ModelConfig) -> None:
    """Refuses a model without attention.

    Raises:
      ValueError: if it has none; names the model's kind.
    """
    if model.kind != "transformer":
        raise UserError(
            f"This model has no attention maps: its config.model.kind={model.kind!r}. "
            "Only a Transformer has them; both kinds have hidden states."
        )


def attention(model: ModelConfig, params: Params, tokens: jax.Array) -> list[jax.Array]:
    """Each layer's attention probabilities, [N, H, T, T] float32; rows sum to one.

    Raises:
      ValueError: if the model has no attention.
    """
    check_attention(model)
    return transformer.attention(model, params, tokens)


def logits(model: ModelConfig, output: Output) -> jax.Array:
    """Logits h_L W_e^T, whose softmax is P(u) (eq. 2): [N, T, rows] float32."""
    operands = (x.astype(model.dtype) for x in output)
    return einsum("NTD,VD->NTV", *operands)


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
