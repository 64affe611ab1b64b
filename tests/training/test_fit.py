"""What is decided about a run before its first step."""

import dataclasses

import jax
import pytest

from gpt1_jax.model import costs
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training import fit


@pytest.mark.parametrize(
    ("memory_sequences", "parts"), [(1000, 1), (8.5, 1), (4.5, 2), (1.5, 8), (0.1, 8)]
)
def test_the_batch_is_cut_as_memory_asks(
    tiny_config, tiny_model_config, monkeypatch, memory_sequences, parts
):
    model = tiny_model_config()
    needed = costs.train_activation_bytes(model)
    state = costs.train_state_bytes(model)
    memory = (memory_sequences * needed + state) / fit._MEMORY_SHARE
    monkeypatch.setattr(devices, "memory_bytes", lambda: int(memory))
    mesh = make_mesh(devices=jax.devices()[:1])
    chosen = fit.accumulation_steps(tiny_config().train, model, mesh)
    assert chosen == parts
    given = tiny_config(train__accumulation_steps=4)
    assert fit.accumulation_steps(given.train, model, mesh) == 4


def test_sizes_that_cannot_fit_are_refused_with_the_estimate(tiny_model_config):
    model = tiny_model_config()
    mesh = make_mesh()
    fit.check_memory(model, mesh, 8)
    with pytest.raises(ValueError, match=r"takes about .* GB.*num_layers=1000000"):
        fit.check_memory(dataclasses.replace(model, num_layers=1_000_000), mesh, 8)
    with pytest.raises(ValueError, match=r"Evaluating 10,000,000 .*eval.batch_size"):
        fit.check_memory(model, mesh, 10_000_000)
