"""A model's state after some tokens, from which it continues to read."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.execution import Execution, Layer
from gpt1_jax.model.language_model import Output, Params, apply
from gpt1_jax.ops.cached_attention import cached_attention, init_layer_cache
from gpt1_jax.ops.lstm import plain_lstm, zero_state


class Cache(NamedTuple):
    """The state of a model after some tokens, from which it continues reading.

    All sequences take the same number of places; shorter ones begin with padding.
    """

    # One tree of arrays per layer; sequences follow one another along the first axis,
    # or the last of a `LanesCache`.
    layers: tuple[Any, ...]
    taken: jax.Array  # int32, places taken so far
    padding: jax.Array  # [N] int32, places in front that hold no token


def init_cache(model: ModelConfig, padding: jax.Array, size: int) -> Cache:
    """A cache that has read nothing yet.

    Args:
      model: sizes and dtype.
      padding: [N] int32, how many padding tokens each sequence will begin with.
      size: the most tokens that a sequence may get, padding included; at most
        `max_seq_len` of them are real. An LSTM's state does not depend on it.
    """
    num_seqs = len(padding)
    if model.kind == "lstm":
        dtype = jnp.dtype(model.dtype)
        layers: Any = (zero_state(num_seqs, model.lstm_units, dtype),)
    else:
        head_dim = model.embed_dim // model.num_heads
        shape = (num_seqs, size, model.num_heads, head_dim)
        layers = tuple(init_layer_cache(shape, model.dtype) for _ in range(model.depth))
    return Cache(layers, jnp.int32(0), padding)


def decode(
    model: ModelConfig, params: Params, tokens: jax.Array, cache: Cache
) -> tuple[Output, Cache]:
    """Like `language_model.apply`, for tokens [N, T] that follow those in the cache.

    Returns:
      The output, and the cache with these tokens added.
    """
    how = _AfterCache(model, cache)
    output = apply(how.model, params, tokens, how)
    taken = cache.taken + tokens.shape[1]
    return output, Cache(tuple(how.layers), taken, cache.padding)


class _AfterCache(Execution):
    """Reads tokens after those in a cache, and keeps the state after them."""

    def __init__(self, model: ModelConfig, cache: Cache):
        unrolled: dict[str, Any] = {"layer_loop": "unrolled", "remat": False}
        super().__init__(dataclasses.replace(model, **unrolled))
        self._cache = cache
        self.layers = list(cache.layers)  # updated layer by layer

    def positions(self, seq_len: int) -> jax.Array:
        places = self._cache.taken + jnp.arange(seq_len)
        return jnp.maximum(places - self._cache.padding[:, None], 0)

    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, layer: Layer
    ) -> jax.Array:
        where = self._cache.taken, self._cache.padding
        attended, self.layers[layer] = cached_attention(
            query, key, value, self.layers[layer], *where
        )
        return attended

    def recur(self, gates: jax.Array, recurrent: Any) -> jax.Array:
        padding = self._cache.padding - self._cache.taken
        outputs, self.layers[0] = plain_lstm(gates, recurrent, self.layers[0], padding)
        return outputs
