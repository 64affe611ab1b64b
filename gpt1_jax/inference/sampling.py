"""From next-token scores to a token: the filters of sampling, and the draw.

Each filter is that of the same name in transformers' GenerationConfig, and they apply
in the same order.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.config.sections import SamplingConfig


class Filters(NamedTuple):
    """Filters that a running program takes as scalars; None is not in use."""

    repetition_penalty: jax.Array | None = None  # above 1 makes seen tokens rarer
    temperature: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None


def make_filters(config: SamplingConfig) -> Filters:
    """The filters that a configuration asks for; only the first if it is greedy."""

    def scalar(value: float, off: float) -> jax.Array | None:
        return None if value == off else jnp.float32(value)

    penalty = scalar(config.repetition_penalty, 1.0)
    if not config.do_sample:
        return Filters(penalty)
    return Filters(
        penalty,
        temperature=scalar(config.temperature, 1.0),
        top_p=scalar(config.top_p, 1.0),
        min_p=scalar(config.min_p, 0.0),
    )


def apply_filters(
    scores: jax.Array, filters: Filters, top_k: int, seen: jax.Array | None = None
) -> jax.Array:
    """Scores after all filters in use; excluded tokens have -inf.

    Args:
      scores: [N, V] float32, logits of the next token.
      filters: all filters but one.
      top_k: how many of the best tokens stay; 0 for all. It decides shapes.
      seen: [N, V] bool, tokens of the text so far; for the repetition penalty.
    """
    if filters.repetition_penalty is not None and seen is not None:
        penalty = filters.repetition_penalty
        penalized = jnp.where(scores < 0, scores * penalty, scores / penalty)
        scores = jnp.where(seen, penalized, scores)
    if filters.temperature is not None:
        scores = scores / filters.temperature
    if top_k:
        best, _ = jax.lax.top_k(scores, min(top_k, scores.shape[-1]))
        scores = _without_below(scores, best[:, -1:])
    if filters.top_p is not None:
        scores = _without_below(scores, _lowest_of_top_p(scores, filters.top_p))
    if filters.min_p is not None:
        lowest = scores.max(-1, keepdims=True) + jnp.log(filters.min_p)
        scores = _without_below(scores, lowest)
    return scores


def draw(scores: jax.Array, keys: jax.Array | None) -> jax.Array:
    """A token for each row: drawn by softmax(scores), or the best one without keys.

    Args:
      scores: [N, V] float32.
      keys: [N] random keys, one for each row, so that no row depends on another.

    Returns:
      [N] int32.
    """
    if keys is None:
        return _first(scores == scores.max(-1, keepdims=True))
    # A single random number a row: Gumbel noise would take one for each token.
    summed = jnp.cumsum(jax.nn.softmax(scores), axis=-1)
    points = jax.vmap(jax.random.uniform)(keys)[:, None] * summed[:, -1:]
    return _first(summed > points)


def _first(chosen: jax.Array) -> jax.Array:
    """[N] int32, the first that is chosen in each row; faster on a CPU than argmax."""
    tokens = jnp.arange(chosen.shape[-1], dtype=jnp.int32)
    return jnp.where(chosen, tokens, tokens[-1]).min(-1)


def _without_below(scores: jax.Array, lowest: jax.Array) -> jax.Array:
    return jnp.where(scores < lowest, -jnp.inf, scores)


def _lowest_of_top_p(scores: jax.Array, top_p: jax.Array) -> jax.Array:
    """[N, 1], the lowest score among the best tokens that reach probability `top_p`.

    A token stays if the tokens no better than it have more than 1 - top_p together.
    Found by bisection, which is many times faster than sorting the vocabulary.
    """
    probs = jax.nn.softmax(scores)
    highest = scores.max(-1, keepdims=True)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> Any:
        below, at_least = bounds
        middle = (below + at_least) / 2
        mass = jnp.where(scores <= middle, probs, 0).sum(-1, keepdims=True)
        stays = mass > 1 - top_p
        return jnp.where(stays, below, middle), jnp.where(stays, middle, at_least)

    start = highest - _NEGLIGIBLE, highest
    return jax.lax.fori_loop(0, _HALVINGS, halve, start)[1]


_NEGLIGIBLE = 104.0  # e^-104 is 0 in float32
_HALVINGS = 40  # leave neighbouring float32 numbers
