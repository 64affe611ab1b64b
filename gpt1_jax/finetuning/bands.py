"""Bands: sequences of similar length, which attention pads together.

Attention costs time with the square of the padded length. So the sequences of a batch
are sorted by length into bands, each padded to a length of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.finetuning.steps import Batch
from gpt1_jax.ops.dropout import Noise
from gpt1_jax.ops.unpad import Unpadding, pad, unpad


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

    def attend(
        self,
        attend: Callable[[jax.Array, Noise | None], jax.Array],
        qkv: jax.Array,
        noise: Noise | None,
    ) -> jax.Array:
        """`attend` band by band: [S, R, 3 D] to [S, R, D]; `noise` has N rows."""
        noises = noise_of_bands(noise, self)
        return unpad_bands(list(map(attend, pad_in_bands(qkv, self), noises)), self)


def make_batch(*, bands: Sequence[tuple[int, int]] = (), **arrays: Any) -> Batch:
    """A batch, from its arrays and what `tasks.batches.choose_bands` found for it."""
    return Batch(**arrays, bands=BandShapes(bands) if bands else None)


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
