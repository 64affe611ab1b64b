"""The paper's LSTM baseline (sec. 5): one layer in place of the Transformer.

The paper says that it is "a single layer 2048 unit LSTM using the same framework";
docs/fidelity.md says what that leaves open. Here an LSTM reads token embeddings alone
(its order is its position), and a dense layer projects its output back to the width of
the embedding, which the softmax shares. U is `lstm_units`.

Dropout acts at 2 sites, before and after the recurrence and never within it (Zaremba
et al. 2014): on the embedding, and on the LSTM's output.

The Transformer's LayerNorms scale their input, however small it is. An LSTM has none,
and with embeddings and kernels of N(0, 0.02^2) its output would initially be close to
zero. So it reads embeddings times sqrt(D) (Vaswani et al. 2017, who share them with
the softmax too), and the variance of a kernel is 1 / (number of its inputs) (LeCun et
al. 1998).
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.context import Cache, Context
from gpt1_jax.model.embedding import embed
from gpt1_jax.model.layers import Dense
from gpt1_jax.model.sites import LSTM_OUTPUT, block_site
from gpt1_jax.ops.dropout import dropout
from gpt1_jax.ops.lstm import State, lstm, plain_lstm, zero_state
from gpt1_jax.ops.products import Transposed
from gpt1_jax.ops.unpad import pad, unpad
from gpt1_jax.parallel.exchange import SplitTable, softmax_rows

_KERNEL_INIT = nn.initializers.lecun_normal()


class LSTM(nn.Module):
    """The language model: token embeddings, an LSTM, a projection to their width.

    Parameters, all float32: `wte` [V, D] and, below `h_0/lstm`, those of `Layer`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, tokens: jax.Array, context: Context = Context()
    ) -> tuple[jax.Array, jax.Array, Cache | None]:
        """Hidden states and the matrix that scores them.

        Args:
          tokens: [N, T] integers in [0, V), T at most `max_seq_len`.
          context: dropout and padding removal, or a cache.

        Returns:
          [N, T, D], or [S, R, D] if unpadded; [V, D]; and the cache with these tokens,
          None if the context has none.
        """
        cfg = self.config
        normal = nn.initializers.normal(0.02)
        wte = self.get_variable("params", "wte")
        if not isinstance(wte, SplitTable):  # `param` would refuse its shape
            wte = self.param("wte", normal, (cfg.vocab_size, cfg.embed_dim))
        x, unembedding = embed(cfg, wte, None, tokens, context)
        hidden, cache = Block(cfg, name="h_0")(x, context)
        return hidden, softmax_rows(unembedding), cache


class Block(nn.Module):
    """The only layer, named like the Transformer's first."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        return Layer(self.config, name="lstm")(x, context)


class Layer(nn.Module):
    """An LSTM between two dense layers: [.., D] to [.., 4 U], [.., U] and [.., D].

    Parameters: `c_input/{kernel [D, 4 U], bias [4 U]}`, `c_hidden/kernel` [U, 4 U] and
    `c_proj/{kernel [U, D], bias [D]}`, with the gates in the order i, f, g, o.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        cfg, cache = self.config, context.cache
        dtype = jnp.dtype(cfg.dtype)
        to_gates = Dense(
            4 * cfg.lstm_units, dtype, _KERNEL_INIT, forget_bias, name="c_input"
        )
        inputs = to_gates(x * math.sqrt(cfg.embed_dim))
        inputs = pad(inputs, context.unpadding)  # [N, T, 4 U]
        recurrent = Recurrent(cfg.lstm_units, name="c_hidden")()
        if cache is None:
            outputs = lstm(inputs, recurrent, dtype)
        else:
            (state,), padding = cache.layers, cache.padding - cache.taken
            outputs, state = plain_lstm(inputs, recurrent, state, padding)
            cache = Cache((state,), cache.taken + inputs.shape[1], cache.padding)
        outputs = unpad(outputs, context.unpadding)
        site, rows = block_site(0, LSTM_OUTPUT), context.token_rows()
        outputs = dropout(outputs, cfg.resid_dropout, context.noise, site, rows=rows)
        project = Dense(cfg.embed_dim, dtype, _KERNEL_INIT, name="c_proj")
        return project(outputs), cache


class Recurrent(nn.Module):
    """The matrix [U, 4 U] from one position's output to the next one's gates."""

    num_units: int

    @nn.compact
    def __call__(self) -> Any:
        kernel = self.get_variable("params", "kernel")
        if isinstance(kernel, Transposed):  # `param` would refuse its shape
            return kernel
        shape = (self.num_units, 4 * self.num_units)
        return self.param("kernel", _KERNEL_INIT, shape)


def forget_bias(
    key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> jax.Array:
    """Zeros, and ones for the forget gate (Jozefowicz et al. 2015)."""
    del key
    gates = jnp.zeros((4, shape[0] // 4), dtype).at[1].set(1)
    return gates.reshape(shape)


def hidden_states(
    cfg: ModelConfig, params: dict[str, Any], tokens: jax.Array
) -> list[jax.Array]:
    """The embedding and the layer's state, each [N, T, D]."""
    x, _ = embed(cfg, params["wte"], None, tokens, Context())
    hidden, _ = Block(cfg).apply({"params": params["h_0"]}, x, Context())
    return [x, hidden]


def init_cache(cfg: ModelConfig, padding: jax.Array, size: int) -> Cache:
    """The state before the first token of sequences that begin with [N] padding.

    It has the same size however many tokens an LSTM reads, so `size` is not used.
    """
    del size
    state: State = zero_state(len(padding), cfg.lstm_units, jnp.dtype(cfg.dtype))
    return Cache((state,), jnp.int32(0), padding)
