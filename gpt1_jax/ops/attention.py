"""Causal multi-head attention with dropout on its probabilities."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.ops.dropout import (
    Noise,
    dropout,
    keep_mask,
    keep_scale,
    site_words,
)
from gpt1_jax.ops.products import einsum, product, row_major, transposed_product

MASKED_SCORE = -1e9  # replaces the scores of keys after the query (released code)
BLOCK_SIZE = 128  # positions computed together
MASK_NDIM = 3  # heads h and h + H / 2 share the dropout hash of a query and a key

# `causal_attention` for `config.model.attention_form="fused"`, imported on demand.
FUSED = "gpt1_jax.kernels.attention:fused_causal_attention"


def may_attend(query: jax.Array, key: jax.Array) -> jax.Array:
    """Whether a token attends to another: not to those after it (sec. 3.1).

    Every form of attention asks this function, so a change here changes training,
    generation and scores alike. It may exclude more, such as tokens far back; see
    `check_rule`.

    Args:
      query, key: the positions of both tokens, integers that broadcast.

    Returns:
      Booleans.
    """
    return key <= query


def is_causal(seq_len: int) -> bool:
    """Whether each of T tokens attends to all before it, as fused kernels assume."""
    return bool((_rule(seq_len) == np.tri(seq_len, dtype=bool)).all())


def check_rule(seq_len: int) -> None:
    """Refuses a rule by which one of T tokens attends to a later one.

    Raises:
      ValueError: if it does; a language model has yet to predict that one.
    """
    if (_rule(seq_len) & ~np.tri(seq_len, dtype=bool)).any():
        raise ValueError(
            "ops.attention.may_attend lets a token attend to a later one, which the "
            "model has yet to predict; it must be False wherever key > query."
        )


def _rule(seq_len: int) -> np.ndarray:
    """[T, T] bool, whether each query attends to each key."""
    places: Any = np.arange(seq_len)  # so that nothing is compiled
    with jax.ensure_compile_time_eval():
        return np.asarray(may_attend(places[:, None], places))


def split_heads(qkv: jax.Array, num_heads: int) -> list[jax.Array]:
    """[N, T, 3 D] to query, key and value, each [N, T, H, K]."""
    heads = (*qkv.shape[:2], num_heads, qkv.shape[-1] // (3 * num_heads))
    return [part.reshape(heads) for part in jnp.split(qkv, 3, axis=-1)]


def join_heads(x: jax.Array) -> jax.Array:
    """[N, T, H, K] to [N, T, D]."""
    return x.reshape(*x.shape[:2], -1)


def attention_probs(query: jax.Array, key: jax.Array) -> jax.Array:
    """softmax(Q K^T / sqrt(K)) over the keys that each query may attend to (sec. 3.1).

    Args:
      query, key: [N, T, H, K].

    Returns:
      [N, H, T, T] float32; row t says how much token t attends to each token.
    """
    seq_len, head_dim = query.shape[1], query.shape[-1]
    scores = einsum("NTHK,NSHK->NHTS", query, key) / math.sqrt(head_dim)
    places = jnp.arange(seq_len)
    seen = may_attend(places[:, None], places)  # [T, S]
    scores = jnp.where(seen, scores, MASKED_SCORE)  # [N, H, T, S]
    return jax.nn.softmax(scores, axis=-1)


def plain_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    drop: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """softmax(Q K^T / sqrt(K)) V [N, T, H, K], with `drop` on the probabilities."""
    probs = drop(attention_probs(query, key))
    attended = einsum("NHTS,NSHK->NTHK", probs.astype(value.dtype), value)
    return attended.astype(value.dtype)


def plain_causal_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
) -> jax.Array:
    """The formula of `causal_attention`; its autodiff keeps [T, T] arrays."""

    def drop(probs: jax.Array) -> jax.Array:
        return dropout(probs, dropout_rate, noise, site, unit_ndim=MASK_NDIM)

    return plain_attention(query, key, value, drop)


def causal_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    mask_len: int = 0,
) -> jax.Array:
    """softmax(Q K^T / sqrt(K)) V over the keys that each query may attend to.

    The operands of the products have the inputs' dtype; the softmax is float32. It is
    computed in blocks. Blocks that causality hides are skipped, and no [T, T] array is
    kept for the backward pass, so the memory kept grows with T, not its square.

    Args:
      query, key, value: [N, T, H, K].
      dropout_rate: dropout rate of the probabilities, applied after the softmax.
      noise: this step's noise; None for no dropout.
      site: dropout site of the probabilities.
      mask_len: the length whose dropout masks to use, of which those of T tokens are
        the first part; 0: T.

    Returns:
      [N, T, H, K] in the inputs' dtype.
    """
    mask = None
    if noise is not None and dropout_rate > 0.0:
        mask = site_words(noise, site), noise.rows
    return _blocked(query, key, value, mask, dropout_rate, mask_len or query.shape[1])


# Determines a dropout mask: its key as words [2], and the global rows [N].
_Mask = tuple[jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _blocked(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: _Mask | None,
    dropout_rate: float,
    mask_len: int,
) -> jax.Array:
    return _blocked_fwd(query, key, value, mask, dropout_rate, mask_len)[0]


def _blocked_fwd(query, key, value, mask, dropout_rate, mask_len):
    """One block of queries after another, each with the keys that it sees."""
    query = heads_first(query)
    key_value = heads_first(jnp.concatenate([key, value]))  # [2 N, H, T, K]
    mask_shape = query.shape[1], mask_len, mask_len
    outputs, log_sums = [], []
    for start, stop in _blocks(query.shape[2]):
        rows, columns = slice(start, stop), slice(0, stop)
        keys, values = jnp.split(key_value[:, :, columns], 2)
        scores = product("NHTK,NHSK->NHTS", query[:, :, rows], keys)
        scores = _mask(scores / math.sqrt(query.shape[-1]), rows, columns)
        highest = scores.max(-1, keepdims=True)
        weights = jnp.exp(scores - highest)
        total = weights.sum(-1, keepdims=True)
        drop = _block_dropout(mask, mask_shape, rows, columns, dropout_rate)
        kept = drop(weights).astype(value.dtype)
        summed = product("NHTS,NHSK->NHTK", kept, values)
        outputs.append((summed / total).astype(value.dtype))
        log_sums.append(highest + jnp.log(total))
    output = heads_first(jnp.concatenate(outputs, axis=2))  # [N, T, H, K]
    log_sum = jnp.concatenate(log_sums, axis=2)  # [N, H, T, 1]
    return output, (query, key_value, output, log_sum, mask)


def _blocked_bwd(dropout_rate, mask_len, residuals, grad):
    """One block of keys after another, each with the queries that see it.

    Probabilities and masks are recomputed. With P the probabilities, M the scaled mask
    and A = P * M: dV = A^T dO, dS = P * (dO V^T * M - rowsum(dO * O)) / sqrt(K),
    dQ = dS K, dK = dS^T Q. A single product gives both Q K^T and dO V^T; it needs dO,
    so XLA cannot compute Q K^T in the forward pass and keep it.
    """
    query, key_value, output, log_sum, mask = residuals
    dtype, (num_seqs, num_heads, seq_len, head_dim) = query.dtype, query.shape
    mask_shape = num_heads, mask_len, mask_len
    correction = grad.astype(jnp.float32) * output.astype(jnp.float32)
    correction = correction.sum(-1).swapaxes(1, 2)[..., None]  # [N, H, T, 1]
    query_grad = jnp.concatenate([query, heads_first(grad)])  # [2 N, H, T, K]
    d_query = jnp.zeros(query.shape, jnp.float32)
    d_keys, d_values = [], []
    for start, stop in _blocks(seq_len):
        rows, columns = slice(start, seq_len), slice(start, stop)
        both = query_grad[:, :, rows]
        products = product("NHTK,NHSK->NHTS", both, key_value[:, :, columns])
        scores, d_kept = jnp.split(products, 2)
        scores = _mask(scores / math.sqrt(head_dim), rows, columns)
        probs = jnp.exp(scores - log_sum[:, :, rows])
        drop = _block_dropout(mask, mask_shape, rows, columns, dropout_rate)
        d_scores = probs * (drop(d_kept) - correction[:, :, rows])
        d_scores = (d_scores / math.sqrt(head_dim)).astype(dtype)
        queries, grads = jnp.split(both, 2)
        d_keys.append(transposed_product(d_scores, queries).astype(dtype))
        kept = drop(probs).astype(dtype)
        d_values.append(transposed_product(kept, grads).astype(dtype))
        keys = key_value[:num_seqs, :, columns]
        to_query = product("NHTS,NHSK->NHTK", d_scores, keys)
        d_query = d_query.at[:, :, rows].add(to_query)
    d_key, d_value = (jnp.concatenate(parts, axis=2) for parts in (d_keys, d_values))
    return *map(heads_first, (d_query.astype(dtype), d_key, d_value)), None


_blocked.defvjp(_blocked_fwd, _blocked_bwd)


def heads_first(x: jax.Array) -> jax.Array:
    """[N, T, H, K] to [N, H, T, K], or back."""
    return row_major(x.swapaxes(1, 2))


def _blocks(seq_len: int) -> list[tuple[int, int]]:
    """(start, stop) of each block of positions."""
    starts = range(0, seq_len, BLOCK_SIZE)
    return [(start, min(start + BLOCK_SIZE, seq_len)) for start in starts]


def _mask(scores: jax.Array, rows: slice, columns: slice) -> jax.Array:
    """Masks the scores of keys that a query may not attend to.

    Args:
      scores: [N, H, queries, keys].
      rows, columns: the positions of the queries and of the keys.
    """
    queries, keys = (
        part.start + jax.lax.broadcasted_iota(jnp.int32, scores.shape[2:], axis)
        for axis, part in enumerate((rows, columns))
    )
    return jnp.where(may_attend(queries, keys), scores, MASKED_SCORE)


def _block_dropout(
    mask: _Mask | None,
    shape: tuple[int, int, int],
    rows: slice,
    columns: slice,
    rate: float,
) -> Callable[[jax.Array], jax.Array]:
    """Dropout on a block of the probabilities; `shape` is that of their mask."""
    if mask is None:
        return lambda x: x
    places = ((part.start, part.stop - part.start) for part in (rows, columns))
    window = (0, shape[0]), *places
    keep = keep_mask(*mask, shape, rate, window, MASK_NDIM)
    return lambda x: jnp.where(keep, x * keep_scale(rate), 0)
