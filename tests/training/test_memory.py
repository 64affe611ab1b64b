"""Sizes that devices cannot hold are refused, and batches cut to fit."""

from contextlib import nullcontext

import jax
import pytest

from gpt1_jax.errors import UserError
from gpt1_jax.model import costs
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training import memory


@pytest.fixture
def one_device():
    return make_mesh(devices=jax.devices()[:1])


@pytest.mark.parametrize(
    ("memory_sequences", "parts"), [(8.5, 1), (4.5, 2), (1.5, 8), (0.1, 8)]
)
def test_the_batch_is_cut_as_memory_asks(
    tiny_config, tiny_model_config, one_device, monkeypatch, memory_sequences, parts
):
    """As the process with the least asks: other programs would wait forever."""
    model = tiny_model_config()
    needed = costs.train_activation_bytes(model)
    state = 16 * costs.num_params(model)
    enough = int((memory_sequences * needed + state) / memory._MEMORY_SHARE)

    def cut(**values):
        config = tiny_config(**values)
        return memory.accumulation_steps(
            config.train, config.optimizer, model, one_device
        )

    monkeypatch.setattr(devices, "memory_bytes", lambda: enough)
    assert cut() == parts
    assert cut(train__accumulation_steps=4) == 4
    monkeypatch.setattr(devices, "memory_bytes", lambda: 1000 * enough)
    monkeypatch.setattr(memory, "gather", lambda own: [own, str(enough)])
    assert cut() == parts


@pytest.mark.parametrize(
    ("name", "arguments", "moments"),
    [
        ("released_adam", "", 2),
        ("lion", "mu_dtype=bfloat16", 0.5),
        ("sgd", "", 0),
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


@pytest.mark.parametrize("lacking", [0, 1])
def test_an_evaluation_needs_its_logits_and_the_states_of_a_layer(
    tiny_config, tiny_model_config, monkeypatch, lacking
):
    """By hand: 16 tokens of 97 logits, an id, and 32 + 128 units, of 4 bytes each."""
    model, config, mesh = tiny_model_config(), tiny_config(), make_mesh()
    needed = 4 * 16 * (97 + 1 + 32 + 128)
    monkeypatch.setattr(memory, "train_state_bytes", lambda *_: 0)
    monkeypatch.setattr(devices, "memory_bytes", lambda: 3 * needed - lacking)
    refused = pytest.raises(
        UserError, match=r"eval\.batch_size=24 takes at least .* GB"
    )
    with refused if lacking else nullcontext():
        memory.check_memory(config.train, config.optimizer, 24, model, mesh)


def test_what_cannot_fit_is_refused(tiny_config, tiny_model_config):
    """However many parts a batch has, all of its tokens are there at once."""
    config, mesh = tiny_config(), make_mesh()
    with pytest.raises(UserError, match=r"takes at least .* GB.*num_layers=1000000"):
        large = tiny_model_config(num_layers=1_000_000)
        memory.check_memory(config.train, config.optimizer, 8, large, mesh)
    train = tiny_config(train__batch_size=8 * 10**12, train__accumulation_steps=10**6)
    with pytest.raises(UserError, match=r"train\.batch_size=8000000000000 takes"):
        memory.check_train_batch(train.train, tiny_model_config(), mesh)


@pytest.mark.parametrize(("parts", "fits"), [(0, True), (1, False), (2, True)])
def test_a_training_batch_fits_in_the_memory_of_its_parts(
    tiny_config, tiny_model_config, one_device, monkeypatch, parts, fits
):
    model = tiny_model_config()
    sequence = costs.forward_bytes(model) * model.max_seq_len
    monkeypatch.setattr(devices, "memory_bytes", lambda: 4 * sequence)
    train = tiny_config(train__accumulation_steps=parts).train
    assert train.batch_size == 8
    refused = pytest.raises(UserError, match="accumulation_steps")
    with nullcontext() if fits else refused:
        memory.check_train_batch(train, model, one_device)
