"""Padding removal: sequences laid end to end, without their padding.

Except for attention, the decoder computes each token by itself, so it can leave out
padding: `unpad` drops it, and `pad` puts zeros in its place where attention needs
whole sequences. Each is the transpose of the other, and hence its gradient.

Attention costs time with the square of the padded length. So the sequences of a batch
can be sorted by length into bands, each padded to a length of its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.execution import Execution, Layer
from gpt1_jax.ops.dropout import Noise


class Unpadding(NamedTuple):
    """Where the real tokens of N padded sequences lie when padding is removed.

    The sequences fall into S groups, so that each device has its own. The R slots of a
    group hold its real tokens in order; the slots left over are empty.
    """

    indices: jax.Array  # [S, R] int32, n * T + t within the group; N / S * T if empty
    slots: jax.Array  # [N, T] int32, the inverse; R for padding
    bands: Optional["Bands"] = None  # how attention pads them, if not all to T

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
    shapes: Optional["BandShapes"] = None,
) -> Unpadding:
    """The padding removal of N sequences of the given lengths, padded to T.

    Args:
      indices: [S, R], indices of the real tokens, as in `Unpadding`.
      lengths: [N] integers, the number of real tokens in each sequence.
      seq_len: T.
      shapes: bands that a group's sequences fit in, if any.
    """
    groups = lengths.reshape(len(indices), -1)
    first = jnp.cumsum(groups, axis=1) - groups
    t = jnp.arange(seq_len)
    slots = jnp.where(t < groups[..., None], first[..., None] + t, indices.shape[1])
    bands = shapes.lay_out(groups, slots, indices.shape[1]) if shapes else None
    return Unpadding(indices, slots.reshape(-1, seq_len), bands)


@jax.custom_vjp
def unpad(x: jax.Array, unpadding: Unpadding) -> jax.Array:
    """[N, T, ...] to [S, R, ...]."""
    return _take(x, unpadding.indices)


@jax.custom_vjp
def pad(x: jax.Array, unpadding: Unpadding) -> jax.Array:
    """[S, R, ...] to [N, T, ...], 0 for padding."""
    return _take(x, unpadding.slots)


unpad.defvjp(
    lambda x, unpadding: (unpad(x, unpadding), unpadding),
    lambda unpadding, grad: (pad(grad, unpadding), None),
)
pad.defvjp(
    lambda x, unpadding: (pad(x, unpadding), unpadding),
    lambda unpadding, grad: (unpad(grad, unpadding), None),
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


# --- bands ---


@jax.tree_util.register_static
class BandShapes(tuple[tuple[int, int], ...]):
    """(N_b, T_b) of each band, its sequences in a group and their padded length."""

    def lay_out(self, lengths: jax.Array, slots: jax.Array, size: int) -> "Bands":
        """The bands of a batch.

        Args:
          lengths: [S, N / S] integers, the real tokens of each group's sequences.
          slots: [S, N / S, T], those of `Unpadding`.
          size: R.
        """
        order = jnp.argsort(lengths, axis=1, descending=True)
        by_length = jnp.take_along_axis(slots, order[..., None], axis=1)
        of_bands = [
            part[:, :, :seq_len].reshape(len(slots), -1)
            for part, (_, seq_len) in zip(_split(by_length, self), self, strict=True)
        ]
        taken = jnp.concatenate(of_bands, axis=1)  # [S, P]

        def inverse(taken: jax.Array) -> jax.Array:
            places = jnp.full(size, len(taken), taken.dtype)
            return places.at[taken].set(jnp.arange(len(taken)), mode="drop")

        return Bands(self, order, Unpadding(jax.vmap(inverse)(taken), taken))


class Bands(NamedTuple):
    """The sequences of each group by falling length, in bands.

    `unpadding` leads to all of them, laid end to end: its slots are [S, P], and its
    indices are places among these P.
    """

    shapes: BandShapes
    order: jax.Array  # [S, N / S] int32, the sequences, the longest first
    unpadding: Unpadding


def pad_in_bands(x: jax.Array, bands: Bands) -> list[jax.Array]:
    """[S, R, ...] to each band's [S N_b, T_b, ...], 0 for padding."""
    sizes = [count * size for count, size in bands.shapes]
    parts = jnp.split(pad(x, bands.unpadding), np.cumsum(sizes)[:-1], axis=1)
    return [
        part.reshape(-1, size, *x.shape[2:])
        for part, (_, size) in zip(parts, bands.shapes, strict=True)
    ]


def unpad_bands(parts: Sequence[jax.Array], bands: Bands) -> jax.Array:
    """The inverse of `pad_in_bands`."""
    flat = [part.reshape(len(bands.order), -1, *part.shape[2:]) for part in parts]
    return unpad(jnp.concatenate(flat, axis=1), bands.unpadding)


def noise_of_bands(noise: Noise | None, bands: Bands) -> list[Noise | None]:
    """Each band's noise, from that of the N sequences."""
    if noise is None:
        return [None] * len(bands.shapes)
    rows = noise.rows.reshape(bands.order.shape)
    rows = jnp.take_along_axis(rows, bands.order, axis=1)
    parts = _split(rows, bands.shapes)
    return [Noise(noise.key, part.reshape(-1)) for part in parts]


def _split(by_length: jax.Array, shapes: BandShapes) -> list[jax.Array]:
    """[S, N / S, ...] in order of length as [S, N_b, ...] for each band."""
    counts = [count for count, _ in shapes]
    return jnp.split(by_length, np.cumsum(counts)[:-1], axis=1)


# --- the model ---


class Unpadded(Execution):
    """Computes padded sequences without their padding: [N, T] becomes [S, R].

    Dropout knows a token by its place in the padded batch, so the masks are the same.

    Args:
      model, noise: as for `Execution`.
      unpadding: where the padding is.
    """

    def __init__(self, model: ModelConfig, noise: Noise | None, unpadding: Unpadding):
        super().__init__(model, noise)
        self._unpadding = unpadding
        if noise is not None:
            self.token_rows = unpadding.rows(noise.rows)

    def look_up(self, wte: Any, tokens: jax.Array) -> jax.Array:
        return super().look_up(wte, unpad(tokens, self._unpadding))

    def positions(self, seq_len: int) -> jax.Array:
        return self._unpadding.positions

    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, layer: Layer
    ) -> jax.Array:
        unpadding, bands = self._unpadding, self._unpadding.bands
        if bands is None or self.model.attention_form in ("plain", "fused"):
            whole = [pad(x, unpadding) for x in (query, key, value)]
            return unpad(self.attend_whole(whole, layer, self.noise), unpadding)
        mask_len = unpadding.slots.shape[1]
        noises = noise_of_bands(self.noise, bands)
        padded = (pad_in_bands(x, bands) for x in (query, key, value))
        attended = [
            self.attend_whole(qkv, layer, noise, mask_len)
            for *qkv, noise in zip(*padded, noises, strict=True)
        ]
        return unpad_bands(attended, bands)

    def recur(self, gates: jax.Array, recurrent: Any) -> jax.Array:
        outputs = super().recur(pad(gates, self._unpadding), recurrent)
        return unpad(outputs, self._unpadding)
