"""How batches and states lie on eight devices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from gpt1_jax.parallel.mesh import (
    batch_sharding,
    check_batch_size,
    data_parallelism,
    make_mesh,
    replicated,
    state_sharding,
    to_global_batch,
)


class Pair(NamedTuple):
    tokens: np.ndarray
    places: np.ndarray | None


def test_make_mesh_takes_all_devices_or_those_given():
    assert make_mesh().devices.ravel().tolist() == jax.devices()
    assert make_mesh(jax.devices()[:2]).devices.ravel().tolist() == jax.devices()[:2]


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_data_parallelism_is_the_number_of_parts_of_a_batch(devices):
    mesh = make_mesh(jax.devices()[:devices])
    assert data_parallelism(mesh) == devices
    batch = to_global_batch(np.arange(16), mesh)
    parts = {str(shard.index) for shard in batch.addressable_shards}
    assert len(parts) == devices


def test_to_global_batch_splits_every_array_of_a_tree():
    mesh = make_mesh()
    local = Pair(np.arange(48).reshape(16, 3), None)
    batch = to_global_batch(local, mesh)
    assert batch.places is None
    assert batch.tokens.sharding == batch_sharding(mesh)
    np.testing.assert_array_equal(batch.tokens, local.tokens)
    for number, shard in enumerate(batch.tokens.addressable_shards):
        rows = local.tokens[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(shard.data, rows)


def test_state_sharding_has_a_sharding_for_each_array():
    """Today each array is whole on each device."""
    mesh = make_mesh()

    def fresh():
        params = {"wte": jnp.ones((6, 4)), "h_0": {"bias": jnp.zeros(4)}}
        return {"params": params, "step": jnp.int32(0)}

    shardings = state_sharding(mesh, jax.eval_shape(fresh))
    assert jax.tree.structure(shardings) == jax.tree.structure(fresh())
    assert all(isinstance(s, NamedSharding) for s in jax.tree.leaves(shardings))
    state = jax.jit(fresh, out_shardings=shardings)()
    for leaf in jax.tree.leaves(state):
        assert [shard.data.shape for shard in leaf.addressable_shards] == [
            leaf.shape
        ] * 8


def test_replicated_is_whole_on_every_device():
    scalar = jax.device_put(jnp.float32(2.5), replicated(make_mesh()))
    assert [shard.data.item() for shard in scalar.addressable_shards] == [2.5] * 8


def test_check_batch_size_refuses_what_devices_and_parts_do_not_divide():
    mesh = make_mesh()
    check_batch_size("config.train.batch_size", 16, mesh)
    check_batch_size("config.train.batch_size", 16, mesh, parts=2)
    with pytest.raises(ValueError) as error:
        check_batch_size("config.train.batch_size", 12, mesh)
    assert str(error.value) == (
        "config.train.batch_size=12 must be a multiple of the 8 devices; "
        "use --config.train.batch_size=16."
    )
    message = r"=24 .* 8 devices times 2 accumulation steps; use .*=32\."
    with pytest.raises(ValueError, match=message):
        check_batch_size("config.train.batch_size", 24, mesh, parts=2)
