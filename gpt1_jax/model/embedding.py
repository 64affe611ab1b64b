"""The embedding of tokens and, in a Transformer, of positions (eq. 2, first line)."""

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.context import Context
from gpt1_jax.model.sites import EMBED_POSITION_SITE, EMBED_SITE
from gpt1_jax.ops.dropout import dropout
from gpt1_jax.ops.unpad import unpad
from gpt1_jax.parallel.exchange import Gathered, SplitTable, look_up


def embed(
    cfg: ModelConfig,
    wte: jax.Array | SplitTable,
    wpe: jax.Array | None,
    tokens: jax.Array,
    context: Context,
) -> tuple[jax.Array, jax.Array | Gathered]:
    """h_0 = U W_e + W_p (eq. 2) and the output matrix, with embedding dropout.

    Args:
      cfg: the model's configuration.
      wte: [V, D].
      wpe: [max_seq_len, D]; None if the model has no position embedding (W_p = 0).
      tokens: [N, T].
      context: dropout and padding removal, or a cache.

    Returns:
      h_0 [N, T, D], or [S, R, D] if unpadded; and the softmax rows [rows, D]: V tokens,
      then `max_seq_len` positions if configured.

    Raises:
      ValueError: if T exceeds `max_seq_len`.
    """
    seq_len = tokens.shape[-1]
    if seq_len > cfg.max_seq_len:
        raise ValueError(
            f"tokens has {seq_len} positions but the model has max_seq_len="
            f"{cfg.max_seq_len}; shorten the sequences or raise max_seq_len."
        )

    def drop(x: jax.Array, site: int, rows: jax.Array | None) -> jax.Array:
        return dropout(x, cfg.embed_dropout, context.noise, site, rows=rows)

    unpadding, rows = context.unpadding, context.token_rows()
    if cfg.embed_dropout_on == "matrix" and not isinstance(wte, SplitTable):
        # Released code: one mask on the matrix that lookup and softmax share.
        row_ids = jnp.arange(cfg.vocab_size + cfg.max_seq_len, dtype=jnp.uint32)
        wte = drop(wte, EMBED_SITE, row_ids[: cfg.vocab_size])
        if wpe is not None:
            wpe = drop(wpe, EMBED_SITE, row_ids[cfg.vocab_size :])
    x = look_up(wte, unpad(tokens, unpadding))  # [N, T, D] or [S, R, D]
    if cfg.embed_dropout_on == "lookups":
        x = drop(x, EMBED_SITE, rows)
    if wpe is not None:
        positions = context.positions(seq_len)
        vectors = wpe[:seq_len] if positions is None else wpe[positions]
        if cfg.embed_dropout_on == "lookups":
            vectors = jnp.broadcast_to(vectors, x.shape)
            vectors = drop(vectors, EMBED_POSITION_SITE, rows)
        x = x + vectors
    if cfg.embed_dropout_on == "sum":
        x = drop(x, EMBED_SITE, rows)
    if isinstance(wte, SplitTable):
        return x.astype(cfg.dtype), wte.softmax
    unembedding = wte
    if wpe is not None and cfg.softmax_rows == "tokens+positions":
        unembedding = jnp.concatenate([wte, wpe])
    return x.astype(cfg.dtype), unembedding
