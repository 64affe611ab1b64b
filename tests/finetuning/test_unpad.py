"""Padded sequences laid end to end, and back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.finetuning.unpad import (
    BandShapes,
    make_unpadding,
    noise_of_bands,
    pad,
    pad_in_bands,
    unpad,
    unpad_bands,
)
from gpt1_jax.ops.dropout import Noise
from gpt1_jax.tasks.batches import lengths_by_group, real_indices

SEQ_LEN, WIDTH = 5, 3
LENGTHS = np.array([[2], [5], [1], [4]])


X = np.arange(1.0, 61.0, dtype=np.float32).reshape(4, SEQ_LEN, WIDTH)
ROWS = np.array([7, 9, 2, 30], np.uint32)


@jax.jit
def lay_out(indices, lengths, y):
    """`X` without padding and with it again, gradients, positions and numbers."""
    unpadding = make_unpadding(indices, lengths, SEQ_LEN)
    unpadded, of_unpad = jax.vjp(lambda x: unpad(x, unpadding), X)
    padded, of_pad = jax.vjp(lambda y: pad(y, unpadding), y)
    t = jnp.broadcast_to(jnp.arange(SEQ_LEN), (4, SEQ_LEN))
    return {
        "unpadded": unpadded,
        "padded": pad(unpadded, unpadding),
        "y padded": padded,
        "gradients": (of_unpad(y)[0], of_pad(X)[0]),
        "real": unpadding.indices < 4 * SEQ_LEN // len(indices),
        "positions": (unpadding.positions, unpad(t, unpadding)),
        "numbers": (
            unpadding.rows(ROWS),
            unpad(ROWS[:, None] * SEQ_LEN + t, unpadding),
        ),
    }


@functools.cache
def laid_out(devices):
    """What `lay_out` comes to; `y` is also behind the last token."""
    lengths = lengths_by_group(LENGTHS, devices, parts=1)
    indices = real_indices(lengths, SEQ_LEN, lengths.sum(-1).max() + 1)
    y = np.cos(np.arange(indices.size * WIDTH, dtype=np.float32))
    y = y.reshape(*indices.shape, WIDTH)
    return y, jax.device_get(lay_out(indices, LENGTHS.ravel(), y))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_unpad_lays_real_tokens_end_to_end_and_pad_puts_them_back(devices):
    """With zeros for padding. Each is the other's gradient: <unpad(x), y> = <x, pad(y)>

    A token keeps its position, and its number in the padded batch: row T + t.
    """
    y, found = laid_out(devices)
    unpadded = found["unpadded"]
    assert unpadded.shape[0] == devices
    for group in range(devices):
        own = range(group * 4 // devices, (group + 1) * 4 // devices)
        expected = np.concatenate([X[n, : LENGTHS[n, 0]] for n in own])
        np.testing.assert_array_equal(unpadded[group, : len(expected)], expected)
        assert not unpadded[group, len(expected) :].any()
    real = (np.arange(SEQ_LEN) < LENGTHS)[..., None]
    np.testing.assert_array_equal(found["padded"], X * real)
    np.testing.assert_allclose(
        np.vdot(unpadded, y), np.vdot(X, found["y padded"]), rtol=1e-6
    )
    of_unpad, of_pad = found["gradients"]
    np.testing.assert_array_equal(of_unpad, found["y padded"])
    np.testing.assert_array_equal(of_pad, unpadded)
    assert found["real"].sum() == LENGTHS.sum()
    for name in ("positions", "numbers"):
        actual, expected = found[name]
        np.testing.assert_array_equal(actual[found["real"]], expected[found["real"]])


@pytest.mark.parametrize("devices", [1, 2])
def test_bands_hold_the_sequences_by_length(devices):
    """And lead back, with the gradient of the same lookups; rows go with sequences."""
    shapes = BandShapes({1: ((1, 5), (2, 4), (1, 1)), 2: ((1, 5), (1, 2))}[devices])
    order = [1, 3, 0, 2]
    y, _ = laid_out(devices)

    @jax.jit
    def both(y):
        groups = lengths_by_group(LENGTHS, devices, parts=1)
        indices = real_indices(groups, SEQ_LEN, y.shape[1])
        lengths = jnp.asarray(LENGTHS.ravel())
        unpadding = make_unpadding(jnp.asarray(indices), lengths, SEQ_LEN, shapes)
        bands = unpadding.bands
        parts, transposed = jax.vjp(lambda y: pad_in_bands(y, bands), y)
        assert noise_of_bands(None, bands) == [None] * len(shapes)
        noise = noise_of_bands(Noise(jax.random.key(0), jnp.asarray(ROWS)), bands)
        rows = [own.rows for own in noise]
        back = unpad_bands(parts, bands)
        return parts, back, transposed(parts)[0], rows, pad(y, unpadding)

    parts, back, gradient, rows, padded = jax.device_get(both(y))
    sequences = np.array_split(order, np.cumsum([n * devices for n, _ in shapes])[:-1])
    for part, own, numbers, (_, size) in zip(
        parts, sequences, rows, shapes, strict=True
    ):
        assert sorted(numbers) == sorted(ROWS[own])
        for sequence, number in zip(part, numbers, strict=True):
            [n] = np.flatnonzero(number == ROWS)
            np.testing.assert_array_equal(sequence, padded[n, :size])
    real = np.arange(y.shape[1]) < LENGTHS.reshape(devices, -1).sum(1)[:, None]
    np.testing.assert_array_equal(back, y * real[..., None])
    np.testing.assert_array_equal(gradient, back)
