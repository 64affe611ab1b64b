"""GPT-1's Transformer decoder (sec. 3.1, eq. 2; sec. 4.1).

The three lines of eq. 2 are `embed` (h_0), `Block` (h_l from h_{l-1}) and
`language_model.logits` (the scores of P(u)).

It differs from today's transformers: LayerNorm comes after the residual sum, there is
none before the first block or after the last one, and the output shares the token
embedding and has no bias.

Dropout acts at 1 + 3 L sites, 37 for GPT-1: on the embedding and, in each block, on
the attention probabilities, the attention output and the MLP output.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.errors import find_named
from gpt1_jax.model.context import Cache, Context
from gpt1_jax.model.embedding import embed
from gpt1_jax.model.layers import Dense, LayerNorm
from gpt1_jax.model.sites import ATTN_OUTPUT, ATTN_PROBS, MLP_OUTPUT, block_site
from gpt1_jax.ops.attention import FORMS, attention_probs, causal_attention
from gpt1_jax.ops.cached_attention import Memory, cached_attention, empty_memory
from gpt1_jax.ops.dropout import Noise, dropout
from gpt1_jax.ops.gelu import gelu
from gpt1_jax.ops.layer_norm import Branch
from gpt1_jax.ops.unpad import pad, unpad
from gpt1_jax.parallel.exchange import (
    Gathered,
    SplitTable,
    layer_boundary,
    softmax_rows,
)
from gpt1_jax.parallel.mesh import split_units


class Transformer(nn.Module):
    """The decoder: token and position embeddings, then L blocks (eq. 2).

    Parameters, all float32: `wte` [V, D], `wpe` [max_seq_len, D] and, for each layer,
    `h_{layer}/{attn/{c_attn,c_proj},mlp/{c_fc,c_proj}}/{kernel,bias}` and
    `h_{layer}/{ln_1,ln_2}/{scale,bias}`. The tree does not depend on how the layers
    are run.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, tokens: jax.Array, context: Context = Context()
    ) -> tuple[jax.Array, jax.Array, Cache | None]:
        """Hidden states of the last layer and the matrix that scores them.

        Args:
          tokens: [N, T] integers in [0, V), T at most `max_seq_len`.
          context: dropout and padding removal, or a cache.

        Returns:
          [N, T, D], or [S, R, D] if unpadded; [rows, D]; and the cache with these
          tokens, None if the context has none.
        """
        cfg = self.config
        normal = nn.initializers.normal(0.02)
        wte = self.get_variable("params", "wte")
        if not isinstance(wte, SplitTable):  # `param` would refuse its shape
            wte = self.param("wte", normal, (cfg.vocab_size, cfg.embed_dim))
        wpe = self.param("wpe", normal, (cfg.max_seq_len, cfg.embed_dim))
        x, unembedding = embed(cfg, wte, wpe, tokens, context)
        block = Block(cfg, parent=None)

        def init_block(key: jax.Array) -> Any:
            return block.init(key, x, 0, Context(), None)["params"]

        names = [f"h_{i}" for i in range(cfg.num_layers)]
        if self.is_initializing():
            layers = [self.param(name, init_block) for name in names]
        else:  # `param` would trace the initialisation again, to compare shapes
            layers = [self.get_variable("params", name) for name in names]
        states, unembedding, cache = _run_layers(
            cfg, block, layers, x, unembedding, context
        )
        return states[-1], unembedding, cache


class Block(nn.Module):
    """One decoder block: n = LN(x + Attention(x)), LN(n + MLP(n)) (eq. 2)."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        layer: int | jax.Array,
        context: Context,
        memory: Memory | None,
    ) -> tuple[jax.Array, Memory | None]:
        cfg, rows = self.config, context.token_rows()

        def add_and_norm(name: str, x: jax.Array, branch: Any, place: int) -> jax.Array:
            norm = LayerNorm(jnp.dtype(cfg.dtype), name=name)
            where = cfg.resid_dropout, context.noise, block_site(layer, place)
            if cfg.layer_norm_form == "fused":
                output, bias = branch
                return norm(x, Branch(output, bias, *where, rows))
            return norm(x + dropout(branch, *where, rows=rows))

        attention = Attention(cfg, name="attn")
        attended, memory = attention(x, layer, context, memory)
        x = add_and_norm("ln_1", x, attended, ATTN_OUTPUT)
        mlp = MLP(cfg, name="mlp")(x)
        return add_and_norm("ln_2", x, mlp, MLP_OUTPUT), memory


class Attention(nn.Module):
    """Masked multi-head self-attention with one projection for q, k and v."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        layer: int | jax.Array,
        context: Context,
        memory: Memory | None,
    ) -> tuple[Any, Memory | None]:
        cfg = self.config
        dtype, embed_dim = jnp.dtype(cfg.dtype), x.shape[-1]
        qkv = Dense(3 * embed_dim, dtype, name="c_attn")(x)
        if context.cache is not None and memory is not None:
            query, key, value = split_heads(qkv, cfg.num_heads)
            places = context.cache.taken, context.cache.padding
            attended, memory = cached_attention(query, key, value, memory, *places)
            attended = join_heads(attended)
        elif context.tree is not None:
            attended = join_heads(context.tree.attend(*split_heads(qkv, cfg.num_heads)))
        else:
            attended = self.of_sequences(qkv, block_site(layer, ATTN_PROBS), context)
        return _last_dense(cfg, embed_dim)(attended), memory

    def of_sequences(
        self, qkv: jax.Array, site: int | jax.Array, context: Context
    ) -> jax.Array:
        """Attention within whole sequences: [.., 3 D] to [.., D] for each token."""
        cfg, noise, unpadding = self.config, context.noise, context.unpadding
        form = find_named(
            FORMS[cfg.attention_form],
            f"config.model.attention_form={cfg.attention_form}",
            "use blocked",
        )

        def attend(qkv: jax.Array, noise: Noise | None, **options: int) -> jax.Array:
            parts = split_heads(qkv, cfg.num_heads)
            return join_heads(form(*parts, cfg.attn_dropout, noise, site, **options))

        if unpadding is None or unpadding.bands is None or form is not causal_attention:
            return unpad(attend(pad(qkv, unpadding), noise), unpadding)
        masked = functools.partial(attend, mask_len=unpadding.slots.shape[1])
        return unpadding.bands.attend(masked, qkv, noise)


