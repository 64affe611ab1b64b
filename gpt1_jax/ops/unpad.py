"""Padding removal: sequences laid end to end, without their padding.

Except for attention, the decoder computes each token by itself, so it can leave out
padding: `unpad` drops it, and `pad` puts zeros in its place where attention needs
whole sequences. Each is the transpose of the other, and hence its gradient.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Unpadding(NamedTuple):
    """Where the real tokens of N padded sequences lie when padding is removed.

    The sequences fall into S groups, so that each device has its own. The R slots of a
    group hold its real tokens in order; the slots left over are empty.
    """

    indices: jax.Array  # [S, R] int32, n * T + t within the group; N / S * T if empty
    slots: jax.Array  # [N, T] int32, the inverse; R for padding
    bands: Any = None  # pads for attention, if not all to T: `finetuning.bands.Bands`

    @property
    def positions(self) -> jax.Array:
        """[S, R], the position t of each token."""
        return self.indices % self.slots.shape[1]

    def rows(self, sequence_rows: jax.Array) -> jax.Array:
        """[S, R] uint32, global indices of the tokens, from the sequences' [N]."""
        seq_len = self.slots.shape[1]
        groups = sequence_rows.reshape(len(self.indices), -1)
        sequence = jnp.minimum(self.indices // seq_len, groups.shape[1] - 1)
        first = jnp.take_along_axis(groups, sequence, axis=1) * jnp.uint32(seq_len)
        return first + self.positions.astype(jnp.uint32)


def make_unpadding(
    indices: jax.Array,
    lengths: jax.Array,
    seq_len: int,
    shapes: Any = None,
) -> Unpadding:
    """The padding removal of N sequences of the given lengths, padded to T.

    Args:
      indices: [S, R], indices of the real tokens, as in `Unpadding`.
      lengths: [N] integers, the number of real tokens in each sequence.
      seq_len: T.
      shapes: `finetuning.bands.BandShapes` that a group's sequences fit in, if any.
    """
    groups = lengths.reshape(len(indices), -1)
    first = jnp.cumsum(groups, axis=1) - groups
    t = jnp.arange(seq_len)
    slots = jnp.where(t < groups[..., None], first[..., None] + t, indices.shape[1])
    bands = shapes and shapes.lay_out(groups, slots, indices.shape[1])
    return Unpadding(indices, slots.reshape(-1, seq_len), bands)


def unpad(x: jax.Array, unpadding: Unpadding | None) -> jax.Array:
    """[N, T, ...] to [S, R, ...]; unchanged if padding is left in."""
    return x if unpadding is None else _unpad(x, unpadding)


def pad(x: jax.Array, unpadding: Unpadding | None) -> jax.Array:
    """[S, R, ...] to [N, T, ...], 0 for padding; unchanged if padding is left in."""
    return x if unpadding is None else _pad(x, unpadding)


@jax.custom_vjp
def _unpad(x: jax.Array, unpadding: Unpadding) -> jax.Array:
    return _take(x, unpadding.indices)


@jax.custom_vjp
def _pad(x: jax.Array, unpadding: Unpadding) -> jax.Array:
    return _take(x, unpadding.slots)


_unpad.defvjp(
    lambda x, unpadding: (_unpad(x, unpadding), unpadding),
    lambda unpadding, grad: (_pad(grad, unpadding), None),
)
_pad.defvjp(
    lambda x, unpadding: (_pad(x, unpadding), unpadding),
    lambda unpadding, grad: (_unpad(grad, unpadding), None),
)


def _take(x: jax.Array, indices: jax.Array) -> jax.Array:
    """The elements at the given indices in each group; 0 beyond its end."""
    groups = min(len(x), len(indices))

    def take(x: jax.Array, indices: jax.Array) -> jax.Array:
        return x.at[indices].get(mode="fill", fill_value=0)

    taken = jax.vmap(take)(
        x.reshape(groups, -1, *x.shape[2:]), indices.reshape(groups, -1)
    )
    return taken.reshape(*indices.shape, *x.shape[2:])
