"""GPT-1's Transformer decoder (sec. 3.1, eq. 2; sec. 4.1), as the paper writes it.

The three lines of eq. 2 are `embed` (h_0), `Block` (h_l from h_{l-1}) and `logits` (the
scores of P(u)). An `Execution`, `how`, decides how they are computed: each activation
passes through `how.at` by its name.

It differs from today's transformers: LayerNorm comes after the residual sum, there is
none before the first block or after the last one, and the output shares the token
embedding and has no bias.
"""

from typing import Any

import flax.linen as nn
import jax

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.execution import Execution, Layer
from gpt1_jax.model.layers import NORMAL, Dense, LayerNorm, parameter
from gpt1_jax.ops.attention import join_heads, split_heads
from gpt1_jax.ops.gelu import gelu
from gpt1_jax.ops.products import einsum


class Transformer(nn.Module):
    """The decoder: token and position embeddings, then L blocks (eq. 2).

    Parameters, all float32: `wte` [V, D], `wpe` [max_seq_len, D] and, for each layer,
    `h_{layer}/{attn/{c_attn,c_proj},mlp/{c_fc,c_proj}}/{kernel,bias}` and
    `h_{layer}/{ln_1,ln_2}/{scale,bias}`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, tokens_NT: jax.Array, how: Execution
    ) -> tuple[jax.Array, jax.Array]:
        """h_L [N, T, D] of tokens [N, T], and the rows [.., D] of the softmax."""
        cfg, block = self.config, Block(self.config, parent=None)
        wte_VD = parameter(self, "wte", NORMAL, (cfg.vocab_size, cfg.embed_dim))
        wpe_PD = self.param("wpe", NORMAL, (cfg.max_seq_len, cfg.embed_dim))
        wte_VD, wpe_PD = how.at("wte", wte_VD), how.at("wpe", wpe_PD)

        def init_block(key: jax.Array) -> Any:
            return block.init(key, h_NTD, 0, how)["params"]

        def run_block(h_NTD: jax.Array, params: Any, layer: Layer) -> jax.Array:
            return block.apply({"params": params}, h_NTD, layer, how)

        h_NTD = embed(wte_VD, wpe_PD, tokens_NT, how).astype(cfg.dtype)
        names = [f"h_{layer}" for layer in range(cfg.num_layers)]
        if self.is_initializing():
            layers = [self.param(name, init_block) for name in names]
        else:  # `param` would trace the initialisation again, to compare shapes
            layers = [self.get_variable("params", name) for name in names]
        h_NTD = how.run_layers(run_block, layers, h_NTD)
        return h_NTD, how.unembedding(wte_VD, wpe_PD)


def embed(
    wte_VD: Any, wpe_PD: jax.Array, tokens_NT: jax.Array, how: Execution
) -> jax.Array:
    """h_0 = U W_e + W_p [N, T, D] (eq. 2, first line)."""
    tokens_NTD = how.at("embedding/tokens", how.look_up(wte_VD, tokens_NT))
    positions_NTD = how.look_up_positions(wpe_PD, tokens_NTD)
    positions_NTD = how.at("embedding/positions", positions_NTD)
    return how.at("embedding", tokens_NTD + positions_NTD)


class Block(nn.Module):
    """h_l from h_{l-1}: n = LN(h + Attention(h)), h = LN(n + MLP(n)) (second line)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, h_NTD: jax.Array, layer: Layer, how: Execution) -> jax.Array:
        cfg, d = self.config, self.config.embed_dim
        branch = Attention(cfg, name="attn")(h_NTD, layer, how)
        ln_1 = LayerNorm(d, name="ln_1")()
        n_NTD = how.add_and_norm(h_NTD, branch, ln_1, "attn/out", layer)
        n_NTD = how.at("ln_1/out", n_NTD, layer)
        branch = MLP(cfg, name="mlp")(n_NTD, layer, how)
        ln_2 = LayerNorm(d, name="ln_2")()
        h_NTD = how.add_and_norm(n_NTD, branch, ln_2, "mlp/out", layer)
        return how.at("out", h_NTD, layer)


class Attention(nn.Module):
    """Masked multi-head self-attention, with one projection for q, k and v."""

    config: ModelConfig

    @nn.compact
    def __call__(self, h_NTD: jax.Array, layer: Layer, how: Execution) -> Any:
        cfg, d = self.config, self.config.embed_dim
        qkv = how.dense(h_NTD, Dense(d, 3 * d, name="c_attn")())
        q_NTHK, k_NTHK, v_NTHK = split_heads(qkv, cfg.num_heads)
        q_NTHK = how.at("attn/q", q_NTHK, layer)
        k_NTHK = how.at("attn/k", k_NTHK, layer)
        v_NTHK = how.at("attn/v", v_NTHK, layer)
        heads_NTHK = how.attend(q_NTHK, k_NTHK, v_NTHK, layer)
        heads_NTHK = how.at("attn/heads", heads_NTHK, layer)
        return how.project(join_heads(heads_NTHK), Dense(d, d, name="c_proj")())


class MLP(nn.Module):
    """The position-wise feed-forward network: GELU between two dense layers."""

    config: ModelConfig

    @nn.compact
    def __call__(self, n_NTD: jax.Array, layer: Layer, how: Execution) -> Any:
        d, f = self.config.embed_dim, self.config.mlp_dim
        hidden_NTF = how.dense(n_NTD, Dense(d, f, name="c_fc")(), gelu)
        hidden_NTF = how.at("mlp/hidden", hidden_NTF, layer)
        return how.project(hidden_NTF, Dense(f, d, name="c_proj")())


def logits(h_NTD: jax.Array, unembedding_VD: jax.Array, dtype: Any) -> jax.Array:
    """h_L W_e^T, float32, whose softmax is P(u) (third line); operands of `dtype`."""
    return einsum("NTD,VD->NTV", h_NTD.astype(dtype), unembedding_VD.astype(dtype))
