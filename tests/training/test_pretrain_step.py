"""One update of pre-training: its loss, devices, parts and masks."""

import functools
from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from collectives import collectives
from made_up_batches import on_devices
from tiny_models import layers_as_usual, made_up_params, optimizer_config, usual

from gpt1_jax.model import language_model
from gpt1_jax.ops import products
from gpt1_jax.ops.dropout import step_noise
from gpt1_jax.parallel import exchange, overlap
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training.optimizer import Optimizer, make_optimizer, skip_nonfinite
from gpt1_jax.training.state import init_state
from gpt1_jax.training.steps import jit_step, make_pretrain_step, pretrain_loss

SCHEDULE = optax.constant_schedule(0.1)
SGD = Optimizer(*skip_nonfinite(optax.sgd(SCHEDULE)), SCHEDULE)
SEED = np.uint32(5)
ONE_DEVICE = make_mesh(devices=jax.devices()[:1])
# With a small epsilon, Adam makes much of how a tiny gradient is rounded.
ADAM_CONFIG = optimizer_config(
    learning_rate=0.01, eps=1e-4, schedule="constant", warmup_steps=0
)
ADAM = make_optimizer(ADAM_CONFIG, 100)


@functools.cache
def params_of(model):
    return made_up_params(language_model.init_params, usual(model))


def make_step(model, accumulation_steps=1, mesh=None, optimizer=SGD):
    """An unjitted step with a plain optimizer, and a state before it."""
    step = make_pretrain_step(model, optimizer, accumulation_steps, mesh)
    params = params_of(usual(model))
    shapes = jax.eval_shape(lambda: init_state(params, optimizer))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    return step, zeros._replace(params=params)


def test_a_donated_state_trains_as_one_that_is_kept(tiny):
    """Before JAX 0.8.2 it did not, unless arrays were very small."""
    model = tiny(embed_dim=256, mlp_dim=1024, vocab_size=1024)
    step, state = make_step(model)
    tokens, states = tokens_for(model, batch_size=8), []
    for donated in ((), 0):
        jitted = jax.jit(step, donate_argnums=donated)
        trained = on_devices(state, ONE_DEVICE)
        for _ in range(3):
            trained, _ = jitted(trained, tokens, SEED)
        states.append(trained.params)
    jax.tree.map(np.testing.assert_array_equal, *states)


def tokens_for(model, batch_size=16):
    shape = (batch_size, model.max_seq_len)
    return np.random.default_rng(2).integers(0, model.vocab_size, shape, np.int32)


class Trained(NamedTuple):
    """What four steps come to, and the step as a run compiles it."""

    losses: np.ndarray
    params: Any
    step: jax.stages.Compiled


def train(model, mesh, parts=1, optimizer=SGD):
    step, before = make_step(model, parts, mesh, optimizer)
    state, tokens, losses = on_devices(before, mesh), tokens_for(model), []
    compiled = jit_step(step, mesh, state).lower(state, tokens, SEED).compile()
    for _ in range(4):
        state, metrics = compiled(state, tokens, SEED)
        losses.append(metrics["loss"].item())
    return Trained(np.asarray(losses), jax.device_get(state.params), compiled)


def test_a_step_is_compiled_with_the_options_of_its_products(monkeypatch):
    def unheard_of(platform):
        return {f"xla_unheard_of_{platform}": True}

    monkeypatch.setattr(products, "compiler_options", unheard_of)
    step = jit_step(lambda state, batch, seed: (state, {}), make_mesh(), state=0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_unheard_of_cpu"):
        step(0, np.zeros(8), SEED)


train_on_one_device = functools.cache(functools.partial(train, mesh=ONE_DEVICE))


def expected_of(model, parts=1, optimizer=SGD):
    """What one device comes to, which does not depend on how layers are run.

    Products of another shape may be summed in another order, and then round to another
    bfloat16: so one device takes as many sequences at a time as each of eight did.
    """
    alike = 8 * parts if model.dtype == "bfloat16" else 1
    return train_on_one_device(layers_as_usual(model), parts=alike, optimizer=optimizer)


def assert_same_training(actual, expected, atol=2e-6):
    np.testing.assert_allclose(actual.losses, expected.losses, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol),
        actual.params,
        expected.params,
    )


def tolerance(model, optimizer=SGD):
    """A CPU without bfloat16 instructions rounds at other places."""
    if model.dtype == "bfloat16":
        return 1e-5
    return 5e-6 if optimizer is ADAM else 2e-6


