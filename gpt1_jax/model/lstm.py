"""The paper's LSTM baseline (sec. 5): one layer in place of the Transformer.

The paper says that it is "a single layer 2048 unit LSTM using the same framework";
docs/fidelity.md lists the details that this leaves open. Here an LSTM reads token
embeddings alone (its order is its position), and a dense layer projects its output back
to the width of the embedding, which the softmax shares. U is `lstm_units`.

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
from gpt1_jax.model.execution import Execution
from gpt1_jax.model.layers import NORMAL, Dense, parameter

_KERNEL_INIT = nn.initializers.lecun_normal()


class LSTM(nn.Module):
    """The language model: token embeddings, an LSTM, a projection to their width.

    Parameters, all float32: `wte` [V, D] and, below `h_0/lstm`, those of `Layer`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, tokens_NT: jax.Array, how: Execution
    ) -> tuple[jax.Array, jax.Array]:
        """The states [N, T, D] of tokens [N, T], and the rows [V, D] of the softmax."""
        cfg = self.config
        wte_VD = parameter(self, "wte", NORMAL, (cfg.vocab_size, cfg.embed_dim))
        wte_VD = how.at("wte", wte_VD)
        x_NTD = how.at("embedding/tokens", how.look_up(wte_VD, tokens_NT))
        x_NTD = how.at("embedding", x_NTD).astype(cfg.dtype)
        h_NTD = Block(cfg, name="h_0")(x_NTD, how)
        return how.at("out", h_NTD, 0), how.unembedding(wte_VD)


class Block(nn.Module):
    """The only layer, named like the Transformer's first."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_NTD: jax.Array, how: Execution) -> jax.Array:
        return Layer(self.config, name="lstm")(x_NTD, how)


class Layer(nn.Module):
    """An LSTM between two dense layers: [.., D] to [.., 4 U], [.., U] and [.., D].

    Parameters: `c_input/{kernel [D, 4 U], bias [4 U]}`, `c_hidden/kernel` [U, 4 U] and
    `c_proj/{kernel [U, D], bias [D]}`, with the gates in the order i, f, g, o.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x_NTD: jax.Array, how: Execution) -> jax.Array:
        d, u = self.config.embed_dim, self.config.lstm_units
        to_gates = Dense(d, 4 * u, _KERNEL_INIT, forget_bias, name="c_input")()
        gates_NTG = how.dense(x_NTD * math.sqrt(d), to_gates)
        gates_NTG = how.at("lstm/gates", gates_NTG, 0)
        recurrent_UG = Recurrent(u, name="c_hidden")()
        hidden_NTU = how.at("lstm/hidden", how.recur(gates_NTG, recurrent_UG), 0)
        return how.dense(hidden_NTU, Dense(u, d, _KERNEL_INIT, name="c_proj")())


class Recurrent(nn.Module):
    """The matrix [U, 4 U] from one position's output to the next one's gates."""

    num_units: int

    @nn.compact
    def __call__(self) -> Any:
        shape = (self.num_units, 4 * self.num_units)
        return parameter(self, "kernel", _KERNEL_INIT, shape)


def forget_bias(
    key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> jax.Array:
    """Zeros, and ones for the forget gate (Jozefowicz et al. 2015)."""
    del key
    gates = jnp.zeros((4, shape[0] // 4), dtype).at[1].set(1)
    return gates.reshape(shape)
