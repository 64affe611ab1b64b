"""The context of a forward pass: dropout noise, padding removal and cache."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.ops.dropout import Noise
from gpt1_jax.ops.unpad import Unpadding


class Cache(NamedTuple):
    """The state of a model after some tokens, from which it continues reading.

    All sequences take the same number of places; shorter ones begin with padding.
    """

    # One tree of arrays per layer; sequences follow one another along the first axis,
    # or the last of a `LanesMemory`.
    layers: tuple[Any, ...]
    taken: jax.Array  # int32, places taken so far
    padding: jax.Array  # [N] int32, places in front that hold no token


class Context(NamedTuple):
    """Options of a forward pass; by default no dropout, and whole sequences."""

    noise: Noise | None = None  # this training step's noise; None: no dropout
    unpadding: Unpadding | None = None  # leaves out the padding behind sequences
    cache: Cache | None = None  # the state after the preceding tokens
    tree: Any = None  # what each token follows, if some share it: a `PrefixTree`

    def positions(self, seq_len: int) -> jax.Array | None:
        """Each token's position, [N, T] or unpadded [S, R]; None if it is 0 to T-1."""
        if self.cache is not None:
            places = self.cache.taken + jnp.arange(seq_len)
            return jnp.maximum(places - self.cache.padding[:, None], 0)
        given = self.unpadding if self.tree is None else self.tree
        return None if given is None else given.positions

    def token_rows(self) -> jax.Array | None:
        """[S, R], each token's row for dropout; None without padding removal or noise.

        Rows are numbered as in the padded batch, so the masks are the same.
        """
        if self.noise is None or self.unpadding is None:
            return None
        return self.unpadding.rows(self.noise.rows)