def test_step_loss_is_the_mean_over_predicted_tokens(tiny):
    model = tiny(embed_dropout=0.0, attn_dropout=0.0, resid_dropout=0.0)
    tokens, noise = tokens_for(model), step_noise(SEED, np.int32(0), 16)

    @jax.jit
    def losses(params):
        output = language_model.apply(model, params, tokens)
        every = language_model.next_token_nll(model, output, tokens)
        return pretrain_loss(model, params, tokens, noise)[0], every

    loss, every = losses(params_of(model))
    expected = np.asarray(every)[:, :-1].mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


IN_BFLOAT16 = {"dtype": "bfloat16", "embed_dropout_on": "lookups"}
LSTM = {"kind": "lstm", "dtype": "bfloat16"}
TWO_LAYERS = {"num_layers": 2, "vocab_size": 200, "embed_dropout_on": "matrix"}
LOOP = {"layer_loop": "scan", "attention_form": "plain", "remat": True, "loss_chunk": 5}


@pytest.mark.parametrize(
    ("ways", "parts"),
    [(IN_BFLOAT16, 1), (LSTM, 2), ({**TWO_LAYERS, **LOOP}, 2)],
    ids=str,
)
def test_eight_devices_train_as_one_does(tiny, ways, parts):
    """They exchange losses and gradients once, and nothing else."""
    model = tiny(**ways)
    actual, expected = train(model, make_mesh(), parts), expected_of(model, parts)
    assert_same_training(actual, expected, tolerance(model))
    assert [kind for kind, _ in collectives(actual.step)] == ["all-reduce"]
    assert not collectives(expected.step)


# Of a transformer's layer and embeddings, two each; an LSTM's multiplies by three.
MATRICES = {"transformer": 6, "lstm": 4}


@pytest.mark.parametrize(
    ("ways", "parts", "optimizer", "overlapped"),
    [
        ({}, 1, ADAM, True),
        (LSTM, 2, SGD, True),
        (IN_BFLOAT16, 1, SGD, False),  # as if that module had been deleted
    ],
    ids=["layer by layer", "in parts", "plain"],
)
def test_devices_that_split_the_state_train_as_one_does(
    tiny, monkeypatch, ways, parts, optimizer, overlapped
):
    """Each gets its part of a gradient; all get the matrices; vectors are summed."""
    if not overlapped:
        monkeypatch.setattr(exchange, "OVERLAP", "gpt1_jax.parallel.deleted")
    model = tiny(**ways)
    actual = train(model, make_mesh("full"), parts, optimizer)
    expected = expected_of(model, parts, optimizer)
    assert_same_training(actual, expected, tolerance(model, optimizer))
    matrices = MATRICES[model.kind]
    exchanged = {"reduce-scatter": matrices, "all-gather": matrices, "all-reduce": 1}
    if overlapped:  # lookups: tokens, and their vectors there and back
        exchanged["all-gather"] += parts
        exchanged["all-to-all"] = 2 * parts
    found = collectives(actual.step)
    assert Counter(each for each, _ in found) == exchanged
    for each, shapes in found:
        assert each != "all-reduce" or all(len(shape) < 2 for shape in shapes)


def test_devices_that_sum_as_on_a_tpu_train_as_one_does(tiny, monkeypatch):
    """Gradients go all-to-all, 200 rows of the embedding in pieces of 128 and 72."""
    monkeypatch.setattr(overlap, "_sum_and_split", overlap._sum_received)
    model = tiny(**TWO_LAYERS)
    actual = train(model, make_mesh("full", jax.devices()[:2]))
    assert_same_training(actual, expected_of(model))
    kinds = Counter(kind for kind, _ in collectives(actual.step))
    assert not kinds["reduce-scatter"] and kinds["all-to-all"] > 4


def test_dropout_draws_anew_from_seed_and_step_alone(tiny):
    step = expected_of(tiny(), optimizer=ADAM).step
    _, before = make_step(tiny(), optimizer=ADAM)

    def loss(seed=SEED, **changed):
        state = on_devices(before._replace(**changed), ONE_DEVICE)
        return step(state, tokens_for(tiny()), seed)[1]["loss"].item()

    same = loss()
    assert loss() == same
    assert loss(step=np.int32(1)) != same
    assert loss(np.uint32(6)) != same
