"""GPT-1's Transformer decoder (sec. 3.1, eq. 2; sec. 4.1).

Departures from the transformers written today, all of them GPT-1's own: the
LayerNorm comes after the residual sum, none precedes the first block or follows
the last one, and the output shares the token embedding and has no bias.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.attention import causal_attention
from gpt1_jax.model.dropout import (
    ATTN_OUTPUT,
    ATTN_PROBS,
    EMBED_POSITION_SITE,
    EMBED_SITE,
    MLP_OUTPUT,
    Noise,
    block_site,
    dropout,
)
from gpt1_jax.model.layers import Dense, LayerNorm, gelu
from gpt1_jax.model.packing import Packing, pack, unpack

Params = dict[str, Any]


class Output(NamedTuple):
    """What the decoder gives: the logits are `hidden @ unembedding.T`."""

    hidden: jax.Array  # [N, T, D], or [S, R, D] of packed tokens
    unembedding: jax.Array  # [rows, D]: V tokens, then T positions if configured


class Block(nn.Module):
    """One decoder block: n = LN(x + Attention(x)), LN(n + MLP(n)) (eq. 2)."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        layer: int | jax.Array,
        noise: Noise | None,
        packing: Packing | None,
    ) -> jax.Array:
        cfg = self.config
        dtype = jnp.dtype(cfg.dtype)
        rows = _token_rows(noise, packing)

        def residual_dropout(y: jax.Array, place: int) -> jax.Array:
            site, rate = block_site(layer, place), cfg.resid_dropout
            return dropout(y, rate, noise, site, impl=cfg.dropout_impl, rows=rows)

        attended = Attention(cfg, name="attn")(x, layer, noise, packing)
        attended = residual_dropout(attended, ATTN_OUTPUT)
        x = LayerNorm(dtype, name="ln_1")(x + attended)
        mlp = MLP(cfg, name="mlp")(x)
        return LayerNorm(dtype, name="ln_2")(x + residual_dropout(mlp, MLP_OUTPUT))


class Attention(nn.Module):
    """Masked multi-head self-attention with one fused projection for q, k, v."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        layer: int | jax.Array,
        noise: Noise | None,
        packing: Packing | None,
    ) -> jax.Array:
        cfg = self.config
        dtype, embed_dim = jnp.dtype(cfg.dtype), x.shape[-1]
        qkv = Dense(3 * embed_dim, dtype, name="c_attn")(x)
        qkv = unpack(qkv, packing)  # [N, T, 3 D]
        heads = (*qkv.shape[:2], cfg.num_heads, embed_dim // cfg.num_heads)
        query, key, value = (part.reshape(heads) for part in jnp.split(qkv, 3, axis=-1))
        attended = causal_attention(
            query,
            key,
            value,
            dropout_rate=cfg.attn_dropout,
            noise=noise,
            site=block_site(layer, ATTN_PROBS),
            dropout_impl=cfg.dropout_impl,
            impl=cfg.attention_impl,
        )
        attended = pack(attended.reshape(*qkv.shape[:2], embed_dim), packing)
        return Dense(embed_dim, dtype, name="c_proj")(attended)


class MLP(nn.Module):
    """The position-wise feed-forward network: GELU between two dense layers."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = jnp.dtype(self.config.dtype)
        hidden = gelu(Dense(self.config.mlp_dim, dtype, name="c_fc")(x))  # [N, T, F]
        return Dense(x.shape[-1], dtype, name="c_proj")(hidden)


