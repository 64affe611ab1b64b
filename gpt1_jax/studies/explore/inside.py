"""Predictions, attention and layers of a model at each token of a text."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.inference.scoring import round_up_length
from gpt1_jax.model import interventions, language_model
from gpt1_jax.model.language_model import Params


class Inside(NamedTuple):
    """The predictions, attention and layers of a model as it reads N tokens.

    A text longer than the context is read in windows: the values of a token come from
    the first window that holds it. Nothing stands before the first token, so its
    entries in the first four arrays are 0.
    """

    bits: np.ndarray  # [N] float32, -log2 P(token | those before it)
    ranks: np.ndarray  # [N] int32, of it among all tokens; 1 is the likeliest
    expected_ids: np.ndarray  # [N, K] int32, the likeliest tokens in its place
    expected_probs: np.ndarray  # [N, K] float32
    sources: np.ndarray  # [L, H, N, S] int32, the tokens that each attends to most
    weights: np.ndarray  # [L, H, N, S] float32; L is 0 for an LSTM
    similarity: np.ndarray  # [L + 1, L + 1], mean cosine of a token's states in layers
    begins: np.ndarray  # [N] int32, the first token that each can attend to


_TOKEN_AXES = (0, 0, 0, 0, 2, 2, 2, 0)  # of `_read`'s arrays


def joined(
    windows: Sequence[ReadingWindow],
) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of a text, and the span of each word in them.

    Args:
      windows: the windows of one text, in order; each begins with the last tokens of
        the one before it.
    """
    ids: list[int] = []
    spans = []
    for window in windows:
        known = window.num_context if ids else 0
        start = len(ids) - known
        spans += [(start + first, start + stop) for first, stop in window.spans]
        ids += window.ids[known:]
    return ids, spans


def look_inside(
    model: ModelConfig,
    params: Params,
    vocab_size: int,
    windows: Sequence[ReadingWindow],
    num_expected: int = 10,
    num_sources: int = 8,
) -> Inside:
    """Reads a text and keeps what the model expects and attends to.

    Args:
      model: configuration of the language model.
      params: its parameters.
      vocab_size: entries of the tokenizer, without special tokens behind them.
      windows: the windows of one text, as for `joined`.
      num_expected: K.
      num_sources: S, or the length of a window if that is less.

    Returns:
      All in float32; positions are those of the text, from 0.
    """
    model = dataclasses.replace(model, dtype="float32", remat=False)
    longest = max(len(window.ids) for window in windows)
    length = round_up_length(longest, model.max_seq_len)
    found = []
    total = 0  # tokens before the new ones of a window
    for window in windows:
        known = window.num_context if total else 0
        tokens = np.zeros((1, length), np.int32)
        tokens[0, : len(window.ids)] = window.ids
        with jax.default_matmul_precision("highest"):
            read = _read(model, vocab_size, num_expected, num_sources, params, tokens)
        read = Inside(*jax.device_get(read))
        begin = total - known
        read = read._replace(sources=read.sources + begin, begins=read.begins + begin)
        new = range(known, len(window.ids))
        found.append([*map(np.take, read, itertools.repeat(new), _TOKEN_AXES)])
        total += len(new)
    parts = zip(*found, strict=True)
    whole = Inside(*map(np.concatenate, parts, _TOKEN_AXES))
    whole = whole._replace(similarity=whole.similarity.mean(axis=2))
    for values in (whole.bits, whole.ranks, whole.expected_ids, whole.expected_probs):
        values[0] = 0
    return whole


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _read(
    model: ModelConfig,
    vocab_size: int,
    num_expected: int,
    num_sources: int,
    params: Params,
    tokens: jax.Array,
) -> list[jax.Array]:
    """The arrays of an `Inside` of a window [1, T], with a similarity a token."""
    output = language_model.apply(model, params, tokens)
    logits = language_model.logits(model, output)[0, :, :vocab_size]
    log_probs = jnp.roll(jax.nn.log_softmax(logits), 1, axis=0)  # of each place's token
    log_prob = jnp.take_along_axis(log_probs, tokens[0, :, None], axis=1)
    ranks = 1 + jnp.sum(log_probs > log_prob, axis=1)
    expected, expected_ids = jax.lax.top_k(log_probs, num_expected)
    weights = jnp.zeros((0, 1, tokens.shape[1], 1))
    if model.kind == "transformer":
        weights = jnp.concatenate(interventions.attention(model, params, tokens))
    most = min(num_sources, weights.shape[-1])
    weights, sources = jax.lax.top_k(weights, most)
    states = jnp.stack(interventions.hidden_states(model, params, tokens))[:, 0]
    units = states / jnp.linalg.norm(states, axis=-1, keepdims=True)
    similarity = jnp.einsum("itd,jtd->ijt", units, units)
    bits = jnp.abs(log_prob[:, 0]) / math.log(2)
    probs = jnp.exp(expected)
    begins = jnp.zeros_like(ranks)
    return [bits, ranks, expected_ids, probs, sources, weights, similarity, begins]
