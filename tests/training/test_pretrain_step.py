"""One update of pre-training: its loss, devices, parts and masks."""

import functools
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from collectives import collectives
from made_up_batches import on_devices
from tiny_models import layers_as_usual, made_up_params, optimizer_config, usual

from gpt1_jax.model import language_model
from gpt1_jax.ops import products
from gpt1_jax.parallel import exchange, overlap
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training.optimizer import Optimizer, make_optimizer, skip_nonfinite
from gpt1_jax.training.state import init_state
from gpt1_jax.training.steps import jit_step, make_pretrain_step

SCHEDULE = optax.constant_schedule(0.1)
SGD = Optimizer(*skip_nonfinite(optax.sgd(SCHEDULE)), SCHEDULE)
SEED = np.uint32(5)
# With a small epsilon, Adam makes much of how a tiny gradient is rounded.
ADAM_CONFIG = optimizer_config(
    learning_rate=0.01, eps=1e-4, schedule="constant", warmup_steps=0
)


@functools.cache
def params_of(model):
    return made_up_params(language_model.init_params, usual(model))


def make_step(model, accumulation_steps=1, mesh=None, optimizer=SGD):
    """An unjitted step with a plain optimizer, and a state before it."""
    step = make_pretrain_step(model, optimizer, accumulation_steps, mesh)
    return step, init_state(params_of(usual(model)), optimizer)


def test_a_donated_state_trains_as_one_that_is_kept(tiny_model_config):
    """Before JAX 0.8.2 it did not, unless arrays were very small."""
    model = tiny_model_config(
        num_layers=1, embed_dim=256, mlp_dim=1024, max_seq_len=128, vocab_size=1024
    )
    params = made_up_params(language_model.init_params, model)
    adam = make_optimizer(ADAM_CONFIG, 100)
    tokens, states = tokens_for(model, batch_size=8), []
    for donated in ((), 0):
        step = jax.jit(make_pretrain_step(model, adam), donate_argnums=donated)
        state = init_state(jax.tree.map(jnp.array, params), adam)
        for _ in range(3):
            state, _ = step(state, tokens, SEED)
        states.append(state.params)
    jax.tree.map(np.testing.assert_array_equal, *states)


def tokens_for(model, batch_size=16):
    shape = (batch_size, model.max_seq_len)
    return np.random.default_rng(2).integers(0, model.vocab_size, shape, np.int32)


class Trained(NamedTuple):
    """What four steps come to, and what the devices tell each other in one."""

    losses: np.ndarray
    params: Any
    exchanged: list[tuple[str, list[tuple]]]


def train(model, mesh, parts=1, optimizer=SGD):
    step, before = make_step(model, parts, mesh, optimizer)
    state, tokens, losses = on_devices(before, mesh), tokens_for(model), []
    compiled = jit_step(step, mesh, state).lower(state, tokens, SEED).compile()
    for _ in range(4):
        state, metrics = compiled(state, tokens, SEED)
        losses.append(metrics["loss"].item())
    params = jax.device_get(state.params)
    return Trained(np.asarray(losses), params, collectives(compiled))


def test_a_step_is_compiled_with_the_options_of_its_products(
    tiny_model_config, monkeypatch
):
    def unheard_of(platform):
        return {f"xla_unheard_of_{platform}": True}

    monkeypatch.setattr(products, "compiler_options", unheard_of)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_unheard_of_cpu"):
        train(tiny_model_config(), make_mesh())


ONE_DEVICE = make_mesh(devices=jax.devices()[:1])
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


def tolerance(model):
    """A CPU without bfloat16 instructions rounds at other places."""
    return 1e-5 if model.dtype == "bfloat16" else 2e-6


def test_step_loss_is_the_mean_over_predicted_tokens(tiny):
    model = tiny(embed_dropout=0.0, attn_dropout=0.0, resid_dropout=0.0)
    step, state = make_step(model)
    tokens = tokens_for(model)

    @jax.jit
    def every_loss(params):
        output = language_model.apply(model, params, tokens)
        return language_model.next_token_nll(model, output, tokens)

    expected = np.asarray(every_loss(state.params))[:, :-1].mean()
    _, metrics = jax.jit(step)(state, tokens, SEED)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-6)


