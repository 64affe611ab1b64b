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
    replicated,
    splits_state,
    state_sharding,
    to_global_batch,
)


class State(NamedTuple):
    step: jax.Array
    params: dict
    opt_state: dict


class Pair(NamedTuple):
    tokens: np.ndarray
    real_indices: np.ndarray | None


def test_make_mesh_takes_all_devices_or_those_given():
    assert make_mesh().devices.ravel().tolist() == jax.devices()
    assert (
        make_mesh(devices=jax.devices()[:2]).devices.ravel().tolist()
        == jax.devices()[:2]
    )


def test_auto_splits_the_state_of_several_accelerators():
    """Devices of a CPU share its memory, and one device has nothing to split."""

    @dataclasses.dataclass(frozen=True)
    class Accelerator:
        id: int
        platform: str = "tpu"
        process_index: int = 0

    def splits(devices):
        return splits_state(make_mesh("auto", devices))

    several = [Accelerator(n) for n in range(4)]
    assert splits(several)
    assert not splits(several[:1]) and not splits(jax.devices())


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_batch_has_a_part_for_each_device(devices):
    mesh = make_mesh(devices=jax.devices()[:devices])
    batch = to_global_batch(np.arange(16), mesh)
    parts = {str(shard.index) for shard in batch.addressable_shards}
    assert len(parts) == devices


def test_to_global_batch_splits_every_array_of_a_tree():
    mesh = make_mesh()
    local = Pair(np.arange(48).reshape(16, 3), None)
    batch = to_global_batch(local, mesh)
    assert batch.real_indices is None
    assert batch.tokens.sharding == batch_sharding(mesh)
    np.testing.assert_array_equal(batch.tokens, local.tokens)
    for number, shard in enumerate(batch.tokens.addressable_shards):
        rows = local.tokens[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(shard.data, rows)


def fresh_state():
    block = {
        "attn": {"c_attn": {"kernel": jnp.ones((16, 48)), "bias": jnp.zeros(48)}},
        "ln_1": {"scale": jnp.ones(16)},
    }
    params = {"wte": jnp.ones((97, 16)), "h_0": block, "clf": jnp.ones((3, 5))}
    return State(jnp.int32(0), params, {"mu": params})


WHOLE = {
    "step": (),
    "params/wte": (97, 16),
    "params/h_0/attn/c_attn/kernel": (16, 48),
    "params/h_0/attn/c_attn/bias": (48,),
    "params/h_0/ln_1/scale": (16,),
    "params/clf": (3, 5),
    "opt_state/mu/wte": (97, 16),
    "opt_state/mu/h_0/attn/c_attn/kernel": (16, 48),
    "opt_state/mu/h_0/attn/c_attn/bias": (48,),
    "opt_state/mu/h_0/ln_1/scale": (16,),
    "opt_state/mu/clf": (3, 5),
}
SPLIT = {
    f"{tree}/{name}": shape
    for tree in ("params", "opt_state/mu")
    for name, shape in {
        "wte": (97, 2),
        "h_0/attn/c_attn/kernel": (2, 48),
    }.items()
}


def test_an_embedding_is_split_by_columns_or_not_at_all():
    """Lookups go by columns, however many rows there are."""
    mesh = make_mesh("full", devices=jax.devices()[:3])
    shapes = {"wte": (96, 16), "h_0": {"kernel": (16, 96)}}
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shapes,
        is_leaf=lambda shape: isinstance(shape, tuple),
    )
    found = jax.tree.map(lambda each: each.spec, state_sharding(mesh, params))
    axis = mesh.axis_names[0]
    spec = jax.sharding.PartitionSpec
    assert found == {"wte": spec(), "h_0": {"kernel": spec(None, axis)}}


@pytest.mark.parametrize(("sharding", "split"), [("replicated", {}), ("full", SPLIT)])
def test_state_sharding_says_what_each_device_holds(sharding, split):
    mesh = make_mesh(sharding)
    shardings = state_sharding(mesh, jax.eval_shape(fresh_state))
    state = jax.jit(fresh_state, out_shardings=shardings)()
    held = {
        jax.tree_util.keystr(path, simple=True, separator="/"): {
            shard.data.shape for shard in leaf.addressable_shards
        }
        for path, leaf in jax.tree.leaves_with_path(state)
    }
    assert held == {name: {shape} for name, shape in (WHOLE | split).items()}
    whole = gathered(mesh, state.params)
    for leaf, expected in zip(
        *map(jax.tree.leaves, (whole, fresh_state().params)), strict=True
    ):
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, expected)


@pytest.mark.parametrize("sharding", ["replicated", "full"])
def test_only_what_has_a_parameters_shape_is_split_in_an_optimizers_state(sharding):
    """Sums over rows and columns, or scalars, are whole on each device."""

    def state():
        fresh = fresh_state()
        rows = jax.tree.map(lambda p: jnp.sum(p, -1), fresh.params)
        columns = jax.tree.map(lambda p: jnp.sum(p, 0), fresh.params)
        more = {"count": jnp.zeros(8), "kernel": jnp.zeros((48, 16))}
        sums = {"v_row": rows, "v_col": columns, "more": more}
        return fresh._replace(opt_state=fresh.opt_state | sums)

    found = state_sharding(make_mesh(sharding), jax.eval_shape(state))
    fresh = state_sharding(make_mesh(sharding), jax.eval_shape(fresh_state))
    assert found.opt_state["mu"] == fresh.opt_state["mu"]
    assert found.params == fresh.params
    for name in ("v_row", "v_col", "more"):
        leaves = jax.tree.leaves(found.opt_state[name])
        assert all(leaf.is_fully_replicated for leaf in leaves), name
    jax.jit(state, out_shardings=found)()


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
