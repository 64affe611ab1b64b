"""Padded sequences laid end to end, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.ops.unpad import make_unpadding, pad, unpad
from gpt1_jax.tasks.batches import real_indices

SEQ_LEN, WIDTH = 5, 3
LENGTHS = np.array([[2], [5], [1], [4]])


def unpadding_of(devices=1, sizes=10):
    indices = real_indices(LENGTHS, SEQ_LEN, devices, parts=1, unpadded_sizes=sizes)
    return make_unpadding(jnp.asarray(indices), jnp.asarray(LENGTHS.ravel()), SEQ_LEN)


def numbered():
    """[4, 5, 3] arrays of their own indices, from 1 on."""
    return jnp.arange(1.0, 61.0).reshape(4, SEQ_LEN, WIDTH)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_unpad_lays_real_tokens_end_to_end(devices):
    x, unpadded = numbered(), unpad(numbered(), unpadding_of(devices))
    assert unpadded.shape[0] == devices
    for group in range(devices):
        own = range(group * 4 // devices, (group + 1) * 4 // devices)
        expected = np.concatenate([x[n, : LENGTHS[n, 0]] for n in own])
        np.testing.assert_array_equal(unpadded[group, : len(expected)], expected)
        assert not unpadded[group, len(expected) :].any()


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_pad_puts_them_back_with_zeros_for_padding(devices):
    x, unpadding = numbered(), unpadding_of(devices)
    real = (np.arange(SEQ_LEN) < LENGTHS)[..., None]
    np.testing.assert_array_equal(pad(unpad(x, unpadding), unpadding), x * real)


@pytest.mark.parametrize("devices", [1, 4])
def test_they_are_each_others_gradient(devices):
    """<unpad(x), y> = <x, pad(y)>; as autodiff of the same lookups would have it."""
    unpadding = unpadding_of(devices)
    x, unpadded = numbered(), unpad(numbered(), unpadding)
    y = jnp.cos(jnp.arange(unpadded.size)).reshape(
        unpadded.shape
    )  # some behind the last
    np.testing.assert_allclose(
        jnp.vdot(unpadded, y), jnp.vdot(x, pad(y, unpadding)), rtol=1e-6
    )
    np.testing.assert_array_equal(
        jax.vjp(lambda x: unpad(x, unpadding), x)[1](y)[0], pad(y, unpadding)
    )
    np.testing.assert_array_equal(
        jax.vjp(lambda y: pad(y, unpadding), y)[1](x)[0], unpadded
    )


def test_tokens_keep_their_positions_and_numbers():
    """A token's number is that of its element in the padded batch: row T + t."""
    unpadding = unpadding_of(devices=2)
    t = jnp.broadcast_to(jnp.arange(SEQ_LEN), (4, SEQ_LEN))
    rows = jnp.array([7, 9, 2, 30], jnp.uint32)
    real = unpadding.indices < 10
    positions, numbers = unpad(t, unpadding), unpad(rows[:, None] * 5 + t, unpadding)
    np.testing.assert_array_equal(unpadding.positions[real], positions[real])
    np.testing.assert_array_equal(unpadding.rows(rows)[real], numbers[real])


def test_padding_that_is_left_in_changes_nothing():
    x = numbered()
    assert unpad(x, None) is x
    assert pad(x, None) is x