class MLP(nn.Module):
    """The position-wise feed-forward network: GELU between two dense layers."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        cfg, dtype = self.config, jnp.dtype(self.config.dtype)
        hidden = Dense(cfg.mlp_dim, dtype, activation=gelu, name="c_fc")(x)
        return _last_dense(cfg, x.shape[-1])(hidden)


def _last_dense(cfg: ModelConfig, features: int) -> Dense:
    """The last dense layer of a branch; a fused residual sum adds its bias instead."""
    add_bias = cfg.layer_norm_form != "fused"
    return Dense(features, jnp.dtype(cfg.dtype), add_bias=add_bias, name="c_proj")


def split_heads(qkv: jax.Array, num_heads: int) -> list[jax.Array]:
    """[N, T, 3 D] to query, key and value, each [N, T, H, K]."""
    heads = (*qkv.shape[:2], num_heads, qkv.shape[-1] // (3 * num_heads))
    parts = jnp.split(qkv, 3, axis=-1)
    return [split_units(part.reshape(heads), 2) for part in parts]


def join_heads(x: jax.Array) -> jax.Array:
    """[N, T, H, K] to [N, T, D]."""
    return x.reshape(*x.shape[:2], -1)


def _run_layers(
    cfg: ModelConfig,
    block: Block,
    layers: list[Any],
    x: jax.Array,
    unembedding: jax.Array | Gathered,
    context: Context,
) -> tuple[list[jax.Array], jax.Array, Cache | None]:
    """h_l = block(h_{l-1}) for l = 1..L, unrolled or as a scan; with a cache, unrolled.

    Returns:
      h_0 to h_L, only h_L from a scan; the matrix that scores h_L; and the cache with
      these tokens, None if the context has none.
    """

    def run_block(
        x: jax.Array, params: Any, layer: int | jax.Array, memory: Memory | None = None
    ) -> tuple[jax.Array, Memory | None]:
        return block.apply({"params": params}, x, layer, context, memory)

    cache = context.cache
    run: Callable[..., tuple[jax.Array, Memory | None]] = (
        jax.checkpoint(run_block) if cfg.remat and cache is None else run_block
    )
    if cache is None and cfg.layer_loop == "scan":
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
        numbers = jnp.arange(len(layers))
        x, _ = jax.lax.scan(lambda x, p: run(x, *p), x, (stacked, numbers))
        return [x], softmax_rows(unembedding), None
    states, memories, later = [x], [], layers[0]
    for layer, following in enumerate([*layers[1:], {}]):
        x, params, later, unembedding = layer_boundary(x, later, following, unembedding)
        memory = None if cache is None else cache.layers[layer]
        x, memory = run(x, params, layer, memory)
        states.append(x)
        memories.append(memory)
    states[-1], _, _, unembedding = layer_boundary(x, {}, {}, unembedding)
    if cache is not None:
        cache = Cache(tuple(memories), cache.taken + x.shape[1], cache.padding)
    return states, softmax_rows(unembedding), cache


def hidden_states(
    cfg: ModelConfig, params: dict[str, Any], tokens: jax.Array
) -> list[jax.Array]:
    """h_0 to h_L (eq. 2), each [N, T, D]."""
    cfg = dataclasses.replace(cfg, layer_loop="unrolled", remat=False)
    x, rows = embed(cfg, params["wte"], params["wpe"], tokens, Context())
    layers = [params[f"h_{layer}"] for layer in range(cfg.num_layers)]
    return _run_layers(cfg, Block(cfg, parent=None), layers, x, rows, Context())[0]


def attention(
    cfg: ModelConfig, params: dict[str, Any], tokens: jax.Array
) -> list[jax.Array]:
    """The attention probabilities of layers 1 to L, each [N, H, T, T] float32."""
    project, probs = Dense(3 * cfg.embed_dim, jnp.dtype(cfg.dtype), parent=None), []
    for layer, state in enumerate(hidden_states(cfg, params, tokens)[:-1]):
        qkv = project.apply({"params": params[f"h_{layer}"]["attn"]["c_attn"]}, state)
        query, key, _ = split_heads(qkv, cfg.num_heads)
        probs.append(attention_probs(query, key))
    return probs


def init_cache(cfg: ModelConfig, padding: jax.Array, size: int) -> Cache:
    """An empty cache of `size` places for sequences that begin with [N] padding."""
    head_dim = cfg.embed_dim // cfg.num_heads
    shape = (len(padding), size, cfg.num_heads, head_dim)
    layers = tuple(empty_memory(shape, cfg.dtype) for _ in range(cfg.num_layers))
    return Cache(layers, jnp.int32(0), padding)
