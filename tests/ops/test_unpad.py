"""Padded sequences laid end to end, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.ops.unpad import make_packing, pack, unpack
from gpt1_jax.tasks.batches import real_places

SEQ_LEN, WIDTH = 5, 3
LENGTHS = np.array([[2], [5], [1], [4]])


def packing_of(devices=1, sizes=10):
    places = real_places(LENGTHS, SEQ_LEN, devices, parts=1, packed_sizes=sizes)
    return make_packing(jnp.asarray(places), jnp.asarray(LENGTHS.ravel()), SEQ_LEN)


def numbered():
    """[4, 5, 3] arrays of their own indices, from 1 on."""
    return jnp.arange(1.0, 61.0).reshape(4, SEQ_LEN, WIDTH)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_pack_lays_real_tokens_end_to_end(devices):
    x, packed = numbered(), pack(numbered(), packing_of(devices))
    assert packed.shape[0] == devices
    for group in range(devices):
        own = range(group * 4 // devices, (group + 1) * 4 // devices)
        expected = np.concatenate([x[n, : LENGTHS[n, 0]] for n in own])
        np.testing.assert_array_equal(packed[group, : len(expected)], expected)
        assert not packed[group, len(expected) :].any()


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_unpack_puts_them_back_with_zeros_for_padding(devices):
    x, packing = numbered(), packing_of(devices)
    real = (np.arange(SEQ_LEN) < LENGTHS)[..., None]
    np.testing.assert_array_equal(unpack(pack(x, packing), packing), x * real)


@pytest.mark.parametrize("devices", [1, 4])
def test_they_are_each_others_gradient(devices):
    """<pack(x), y> = <x, unpack(y)>; as autodiff of the same lookups would have it."""
    packing = packing_of(devices)
    x, packed = numbered(), pack(numbered(), packing)
    y = jnp.cos(jnp.arange(packed.size)).reshape(packed.shape)  # some behind the last
    np.testing.assert_allclose(
        jnp.vdot(packed, y), jnp.vdot(x, unpack(y, packing)), rtol=1e-6
    )
    np.testing.assert_array_equal(
        jax.vjp(lambda x: pack(x, packing), x)[1](y)[0], unpack(y, packing)
    )
    np.testing.assert_array_equal(
        jax.vjp(lambda y: unpack(y, packing), y)[1](x)[0], packed
    )


def test_tokens_keep_their_positions_and_numbers():
    """A token's number is that of its element in the padded batch: row T + t."""
    packing = packing_of(devices=2)
    t = jnp.broadcast_to(jnp.arange(SEQ_LEN), (4, SEQ_LEN))
    rows = jnp.array([7, 9, 2, 30], jnp.uint32)
    real = packing.places < 10
    positions, numbers = pack(t, packing), pack(rows[:, None] * 5 + t, packing)
    np.testing.assert_array_equal(packing.positions[real], positions[real])
    np.testing.assert_array_equal(packing.rows(rows)[real], numbers[real])


def test_no_packing_changes_nothing():
    x = numbered()
    assert pack(x, None) is x
    assert unpack(x, None) is x
