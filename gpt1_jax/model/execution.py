"""How a model is computed: everything between its formula and the machine.

The formulas (`transformer`, `lstm`) say what the paper says, and ask an `Execution` for
each step. It alone knows of dropout, of the forms of attention and LayerNorm, and of
how the layers are looped over. Other executions are subclasses, each where it is used:
without padding (fine-tuning), after a cache or in a tree of prefixes (inference), layer
by layer on several devices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.errors import find_named
from gpt1_jax.ops import attention, layer_norm, products
from gpt1_jax.ops.dropout import Noise, dropout
from gpt1_jax.ops.lstm import lstm

# Dropout acts at 1 + 3 L sites of a Transformer, 37 for GPT-1, and at 2 of an LSTM.
# The masks depend on their numbers.
EMBED_SITE = 0
EMBED_POSITION_SITE = 2**32 - 1  # no layer has it
ATTN_PROBS, ATTN_OUTPUT, MLP_OUTPUT = 1, 2, 3
LSTM_OUTPUT = 1
_IN_LAYERS = {
    "attn/probs": ATTN_PROBS,
    "attn/out": ATTN_OUTPUT,
    "mlp/out": MLP_OUTPUT,
    "lstm/hidden": LSTM_OUTPUT,
}
# Sites of the embedding, by `config.model.embed_dropout_on`.
_IN_EMBEDDING = {
    "sum": {"embedding": EMBED_SITE},
    "lookups": {
        "embedding/tokens": EMBED_SITE,
        "embedding/positions": EMBED_POSITION_SITE,
    },
    # Released code: one mask on the matrix that lookup and softmax share.
    "matrix": {"wte": EMBED_SITE, "wpe": EMBED_SITE},
}

Weights = tuple[Any, jax.Array]  # kernel and bias, or gain and bias
Layer = int | jax.Array  # its number; traced in a loop
Block = Callable[[jax.Array, Any, Layer], jax.Array]  # (h, parameters, layer) -> h
Wrap = Callable[["Execution"], "Execution"]


def unchanged(how: "Execution") -> "Execution":
    """The execution as it is, for devices that hold whole parameters."""
    return how


def block_site(layer: Layer, place: int) -> Layer:
    """The dropout site of one place in one layer."""
    return 3 * layer + place


class Execution:
    """Computes whole sequences, as training and evaluation do.

    Args:
      model: sizes, dropout rates, and the forms to compute with.
      noise: this training step's dropout noise; None for no dropout.
    """

    def __init__(self, model: ModelConfig, noise: Noise | None = None):
        self.model, self.noise = model, noise
        self.dtype = jnp.dtype(model.dtype)
        self.token_rows: jax.Array | None = None  # of dropout, if not a row a sequence

    def at(self, name: str, x: jax.Array, layer: Layer | None = None) -> jax.Array:
        """Passes on an activation of the formula, after dropout.

        Args:
          name: its name, within its layer if it has one.
          x: its value.
          layer: the number of its layer, from 0.
        """
        sites, rate = _IN_LAYERS, self.model.resid_dropout
        if layer is None:
            sites = _IN_EMBEDDING[self.model.embed_dropout_on]
            rate = self.model.embed_dropout
        if name not in sites:
            return x
        rows, unit_ndim = self.token_rows, 1
        if name == "attn/probs":  # of whole sequences
            rate, rows = self.model.attn_dropout, None
            unit_ndim = attention.MASK_NDIM
        elif name in ("wte", "wpe"):  # tokens, then positions
            first = self.model.vocab_size if name == "wpe" else 0
            rows = first + jnp.arange(len(x), dtype=jnp.uint32)
        site = sites[name] if layer is None else block_site(layer, sites[name])
        return dropout(x, rate, self.noise, site, rows=rows, unit_ndim=unit_ndim)

    # --- embedding and softmax ---

    def look_up(self, wte: Any, tokens: jax.Array) -> jax.Array:
        """The vectors [N, T, D] of tokens [N, T]."""
        return wte[tokens]

    def look_up_positions(self, wpe: jax.Array, like: jax.Array) -> jax.Array:
        """The vectors of the tokens' positions, in the shape [N, T, D] of `like`."""
        positions = self.positions(like.shape[1])
        vectors = wpe[: like.shape[1]] if positions is None else wpe[positions]
        return jnp.broadcast_to(vectors, like.shape)

    def positions(self, seq_len: int) -> jax.Array | None:
        """The position of each token, [N, T]; None if it is 0 to T-1."""
        del seq_len
        return None

    def unembedding(self, wte: Any, wpe: jax.Array | None = None) -> jax.Array:
        """The rows of the softmax: V tokens, then positions if configured."""
        if wpe is None or self.model.softmax_rows == "tokens":
            return wte
        return jnp.concatenate([wte, wpe])

    # --- layers ---

    def run_layers(self, block: Block, layers: list[Any], h: jax.Array) -> jax.Array:
        """h_l = block(h_{l-1}) for l = 1..L, unrolled or as a scan."""
        run = jax.checkpoint(block) if self.model.remat else block
        if self.model.layer_loop == "scan":
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
            numbers = jnp.arange(len(layers))
            return jax.lax.scan(
                lambda h, layer: (run(h, *layer), None), h, (stacked, numbers)
            )[0]
        for layer, params in enumerate(layers):
            h = run(h, params, layer)
        return h

    def dense(
        self,
        x: jax.Array,
        weights: Weights,
        activation: products.Activation | None = None,
    ) -> jax.Array:
        """x W + b, or an activation of it: see `products.dense`."""
        return products.dense(x, *weights, self.dtype, activation)

    def project(self, x: jax.Array, weights: Weights) -> Any:
        """x W + b at the end of a branch, in the form that `add_and_norm` takes."""
        if self.model.layer_norm_form != "fused":
            return self.dense(x, weights)
        kernel, bias = weights  # the bias is left to the sum
        return products.matmul(x, kernel, self.dtype).astype(self.dtype), bias

    def add_and_norm(
        self, h: jax.Array, branch: Any, weights: Weights, name: str, layer: Layer
    ) -> jax.Array:
        """LayerNorm(h + branch), [N, T, D], with dropout at the branch's name."""
        if self.model.layer_norm_form != "fused":
            summed = h + self.at(name, branch, layer)
            return layer_norm.layer_norm(summed, *weights, self.dtype)
        site = block_site(layer, _IN_LAYERS[name])
        where = self.model.resid_dropout, self.noise, site, self.token_rows
        fused = find_named(
            layer_norm.FUSED, "config.model.layer_norm_form=fused", "use plain"
        )
        return fused(h, *branch, *weights, *where)

    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, layer: Layer
    ) -> jax.Array:
        """softmax(Q K^T / sqrt(K)) V (sec. 3.1): [N, T, H, K], from three like it."""
        return self.attend_whole((query, key, value), layer, self.noise)

    def attend_whole(
        self,
        qkv: Sequence[jax.Array],
        layer: Layer,
        noise: Noise | None,
        mask_len: int = 0,
    ) -> jax.Array:
        """The same, of whole sequences and their own noise, in the configured form."""
        (query, key, value), form = qkv, self.model.attention_form
        if form == "plain":
            return attention.plain_attention(
                query, key, value, lambda probs: self.at("attn/probs", probs, layer)
            )
        where = self.model.attn_dropout, noise, block_site(layer, ATTN_PROBS)
        if form == "fused":
            fused = find_named(
                attention.FUSED, "config.model.attention_form=fused", "use blocked"
            )
            return fused(query, key, value, *where)
        return attention.causal_attention(query, key, value, *where, mask_len)

    def recur(self, gates: jax.Array, recurrent: Any) -> jax.Array:
        """An LSTM's outputs [N, T, U], from the inputs of its gates [N, T, 4 U]."""
        return lstm(gates, recurrent, self.dtype)
