"""How batches and states lie on eight devices."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.parallel.exchange import rows_by_device
from gpt1_jax.parallel.mesh import (
    batch_sharding,
    check_batch_size,
    gathered,
    make_mesh,
    splits_state,
    state_sharding,
    to_global_batch,
)


class Pair(NamedTuple):
    tokens: np.ndarray
    real_indices: np.ndarray | None


def test_auto_splits_the_state_of_several_accelerators():
    """Devices of a CPU share its memory, and one device has nothing to split."""

    @dataclasses.dataclass(frozen=True)
    class Accelerator:
        id: int
        platform: str = "tpu"
        process_index: int = 0

    several = [Accelerator(n) for n in range(4)]
    for devices, splits in ((several, True), (several[:1], False), (None, False)):
        mesh = make_mesh("auto", devices)
        assert splits_state(mesh) == splits
        assert mesh.devices.tolist() == (devices or jax.devices())


def test_to_global_batch_splits_every_array_of_a_tree():
    mesh = make_mesh()
    local = Pair(np.arange(48).reshape(16, 3), None)
    batch = to_global_batch(local, mesh)
    assert batch.real_indices is None
    assert batch.tokens.sharding == batch_sharding(mesh)
    np.testing.assert_array_equal(batch.tokens, local.tokens)
    parts = [shard.data for shard in batch.tokens.addressable_shards]
    for part, rows in zip(parts, np.split(local.tokens, 8), strict=True):
        np.testing.assert_array_equal(part, rows)


def test_an_embedding_is_split_by_columns_or_not_at_all():
    """Lookups go by columns, however many rows there are."""
    mesh = make_mesh("full", devices=jax.devices()[:3])
    shapes = {"wte": (96, 16), "h_0": {"kernel": (16, 96)}}
    params = of_shapes(lambda shape: jax.ShapeDtypeStruct(shape, "float32"), shapes)
    found = jax.tree.map(lambda each: each.spec, state_sharding(mesh, params))
    spec = jax.sharding.PartitionSpec
    assert found == {"wte": spec(), "h_0": {"kernel": spec(None, *mesh.axis_names)}}


class State(NamedTuple):
    step: jax.Array
    params: dict
    opt_state: dict


# Parameters, and the shapes of what each of eight devices holds of them if split.
WHOLE = {
    "wte": (97, 16),
    "h_0": {"kernel": (16, 48), "bias": (48,), "scale": (16,)},
    "clf": (3, 5),
}
SPLIT = {**WHOLE, "wte": (97, 2), "h_0": {**WHOLE["h_0"], "kernel": (2, 48)}}


def of_shapes(make, shapes):
    """A tree of arrays; `shapes` has tuples where it has them."""
    return jax.tree.map(make, shapes, is_leaf=lambda shape: isinstance(shape, tuple))


def fresh_state():
    """An optimizer's sums over rows or columns, and scalars, are never split."""
    params = of_shapes(jnp.ones, WHOLE)
    rows, columns = (
        jax.tree.map(lambda p, axis=axis: jnp.sum(p, axis), params) for axis in (-1, 0)
    )
    more = {"rows": rows, "columns": columns, "count": jnp.zeros(8)}
    transposed = jnp.zeros((48, 16))
    return State(
        jnp.int32(0), params, {"mu": params, "more": more, "transposed": transposed}
    )


@pytest.mark.parametrize(
    ("sharding", "parts"), [("replicated", WHOLE), ("full", SPLIT)]
)
def test_state_sharding_says_what_each_device_holds(sharding, parts):
    mesh = make_mesh(sharding)
    shardings = state_sharding(mesh, jax.eval_shape(fresh_state))
    state = jax.jit(fresh_state, out_shardings=shardings)()

    def held(tree):
        return jax.tree.map(
            lambda x: {s.data.shape for s in x.addressable_shards}, tree
        )

    assert held(state.params) == of_shapes(lambda shape: {shape}, parts)
    mu = state.opt_state.pop("mu")
    assert held(mu) == held(state.params)
    for leaf in jax.tree.leaves((state.step, state.opt_state)):
        assert leaf.is_fully_replicated
    whole = gathered(mesh, state.params)
    for leaf in jax.tree.leaves(whole):
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, np.ones(leaf.shape))


@pytest.mark.parametrize("sharding", ["replicated", "full"])
def test_rows_by_device_computes_each_row_where_it_is(sharding):
    mesh = make_mesh(sharding)
    params = {"wte": jnp.arange(32.0).reshape(2, 16)}
    params = jax.device_put(params, state_sharding(mesh, params))
    rows = to_global_batch(np.arange(16), mesh)
    seen = []

    def looked_up(params, rows):
        seen.append(rows.shape)
        return params["wte"][1][rows], -rows

    values, negative = jax.jit(rows_by_device(mesh, looked_up))(params, rows)
    assert seen == [(16 // mesh.size,)]
    np.testing.assert_array_equal(values, np.arange(16.0) + 16)
    np.testing.assert_array_equal(negative, -np.arange(16))


def test_check_batch_size_refuses_what_devices_and_parts_do_not_divide():
    mesh, key = make_mesh(), "config.train.batch_size"
    check_batch_size(key, 16, mesh)
    check_batch_size(key, 16, mesh, parts=2)
    says = rf"^{key}=12 must be a multiple of the 8 devices; use --{key}=16\.$"
    with pytest.raises(ValueError, match=says):
        check_batch_size(key, 12, mesh)
    says = r"=24 .* 8 devices times 2 accumulation steps; use .*=32\."
    with pytest.raises(ValueError, match=says):
        check_batch_size(key, 24, mesh, parts=2)