class Transformer(nn.Module):
    """The decoder: token and position embeddings, L blocks (eq. 2).

    Parameters, all float32: `wte` [V, D], `wpe` [T, D] and, for each layer,
    `h_{layer}/{attn/{c_attn,c_proj},mlp/{c_fc,c_proj}}/{kernel,bias}` and
    `h_{layer}/{ln_1,ln_2}/{scale,bias}`. The tree does not depend on how the
    layers are run.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        noise: Noise | None = None,
        packing: Packing | None = None,
    ) -> Output:
        """Runs the decoder.

        Args:
          tokens: [N, T] integers in [0, V), T at most `max_seq_len`.
          noise: of this training step; None for no dropout.
          packing: of sequences with padding at their ends, to leave it out.

        Returns:
          The hidden states of the last layer, [S, R, D] where the sequences are
          packed, and the matrix that scores them.
        """
        cfg = self.config
        normal = nn.initializers.normal(0.02)
        wte = self.param("wte", normal, (cfg.vocab_size, cfg.embed_dim))
        wpe = self.param("wpe", normal, (cfg.max_seq_len, cfg.embed_dim))
        x, unembedding = _embed(cfg, wte, wpe, tokens, noise, packing)
        block = Block(cfg, parent=None)

        def init_block(key: jax.Array) -> Params:
            return block.init(key, x, 0, None, None)["params"]

        layers = [self.param(f"h_{i}", init_block) for i in range(cfg.num_layers)]
        hidden = _run_layers(cfg, block, layers, x, noise, packing)
        return Output(hidden, unembedding)


def _token_rows(noise: Noise | None, packing: Packing | None) -> jax.Array | None:
    """What dropout numbers packed tokens by; None where its rows are sequences."""
    if noise is None or packing is None:
        return None
    return packing.rows(noise.rows)


def _embed(
    cfg: ModelConfig,
    wte: jax.Array,
    wpe: jax.Array,
    tokens: jax.Array,
    noise: Noise | None,
    packing: Packing | None,
) -> tuple[jax.Array, jax.Array]:
    """h_0 = U W_e + W_p (eq. 2) and the output matrix, with embedding dropout."""
    seq_len = tokens.shape[-1]
    if seq_len > cfg.max_seq_len:
        raise ValueError(
            f"tokens has {seq_len} positions but the model has max_seq_len="
            f"{cfg.max_seq_len}; shorten the sequences or raise max_seq_len."
        )

    def drop(x: jax.Array, site: int, rows: jax.Array | None) -> jax.Array:
        return dropout(
            x, cfg.embed_dropout, noise, site, impl=cfg.dropout_impl, rows=rows
        )

    rows = _token_rows(noise, packing)
    if cfg.embed_dropout_on == "matrix":
        # Released code: one mask on the matrix that lookup and softmax share.
        row_ids = jnp.arange(cfg.vocab_size + cfg.max_seq_len, dtype=jnp.uint32)
        wte = drop(wte, EMBED_SITE, row_ids[: cfg.vocab_size])
        wpe = drop(wpe, EMBED_SITE, row_ids[cfg.vocab_size :])
    token_vectors = wte[pack(tokens, packing)]  # [N, T, D] or [S, R, D]
    position_vectors = wpe[:seq_len] if packing is None else wpe[packing.positions]
    if cfg.embed_dropout_on == "lookups":
        token_vectors = drop(token_vectors, EMBED_SITE, rows)
        position_vectors = jnp.broadcast_to(position_vectors, token_vectors.shape)
        position_vectors = drop(position_vectors, EMBED_POSITION_SITE, rows)
    x = token_vectors + position_vectors
    if cfg.embed_dropout_on == "sum":
        x = drop(x, EMBED_SITE, rows)
    with_positions = cfg.softmax_rows == "tokens+positions"
    unembedding = jnp.concatenate([wte, wpe]) if with_positions else wte
    return x.astype(cfg.dtype), unembedding


def _run_layers(
    cfg: ModelConfig,
    block: Block,
    layers: list[Params],
    x: jax.Array,
    noise: Noise | None,
    packing: Packing | None,
) -> jax.Array:
    """h_l = block(h_{l-1}) for l = 1..L, unrolled or as a scan."""

    def run_block(x: jax.Array, params: Params, layer: int | jax.Array) -> jax.Array:
        return block.apply({"params": params}, x, layer, noise, packing)

    run: Callable[..., jax.Array] = (
        jax.checkpoint(run_block) if cfg.remat else run_block
    )
    if cfg.layer_loop == "unrolled":
        for layer, params in enumerate(layers):
            x = run(x, params, layer)
        return x
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    numbers = jnp.arange(len(layers))
    return jax.lax.scan(lambda x, p: (run(x, *p), None), x, (stacked, numbers))[0]


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters: matrices N(0, 0.02^2), biases 0, gains 1 (sec. 4.1)."""
    tokens = jnp.zeros((1, config.max_seq_len), jnp.int32)
    return Transformer(config).init(key, tokens)["params"]


def apply(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    noise: Noise | None = None,
    packing: Packing | None = None,
) -> Output:
    """The decoder as a pure function; see `Transformer.__call__`."""
    return Transformer(config).apply({"params": params}, tokens, noise, packing)


def logits(config: ModelConfig, output: Output) -> jax.Array:
    """P(u) before the softmax (eq. 2): [N, T, rows] float32."""
    operands = (x.astype(config.dtype) for x in output)
    return jnp.einsum("NTD,VD->NTV", *operands, preferred_element_type=jnp.float32)


def count_params(params: Params) -> int:
    """Number of parameters: 116,534,784 at the paper's size and vocabulary."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def train_activation_bytes(config: ModelConfig) -> int:
    """Rough memory that training on one sequence takes beside the parameters.

    Counts what the backward pass keeps: 16 arrays [T, D] a layer (of one layer with
    `remat`), with plain attention 2 of scores [H, T, T] as well, and 3 of logits
    [T or `loss_chunk`, V]. 5.5e8 bytes at the paper's size in float32; the CPU
    compiler's own figure is 4.9e8.
    """
    t, d = config.max_seq_len, config.embed_dim
    layer = 16 * t * d * jnp.dtype(config.dtype).itemsize
    if config.attention_impl == "plain":
        layer += 2 * config.num_heads * t * t * 4
    layers = layer if config.remat else config.num_layers * layer
    return layers + 3 * (config.loss_chunk or t) * config.vocab_size * 4


def train_flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Floating-point operations to train on one token (multiply-add = 2).

    Matrix products of blocks, full-square attention and logits, times 3 for
    forward and backward: 7.53e8 at the paper's size.
    """
    d, f = config.embed_dim, config.mlp_dim
    block = 2 * (4 * d * d + 2 * d * f) + 4 * seq_len * d
    return 3.0 * (config.num_layers * block + 2 * d * config.vocab_size)