def test_step_lowers_for_accelerators(tiny):
    """Ahead of time, without one: their products write what they read, bfloat16."""
    model = tiny(dtype="bfloat16", mlp_dim=64)
    step, state = make_step(model)
    traced = jax.jit(step).trace(state, tokens_for(model, 4), SEED)
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        products = [x for x in text.splitlines() if "stablehlo.dot_general" in x]
        to_bfloat16 = [line for line in products if line.endswith("xbf16>")]
        assert len(to_bfloat16) > len(products) / 2
        assert "tensor<128x32xbf16>" in text, "97 softmax rows are filled up to 128"
    assert "tensor<128x32xbf16>" not in traced.lower().as_text(), "not on a CPU"


TWO_LAYERS = {"num_layers": 2, "vocab_size": 200}
LOOP = {**TWO_LAYERS, "layer_loop": "scan"}
IN_BFLOAT16 = {"dtype": "bfloat16", "embed_dropout_on": "lookups"}


@pytest.mark.parametrize(
    ("ways", "parts"),
    [
        (IN_BFLOAT16, 1),
        ({**LOOP, "attention_form": "plain", "remat": True, "loss_chunk": 5}, 2),
        ({"kind": "lstm", "dtype": "bfloat16"}, 2),
    ],
    ids=str,
)
def test_eight_devices_train_as_one_does(tiny, ways, parts):
    """They exchange losses and gradients once, and nothing else."""
    model = tiny(**ways)
    actual, expected = train(model, make_mesh(), parts), expected_of(model, parts)
    assert_same_training(actual, expected, tolerance(model))
    assert [kind for kind, _ in actual.exchanged] == ["all-reduce"]
    assert not expected.exchanged


ADAM = make_optimizer(ADAM_CONFIG, 100)
# Of a transformer's layer and embeddings, two each; an LSTM's multiplies by three.
MATRICES = {"transformer": 6, "lstm": 4}


@pytest.fixture
def way(request, monkeypatch):
    """How devices exchange: as `overlap` has it, or as if that had been deleted."""
    if request.param == "plain":
        monkeypatch.setattr(exchange, "OVERLAP", "gpt1_jax.parallel.deleted")
    return request.param


@pytest.mark.parametrize("way", ["overlapped", "plain"], indirect=True)
@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_devices_that_split_the_state_train_as_one_does(tiny, kind, way):
    """Each gets its part of a gradient; all get the matrices; vectors are summed."""
    model = tiny(kind=kind)
    actual = train(model, make_mesh("full"), optimizer=ADAM)
    assert_same_training(actual, expected_of(model, optimizer=ADAM), 5e-6)
    matrices = MATRICES[kind]
    exchanged = {"reduce-scatter": matrices, "all-gather": matrices, "all-reduce": 1}
    if way == "overlapped":  # lookups: tokens, and their vectors there and back
        exchanged["all-gather"] += 1
        exchanged["all-to-all"] = 2
    assert Counter(each for each, _ in actual.exchanged) == exchanged
    for each, shapes in actual.exchanged:
        assert each != "all-reduce" or all(len(shape) < 2 for shape in shapes)


@pytest.mark.parametrize(
    ("ways", "parts", "way"),
    [
        (IN_BFLOAT16, 1, "plain"),
        (LOOP, 2, "overlapped"),
        ({"remat": True, "embed_dropout_on": "matrix"}, 1, "overlapped"),
    ],
    indirect=["way"],
    ids=str,
)
def test_devices_that_split_the_parameters_train_as_one_does(tiny, ways, parts, way):
    """Layer by layer where layers are apart, the batch is whole and `way` allows it."""
    model = tiny(**ways)
    actual = train(model, make_mesh("full"), parts)
    assert_same_training(actual, expected_of(model, parts), tolerance(model))


def test_devices_that_sum_as_on_a_tpu_train_as_one_does(tiny, monkeypatch):
    """Gradients go all-to-all, 200 rows of the embedding in pieces of 128 and 72."""
    monkeypatch.setattr(overlap, "_sum_and_split", overlap._sum_received)
    model = tiny(**TWO_LAYERS)
    actual = train(model, make_mesh("full"))
    assert_same_training(actual, expected_of(model))
    kinds = Counter(kind for kind, _ in actual.exchanged)
    assert not kinds["reduce-scatter"] and kinds["all-to-all"] > 4


def test_dropout_draws_anew_from_seed_and_step_alone(tiny):
    step, state = make_step(tiny())
    step, tokens = jax.jit(step), tokens_for(tiny())
    same = step(state, tokens, SEED)[1]["loss"].item()
    assert step(state, tokens, SEED)[1]["loss"].item() == same
    later = state._replace(step=np.int32(1))
    assert step(later, tokens, SEED)[1]["loss"].item() != same
    assert step(state, tokens, np.uint32(6))[1]["loss"].item() != same
