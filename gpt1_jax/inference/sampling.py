"""Draws the next token from logits, after the filters of sampling.

The filters have the names, the meaning and the order of those in transformers'
GenerationConfig.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.config.sections import SamplingConfig


class Filters(NamedTuple):
    """Filters that a compiled program takes as scalars; None switches one off."""

    repetition_penalty: jax.Array | None = None  # above 1 makes seen tokens rarer
    temperature: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None


def make_filters(config: SamplingConfig) -> Filters:
    """The filters of a configuration; a greedy one uses only the first."""

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
    logits: jax.Array, filters: Filters, top_k: int, seen: jax.Array | None = None
) -> jax.Array:
    """Applies all filters in use; excluded tokens get -inf.

    Args:
      logits: [N, V] float32, of the next token.
      filters: all filters but top_k.
      top_k: the number of best tokens that stay; 0 keeps all. It decides shapes.
      seen: [N, V] bool, tokens of the text so far; for the repetition penalty.
    """
    if filters.repetition_penalty is not None and seen is not None:
        penalty = filters.repetition_penalty
        penalized = jnp.where(logits < 0, logits * penalty, logits / penalty)
        logits = jnp.where(seen, penalized, logits)
    if filters.temperature is not None:
        logits = logits / filters.temperature
    if top_k:
        best, _ = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
        logits = _without_below(logits, best[:, -1:])
    if filters.top_p is not None:
        logits = _without_below(logits, _lowest_of_top_p(logits, filters.top_p))
    if filters.min_p is not None:
        lowest = logits.max(-1, keepdims=True) + jnp.log(filters.min_p)
        logits = _without_below(logits, lowest)
    return logits


def draw(logits: jax.Array, keys: jax.Array | None) -> jax.Array:
    """Draws a token for each row from softmax(logits); without keys, takes the best.

    Args:
      logits: [N, V] float32.
      keys: [N] random keys, one for each row, so that no row depends on another.

    Returns:
      [N] int32.
    """
    if keys is None:
        return _first(logits == logits.max(-1, keepdims=True))
    # One random number for each row; Gumbel noise would take one for each token.
    summed = jnp.cumsum(jax.nn.softmax(logits), axis=-1)
    points = jax.vmap(jax.random.uniform)(keys)[:, None] * summed[:, -1:]
    # Sums in parts round apart: they are not constant where tokens are excluded.
    return _first(summed > points, logits > -jnp.inf)


def _first(chosen: jax.Array, among: jax.Array | bool = True) -> jax.Array:
    """The first chosen token of each row, [N] int32; faster on a CPU than argmax.

    Only tokens of `among` are taken: the last of them if none of them is chosen.
    """
    tokens = jnp.arange(chosen.shape[-1], dtype=jnp.int32)
    last = jnp.where(among, tokens, 0).max(-1, keepdims=True)
    return jnp.where(chosen & among, tokens, last).min(-1)


def _without_below(logits: jax.Array, lowest: jax.Array) -> jax.Array:
    return jnp.where(logits < lowest, -jnp.inf, logits)


def _lowest_of_top_p(logits: jax.Array, top_p: jax.Array) -> jax.Array:
    """[N, 1], the lowest score among the best tokens that reach probability `top_p`.

    A token stays if the tokens no better than it have more than 1 - top_p together.
    Found by bisection, which is many times faster than sorting the vocabulary.
    """
    probs = jax.nn.softmax(logits)
    highest = logits.max(-1, keepdims=True)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> Any:
        below, at_least = bounds
        middle = (below + at_least) / 2
        mass = jnp.where(logits <= middle, probs, 0).sum(-1, keepdims=True)
        stays = mass > 1 - top_p
        return jnp.where(stays, below, middle), jnp.where(stays, middle, at_least)

    start = highest - _NEGLIGIBLE, highest
    return jax.lax.fori_loop(0, _HALVINGS, halve, start)[1]


_NEGLIGIBLE = 104.0  # e^-104 is 0 in float32
_HALVINGS = 40  # enough to reach neighbouring float32 numbers
