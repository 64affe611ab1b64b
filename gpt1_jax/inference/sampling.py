"""Sampling text from the language model, token by token."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model import language_model
from gpt1_jax.model.language_model import Output, Params

Sampler = Callable[[Params, jax.typing.ArrayLike, int, jax.Array], jax.Array]


def make_sampler(model: ModelConfig, temperature: float, top_k: int) -> Sampler:
    """A jitted function that continues one sequence.

    Every token takes a forward pass over the whole sequence; there is no cache.

    Args:
      model: configuration of the model to sample from.
      temperature: divides the logits; above 0.
      top_k: the number of most likely tokens to draw from; 0 draws from all.

    Returns:
      (params, tokens [1, T], prompt_len, key) -> [1, T]: the tokens, with those from
      `prompt_len` on replaced by samples.
    """

    @jax.jit
    def sample(
        params: Params, tokens: jax.Array, prompt_len: int, key: jax.Array
    ) -> jax.Array:
        def draw(position: int, tokens: jax.Array) -> jax.Array:
            output = language_model.apply(model, params, tokens)
            last = Output(
                hidden=output.hidden[:, position - 1, None],  # [1, 1, D]
                unembedding=output.unembedding[: model.vocab_size],
            )
            scores = language_model.logits(model, last)[:, 0] / temperature  # [1, V]
            if top_k:
                lowest = jax.lax.top_k(scores, min(top_k, model.vocab_size))[0][:, -1:]
                scores = jnp.where(scores < lowest, -jnp.inf, scores)
            token = jax.random.categorical(jax.random.fold_in(key, position), scores)
            return tokens.at[:, position].set(token)

        return jax.lax.fori_loop(prompt_len, tokens.shape[1], draw, tokens)

    return sample
