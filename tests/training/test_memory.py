"""Sizes that devices cannot hold are refused, and batches cut to fit."""

import dataclasses
from contextlib import nullcontext

import jax
import pytest

from gpt1_jax.errors import UserError
from gpt1_jax.model import costs
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training import memory


@pytest.mark.parametrize(
    ("memory_sequences", "parts"), [(1000, 1), (8.5, 1), (4.5, 2), (1.5, 8), (0.1, 8)]
)
def test_the_batch_is_cut_as_memory_asks(
    tiny_config, tiny_model_config, monkeypatch, memory_sequences, parts
):
    model = tiny_model_config()
    needed = costs.train_activation_bytes(model)
    state = 16 * costs.num_params(model)
    enough = (memory_sequences * needed + state) / memory._MEMORY_SHARE
    monkeypatch.setattr(devices, "memory_bytes", lambda: int(enough))
    mesh = make_mesh(devices=jax.devices()[:1])
    chosen = memory.accumulation_steps(
        tiny_config().train, tiny_config().optimizer, model, mesh
    )
    assert chosen == parts
    given = tiny_config(train__accumulation_steps=4)
    assert memory.accumulation_steps(given.train, given.optimizer, model, mesh) == 4


def test_all_processes_cut_a_batch_alike(tiny_config, tiny_model_config, monkeypatch):
    """By the least memory: with different programs they would wait forever."""
    model = tiny_model_config()
    least = 16 * costs.num_params(model)
    monkeypatch.setattr(memory, "gather", lambda own: [own, str(least)])
    mesh = make_mesh(devices=jax.devices()[:1])
    assert (
        memory.accumulation_steps(
            tiny_config().train, tiny_config().optimizer, model, mesh
        )
        == 8
    )


@pytest.mark.parametrize(
    ("name", "arguments", "moments"),
    [
        ("released_adam", "", 2),
        ("adamw", "", 2),
        ("lion", "", 1),
        ("lion", "mu_dtype=bfloat16", 0.5),
        ("sgd", "", 0),
        ("sgd", "momentum=0.9", 1),
    ],
)
def test_the_memory_of_any_optimizer_is_asked(
    tiny_config, tiny_model_config, name, arguments, moments
):
    """Of parameters, gradients and state; in parts or not."""
    config = tiny_config(optimizer__name=name, optimizer__arguments=arguments)
    model = tiny_model_config()
    size = 4 * costs.num_params(model)
    for mesh, parts in ((make_mesh(), 1), (make_mesh("full"), 8)):
        held = memory.train_state_bytes(config.optimizer, model, mesh)
        assert held == size * (2 + moments / parts)


def test_sizes_that_cannot_fit_are_refused_with_the_estimate(
    tiny_config, tiny_model_config
):
    model, config, mesh = tiny_model_config(), tiny_config(), make_mesh()
    train, optimizer = config.train, config.optimizer
    memory.check_memory(train, optimizer, 8, model, mesh)
    with pytest.raises(UserError, match=r"takes at least .* GB.*num_layers=1000000"):
        large = dataclasses.replace(model, num_layers=1_000_000)
        memory.check_memory(train, optimizer, 8, large, mesh)
    with pytest.raises(UserError, match=r"eval\.batch_size=80000000 takes at least"):
        memory.check_memory(train, optimizer, 80_000_000, model, mesh)


def test_an_evaluation_needs_its_logits_and_the_states_of_a_layer(
    tiny_config, tiny_model_config, monkeypatch
):
    """By hand: 16 tokens of 97 logits, an id, and 32 + 128 units, of 4 bytes each."""
    model, config, mesh = tiny_model_config(), tiny_config(), make_mesh()
    needed = 4 * 16 * (97 + 1 + 32 + 128)
    monkeypatch.setattr(memory, "train_state_bytes", lambda *_: 0)
    for room, fits in ((3 * needed, True), (3 * needed - 1, False)):
        monkeypatch.setattr(devices, "memory_bytes", lambda room=room: room)
        refused = pytest.raises(UserError, match="eval") if not fits else nullcontext()
        with refused:
            memory.check_memory(config.train, config.optimizer, 24, model, mesh)


@pytest.mark.parametrize("parts", [0, 1, 10**6])
def test_a_training_batch_that_cannot_fit_is_refused(
    tiny_config, tiny_model_config, parts
):
    """However many parts it is computed in, all of its tokens are there at once."""
    model, mesh = tiny_model_config(), make_mesh()
    train = tiny_config(train__batch_size=8 * 10**12, train__accumulation_steps=parts)
    with pytest.raises(UserError, match=r"train\.batch_size=8000000000000 takes"):
        memory.check_train_batch(train.train, model, mesh)


def test_a_training_batch_fits_in_the_memory_of_its_parts(
    tiny_config, tiny_model_config, monkeypatch
):
    model, mesh = tiny_model_config(), make_mesh(devices=jax.devices()[:1])
    sequence = costs.forward_bytes(model) * model.max_seq_len
    monkeypatch.setattr(devices, "memory_bytes", lambda: 4 * sequence)
    for parts, fits in ((0, True), (1, False), (2, True)):
        train = tiny_config(train__accumulation_steps=parts).train
        assert train.batch_size == 8
        if fits:
            memory.check_train_batch(train, model, mesh)
        else:
            with pytest.raises(UserError, match="accumulation_steps"):
                memory.check_train_batch(train, model, mesh)
