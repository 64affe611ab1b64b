"""How devices exchange while they compute."""

import jax
import numpy as np
import pytest

from gpt1_jax.parallel import overlap
from gpt1_jax.parallel.exchange import compiler_options
from gpt1_jax.parallel.mesh import make_mesh


@pytest.mark.parametrize(("most", "dim"), [(2, 0), (8, 0), (8, 1)])
def test_each_device_gets_its_part_of_a_sum(monkeypatch, most, dim):
    """As on a TPU, in one kernel of additions or, of many devices, a sum."""
    monkeypatch.setattr(overlap, "_MOST_ADDITIONS", most)
    mesh = make_mesh("full")
    arrays = np.random.default_rng(0).normal(size=(8, 136, 16)).astype(np.float32)
    axis = mesh.axis_names[0]
    parts = [axis, None] if dim == 0 else [None, axis]
    summed = jax.shard_map(
        lambda x: overlap._sum_received(x[0], dim),
        mesh=mesh,
        in_specs=jax.sharding.PartitionSpec(axis),
        out_specs=jax.sharding.PartitionSpec(*parts),
        check_vma=False,
    )
    np.testing.assert_allclose(jax.jit(summed)(arrays), arrays.sum(0), atol=2e-6)


def test_options_that_a_compiler_does_not_know_are_left_out(monkeypatch):
    def options(mesh, **known):
        monkeypatch.setattr(overlap, "_OPTIONS", {"cpu": known})
        return compiler_options(mesh)

    known = {"xla_cpu_enable_fast_min_max": False}
    assert options(make_mesh(), **known) == known
    assert options(make_mesh(devices=jax.devices()[:1]), **known) == {}
    with pytest.warns(UserWarning, match="wait while they exchange: xla_unheard_of: "):
        assert options(make_mesh(), xla_unheard_of=True, **known) == known


def test_options_that_devices_cannot_follow_are_left_out(monkeypatch):
    """As a v5e-256, whose compiler knows the option and refuses an all-to-all."""
    compile_ = jax.stages.Lowered.compile

    def compiled(lowered, compiler_options):
        if "slow" in compiler_options and "all_to_all" in lowered.as_text():
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: on limited ICI")
        return compile_(lowered)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    monkeypatch.setattr(overlap, "_OPTIONS", {"cpu": {"slow": 1, "fine": 2}})
    with pytest.warns(UserWarning, match="exchange: slow: UNIMPLEMENTED: on limited"):
        assert compiler_options(make_mesh()) == {"fine": 2}
