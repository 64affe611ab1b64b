"""Padded sequences laid end to end, and back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.ops.unpad import make_unpadding, pad, unpad
from gpt1_jax.tasks.batches import real_indices, tokens_of_groups

SEQ_LEN, WIDTH = 5, 3
LENGTHS = np.array([[2], [5], [1], [4]])


X = np.arange(1.0, 61.0, dtype=np.float32).reshape(4, SEQ_LEN, WIDTH)
ROWS = np.array([7, 9, 2, 30], np.uint32)
DEVICES = pytest.mark.parametrize("devices", [1, 2, 4])


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
    size = tokens_of_groups(LENGTHS, devices, parts=1).max() + 1
    indices = real_indices(LENGTHS, SEQ_LEN, devices, parts=1, size=size)
    y = np.cos(np.arange(indices.size * WIDTH, dtype=np.float32))
    y = y.reshape(*indices.shape, WIDTH)
    return y, jax.device_get(lay_out(indices, LENGTHS.ravel(), y))


@DEVICES
def test_unpad_lays_real_tokens_end_to_end(devices):
    unpadded = laid_out(devices)[1]["unpadded"]
    assert unpadded.shape[0] == devices
    for group in range(devices):
        own = range(group * 4 // devices, (group + 1) * 4 // devices)
        expected = np.concatenate([X[n, : LENGTHS[n, 0]] for n in own])
        np.testing.assert_array_equal(unpadded[group, : len(expected)], expected)
        assert not unpadded[group, len(expected) :].any()


@DEVICES
def test_pad_puts_them_back_with_zeros_for_padding(devices):
    real = (np.arange(SEQ_LEN) < LENGTHS)[..., None]
    np.testing.assert_array_equal(laid_out(devices)[1]["padded"], X * real)


@DEVICES
def test_they_are_each_others_gradient(devices):
    """<unpad(x), y> = <x, pad(y)>; as autodiff of the same lookups would have it."""
    y, found = laid_out(devices)
    np.testing.assert_allclose(
        np.vdot(found["unpadded"], y), np.vdot(X, found["y padded"]), rtol=1e-6
    )
    of_unpad, of_pad = found["gradients"]
    np.testing.assert_array_equal(of_unpad, found["y padded"])
    np.testing.assert_array_equal(of_pad, found["unpadded"])


@DEVICES
def test_tokens_keep_their_positions_and_numbers(devices):
    """A token's number is that of its element in the padded batch: row T + t."""
    found = laid_out(devices)[1]
    assert found["real"].sum() == LENGTHS.sum()
    for name in ("positions", "numbers"):
        actual, expected = found[name]
        np.testing.assert_array_equal(actual[found["real"]], expected[found["real"]])


def test_padding_that_is_left_in_changes_nothing():
    assert unpad(X, None) is X
    assert pad(X, None) is X
