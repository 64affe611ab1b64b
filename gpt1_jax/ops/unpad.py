"""Sequences laid end to end, without their padding.

Except for attention, the decoder computes each token by itself, so it can leave out
padding: `pack` drops it, and `unpack` puts zeros in its place where attention needs
whole sequences. Each is the transpose of the other, and hence its gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Packing(NamedTuple):
    """The places of the real tokens of N padded sequences when they are packed.

    The sequences fall into S groups, so that each device packs its own. The R places
    of a group hold its tokens in order; the places left over are empty.
    """

    places: jax.Array  # [S, R] int32, n * T + t within the group; N / S * T if empty
    slots: jax.Array  # [N, T] int32, the inverse; R for padding

    @property
    def positions(self) -> jax.Array:
        """[S, R], the position t of each token."""
        return self.places % self.slots.shape[1]

    def rows(self, sequence_rows: jax.Array) -> jax.Array:
        """[S, R] uint32, global indices of the tokens, from the sequences' [N]."""
        seq_len = self.slots.shape[1]
        groups = sequence_rows.reshape(len(self.places), -1)
        sequence = jnp.minimum(self.places // seq_len, groups.shape[1] - 1)
        first = jnp.take_along_axis(groups, sequence, axis=1) * jnp.uint32(seq_len)
        return first + self.positions.astype(jnp.uint32)


def make_packing(places: jax.Array, lengths: jax.Array, seq_len: int) -> Packing:
    """The packing of N sequences of the given lengths, padded to T.

    Args:
      places: [S, R], as `gpt1_jax.tasks.batches.real_places` lists them.
      lengths: [N] integers, real tokens of each sequence.
      seq_len: T.
    """
    groups = lengths.reshape(len(places), -1)
    first = jnp.cumsum(groups, axis=1) - groups
    t = jnp.arange(seq_len)
    slots = jnp.where(t < groups[..., None], first[..., None] + t, places.shape[1])
    return Packing(places, slots.reshape(-1, seq_len))


def pack(x: jax.Array, packing: Packing | None) -> jax.Array:
    """[N, T, ...] to [S, R, ...]; unchanged without a packing."""
    return x if packing is None else _pack(x, packing)


def unpack(x: jax.Array, packing: Packing | None) -> jax.Array:
    """[S, R, ...] to [N, T, ...], 0 for padding; unchanged without a packing."""
    return x if packing is None else _unpack(x, packing)


@jax.custom_vjp
def _pack(x: jax.Array, packing: Packing) -> jax.Array:
    return _take(x, packing.places)


@jax.custom_vjp
def _unpack(x: jax.Array, packing: Packing) -> jax.Array:
    return _take(x, packing.slots)


_pack.defvjp(
    lambda x, packing: (_pack(x, packing), packing),
    lambda packing, grad: (_unpack(grad, packing), None),
)
_unpack.defvjp(
    lambda x, packing: (_unpack(x, packing), packing),
    lambda packing, grad: (_pack(grad, packing), None),
)


def _take(x: jax.Array, places: jax.Array) -> jax.Array:
    """The elements at the given places in each group; 0 beyond its end."""
    groups = min(len(x), len(places))

    def take(x: jax.Array, places: jax.Array) -> jax.Array:
        return x.at[places].get(mode="fill", fill_value=0)

    taken = jax.vmap(take)(
        x.reshape(groups, -1, *x.shape[2:]), places.reshape(groups, -1)
    )
    return taken.reshape(*places.shape, *x.shape[2:])
