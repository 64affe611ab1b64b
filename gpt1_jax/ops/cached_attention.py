"""Causal attention of new tokens, which keeps the keys and values of those before."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.ops.attention import MASKED_SCORE, may_attend
from gpt1_jax.ops.products import product

_LANES_BLOCK = 32  # places of a `LanesCache` that are read together


class LayerCache(NamedTuple):
    """Keys and values of the tokens read so far, with room for more.

    M = N H: all heads of the first sequence, then those of the next.
    """

    keys: jax.Array  # [M, S, K]
    values: jax.Array  # [M, S, K]


class LanesCache(LayerCache):
    """`LayerCache` as [S, K, M], for one token at a time on a CPU.

    Its vectors hold the same number of many heads. Those of bfloat16 are kept as bits,
    uint16, since XLA would convert all of them for each token.
    """


def init_layer_cache(shape: tuple[int, ...], dtype: str) -> LayerCache:
    """A layer's cache without tokens; `shape` is (N, S, H, K).

    On a CPU it is always float32: XLA would convert all of a bfloat16 cache for each
    token.
    """
    if jax.default_backend() == "cpu":
        dtype = "float32"
    num_seqs, size, num_heads, head_dim = shape
    rows = num_seqs * num_heads, size, head_dim
    return LayerCache(jnp.zeros(rows, dtype), jnp.zeros(rows, dtype))


def in_lanes(cache: LayerCache, dtype: str) -> LanesCache:
    """The same keys and values of `dtype`, with room for whole blocks of places."""
    room = (0, 0), (0, -cache.keys.shape[1] % _LANES_BLOCK), (0, 0)
    return LanesCache(*(_turned(jnp.pad(x.astype(dtype), room)) for x in cache))


def _turned(x: jax.Array) -> jax.Array:
    """[M, S, K] to [S, K, M], and bfloat16 to its bits."""
    x = jnp.moveaxis(x, 0, -1)
    bits = x.dtype == jnp.bfloat16
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if bits else x


def cached_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    cache: LayerCache,
    taken: jax.Array,
    padding: jax.Array,
) -> tuple[jax.Array, LayerCache]:
    """`causal_attention` of new tokens to those in the cache and to each other.

    Args:
      query, key, value: [N, T, H, K], those of the new tokens; T is 1 in lanes.
      cache: keys and values of the tokens before them, with room for T more.
      taken: int32, how many places of the cache are taken.
      padding: [N] int32, how many places at its beginning hold no token.

    Returns:
      [N, T, H, K] in the inputs' dtype, and the cache with the new tokens.
    """
    num_seqs, seq_len, num_heads, head_dim = query.shape
    dtype, padding = value.dtype, jnp.repeat(padding, num_heads)  # [M]
    query, key, value = (
        x.swapaxes(1, 2).reshape(-1, seq_len, head_dim) for x in (query, key, value)
    )

    lanes = isinstance(cache, LanesCache)
    new = (_turned(x) if lanes else x.astype(cache.keys.dtype) for x in (key, value))
    cache = type(cache)(
        *(
            jax.lax.dynamic_update_slice_in_dim(old, x, taken, 0 if lanes else 1)
            for old, x in zip(cache, new, strict=True)
        )
    )
    if lanes:
        attended = _attend_in_lanes(query[:, 0], cache, taken, padding)[:, None]
    else:
        attended = _attend(query, cache, taken, padding)
    attended = attended.astype(dtype).reshape(num_seqs, num_heads, seq_len, head_dim)
    return attended.swapaxes(1, 2), cache


def _attend(
    query: jax.Array, cache: LayerCache, taken: jax.Array, padding: jax.Array
) -> jax.Array:
    """[M, T, K] float32, for queries [M, T, K]."""
    keys, values = cache
    query = query.astype(keys.dtype)
    scores = product("MTK,MSK->MTS", query, keys) / math.sqrt(query.shape[-1])
    places, padding = jnp.arange(scores.shape[-1]), padding[:, None, None]
    queries = taken + jnp.arange(query.shape[1])[:, None]  # [T, 1]
    seen = _seen(queries, places, padding)  # [M, T, S]
    probs = jax.nn.softmax(jnp.where(seen, scores, MASKED_SCORE), axis=-1)
    return product("MTS,MSK->MTK", probs.astype(values.dtype), values)


def _attend_in_lanes(
    query: jax.Array, cache: LayerCache, taken: jax.Array, padding: jax.Array
) -> jax.Array:
    """[M, K] float32, for one query [M, K] a head, from a `LanesCache`.

    Reads the places that are taken, block by block, and keeps sums that are scaled by
    the highest score so far. Sums over keys' parts and over places are written out,
    because XLA's CPU backend vectorizes only along the last axis.
    """
    keys, values = cache
    query = query.T.astype(jnp.float32) / math.sqrt(query.shape[-1])  # [K, M]

    def add_block(number: jax.Array, sums: tuple[jax.Array, ...]) -> Any:
        highest, total, summed = sums  # [M], [M] and [K, M]
        first = number * _LANES_BLOCK

        def window(x: jax.Array, start: tuple[Any, int], size: tuple[int, int]) -> Any:
            lanes = x.shape[-1]
            return _as_float32(jax.lax.dynamic_slice(x, (*start, 0), (*size, lanes)))

        scores = sum(
            query[k] * window(keys, (first, k), (_LANES_BLOCK, 1))[:, 0]
            for k in range(len(query))
        )
        places = first + jnp.arange(_LANES_BLOCK)[:, None]
        seen = _seen(taken, places, padding)
        scores = jnp.where(seen, scores, MASKED_SCORE)  # [_LANES_BLOCK, M]
        higher = jnp.maximum(highest, scores.max(0))
        weights, decay = jnp.exp(scores - higher), jnp.exp(highest - higher)
        weighted = sum(
            weights[place] * window(values, (first + place, 0), (1, len(query)))[0]
            for place in range(_LANES_BLOCK)
        )
        return higher, total * decay + weights.sum(0), summed * decay + weighted

    zeros = jnp.zeros_like(query)
    start = jnp.full_like(zeros[0], -jnp.inf), zeros[0], zeros
    blocks = taken // _LANES_BLOCK + 1
    _, total, summed = jax.lax.fori_loop(0, blocks, add_block, start)
    return (summed / total).T


def _seen(query: jax.Array, key: jax.Array, padding: jax.Array) -> jax.Array:
    """Whether a query attends to a key; places begin with `padding`."""
    return (key >= padding) & may_attend(query - padding, key - padding)


def _as_float32(x: jax.Array) -> jax.Array:
    """Widens bfloat16's bits, the upper half of float32's; leaves float32 as it is."""
    if x.dtype == jnp.float32:
        return x
    return jax.lax.bitcast_convert_type(x.astype(jnp.uint32) << 16, jnp.float32)
