"""One update of pre-training: its loss, devices, parts and masks."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from collectives import collectives
from made_up_batches import needs_tensor_axis, on_devices
from tiny_models import usual

from gpt1_jax.config.sections import OptimizerConfig
from gpt1_jax.model import language_model
from gpt1_jax.parallel import exchange
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training.optimizer import Optimizer, make_optimizer, skip_nonfinite
from gpt1_jax.training.state import init_state
from gpt1_jax.training.steps import jit_step, make_pretrain_step

SCHEDULE = optax.constant_schedule(0.1)
SGD = Optimizer(*skip_nonfinite(optax.sgd(SCHEDULE)), SCHEDULE)
SEED = np.uint32(5)
ADAM = OptimizerConfig(
    name="released_adam",
    arguments="",
    learning_rate=0.01,
    b1=0.9,
    b2=0.999,
    eps=1e-4,  # with a small one, Adam makes much of how a tiny gradient is rounded
    weight_decay=0.01,
    clip_norm=1.0,
    schedule="constant",
    warmup_steps=0,
    warmup_fraction=0.0,
    final_fraction=0.0,
)


def make_step(model, accumulation_steps=1, mesh=None):
    """An unjitted step with a plain optimizer, and a state before it."""
    step = make_pretrain_step(model, SGD, accumulation_steps, mesh)
    params = language_model.init_params(usual(model), jax.random.key(1))
    return step, init_state(params, SGD)


def tokens_for(model, batch_size=8):
    shape = (batch_size, model.max_seq_len)
    return np.random.default_rng(2).integers(0, model.vocab_size, shape, np.int32)


def losses_of(step, state, tokens, steps=4):
    losses = []
    for _ in range(steps):
        state, metrics = step(state, tokens, SEED)
        losses.append(metrics["loss"].item())
    return np.asarray(losses), state


def assert_close_trees(one, other, atol=2e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), one, other)


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


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_step_lowers_for_accelerators(tiny_model_config, platform):
    """Ahead of time, without one: their products write what they read, bfloat16."""
    model = tiny_model_config(dtype="bfloat16", mlp_dim=64)
    step, state = make_step(model)
    tokens = tokens_for(model, 4)
    traced = jax.jit(step).trace(state, tokens, SEED)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    to_bfloat16 = [line for line in products if line.endswith("xbf16>")]
    assert len(to_bfloat16) > len(products) / 2
    assert "tensor<128x32xbf16>" in text, "97 softmax rows are filled up to 128"
    on_cpu = jax.jit(step).lower(state, tokens, SEED).as_text()
    assert "tensor<128x32xbf16>" not in on_cpu


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "ways",
    [
        {},
        {"dtype": "bfloat16"},
        {"attention_form": "plain", "dtype": "bfloat16"},
        {"layer_loop": "scan", "remat": True, "loss_chunk": 5},
        {"kind": "lstm"},
        {"kind": "lstm", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_eight_devices_train_as_one_does(tiny, ways, parts):
    """They exchange losses and gradients once, and nothing else."""
    model = tiny(num_layers=2 if "layer_loop" in ways else 1, **ways)
    tokens = tokens_for(model, 16)
    results = []
    for devices in (jax.devices(), jax.devices()[:1]):
        mesh = make_mesh(devices=devices)
        # Products of another shape may be summed in another order, and then round to
        # another bfloat16: so one device takes as many sequences at a time as each did.
        alike = model.dtype == "bfloat16" and mesh.size == 1
        step, before = make_step(model, parts * (8 if alike else 1), mesh)
        state = on_devices(before, mesh)
        compiled = jit_step(step, mesh, state).lower(state, tokens, SEED).compile()
        exchanged = [kind for kind, _ in collectives(compiled)]
        assert exchanged == (["all-reduce"] if mesh.size > 1 else [])
        results.append(losses_of(compiled, state, tokens))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    # A CPU without bfloat16 instructions rounds at other places.
    atol = 1e-5 if model.dtype == "bfloat16" else 2e-6
    assert_close_trees(results[0][1].params, results[1][1].params, atol)


def train_on(mesh, model):
    """Losses, state and collectives of some steps of Adam."""
    optimizer = make_optimizer(ADAM, 100)
    step = make_pretrain_step(model, optimizer, mesh=mesh)
    params = language_model.init_params(usual(model), jax.random.key(1))
    state, tokens = (
        on_devices(init_state(params, optimizer), mesh),
        tokens_for(model, 16),
    )
    compiled = jit_step(step, mesh, state).lower(state, tokens, SEED).compile()
    return *losses_of(compiled, state, tokens), collectives(compiled)


@pytest.fixture(scope="module")
def on_one_device(tiny):
    """`on_one_device(kind)`: what training a tiny model of that kind comes to."""
    mesh = make_mesh(devices=jax.devices()[:1])
    return functools.cache(lambda kind: train_on(mesh, tiny(kind=kind)))


MATRICES = {  # of a model of one layer
    "transformer": 6,  # embeddings, attention and MLP have two each
    "lstm": 4,  # the embedding, and what its layer multiplies by
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("sharding", ["optimizer", "full"])
def test_devices_that_split_the_state_train_as_one_does(
    tiny, on_one_device, sharding, kind
):
    """Each gets its part of a gradient; all get the matrices; vectors are summed."""
    losses, state, found = train_on(make_mesh(sharding), tiny(kind=kind))
    np.testing.assert_allclose(losses, on_one_device(kind)[0], rtol=1e-6)
    assert_close_trees(state.params, on_one_device(kind)[1].params, 5e-6)
    kinds = Counter(each for each, _ in found)
    matrices = MATRICES[kind]
    exchanged = {"reduce-scatter": matrices, "all-gather": matrices, "all-reduce": 1}
    if sharding == "full":  # lookups: tokens, and their vectors there and back
        exchanged["all-gather"] += 1
        exchanged["all-to-all"] = 2
    assert kinds == exchanged
    for kind, shapes in found:
        assert kind != "all-reduce" or all(len(shape) < 2 for shape in shapes)


@pytest.fixture(params=["as here", "as on a TPU"])
def sums(request, monkeypatch):
    """How gradients are summed: on a TPU all-to-all, which works here too."""
    if request.param == "as on a TPU":
        monkeypatch.setattr(exchange, "_sum_and_split", exchange._sum_received)
    return request.param


@pytest.mark.parametrize(
    "ways",
    [
        {"num_layers": 3, "vocab_size": 1024},  # the embedding in pieces of 128 rows
        {"num_layers": 2, "dtype": "bfloat16", "embed_dropout_on": "lookups"},
        {"num_layers": 2, "layer_loop": "scan"},
        {"num_layers": 2, "remat": True, "embed_dropout_on": "matrix"},
        {"kind": "lstm"},
        {"num_layers": 2, "accumulation_steps": 2},
    ],
    ids=str,
)
def test_devices_that_split_the_parameters_train_as_one_does(tiny, ways, sums):
    """Layer by layer where layers are apart and the batch is not."""
    if sums == "as on a TPU" and "dtype" in ways:
        pytest.skip("XLA's CPU backend lacks the product with a transposed result")
    parts = ways.get("accumulation_steps", 1)
    model = tiny(**{k: v for k, v in ways.items() if k != "accumulation_steps"})
    tokens, results = tokens_for(model, 16), []
    for devices in (jax.devices(), jax.devices()[:1]):
        mesh = make_mesh("full", devices=devices)
        alike = model.dtype == "bfloat16" and mesh.size == 1
        step, before = make_step(model, parts * (8 if alike else 1), mesh)
        state = on_devices(before, mesh)
        compiled = jit_step(step, mesh, state).lower(state, tokens, SEED).compile()
        exchanged = Counter(kind for kind, _ in collectives(compiled))
        results.append(losses_of(compiled, state, tokens))
        if mesh.size > 1 and sums == "as on a TPU":
            assert not exchanged["reduce-scatter"] and exchanged["all-to-all"] > 4
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    atol = 1e-5 if model.dtype == "bfloat16" else 2e-6
    assert_close_trees(results[0][1].params, results[1][1].params, atol)


@needs_tensor_axis
def test_devices_that_share_a_part_of_the_batch_train_as_one_does(tiny, on_one_device):
    """As in Shoeybi et al. 2019: two sums of [n, T, D] a layer, each way."""
    model = tiny()
    losses, state, found = train_on(make_mesh(tensor_parallelism=2), model)
    expected, state_of_one, _ = on_one_device("transformer")
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert_close_trees(state.params, state_of_one.params, 5e-6)
    hidden = (16 // 4, model.max_seq_len, model.embed_dim)
    sums = [shape for kind, got in found for shape in got if kind == "all-reduce"]
    # The XLA of JAX 0.12 also sums what was looked up in the embedding.
    assert sums.count(hidden) == 4 + (jax.__version_info__ >= (0, 12))
    # Of the softmax: largest score, sum, the label's score and the states' gradient.
    positions = hidden[0] * hidden[1]
    softmax = [shape for shape in sums if shape[:1] == (positions,)]
    assert sorted(softmax) == [(64,), (64,), (64, 1), (64, model.embed_dim)]
    kinds = Counter(kind for kind, _ in found)
    # Embeddings are gathered by the columns that each holds, and the output matrix is
    # turned from columns to rows. The parts of queries, keys and values lie side by
    # side in one kernel, as released, so those that fall to another device move there.
    assert (kinds["all-gather"], kinds["collective-permute"]) == (2, 2)
    assert kinds["all-to-all"] == 2 + 4
    largest = max(np.prod(shape, dtype=int) for _, got in found for shape in got)
    assert largest < positions * model.vocab_size, "logits stay where they are"


@pytest.mark.parametrize("dropout_on", ["sum", "matrix", "lookups"])
def test_accumulated_parts_equal_the_whole_batch(tiny, dropout_on):
    model = tiny(embed_dropout_on=dropout_on)
    tokens = tokens_for(model)
    whole, state = make_step(model)
    expected, expected_state = losses_of(jax.jit(whole), state, tokens)
    for parts in (2, 8):
        in_parts, _ = make_step(model, parts)
        actual, actual_state = losses_of(jax.jit(in_parts), state, tokens)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
        assert_close_trees(actual_state.params, expected_state.params)


def test_dropout_draws_anew_from_seed_and_step_alone(tiny):
    step, state = make_step(tiny())
    step, tokens = jax.jit(step), tokens_for(tiny())
    same = step(state, tokens, SEED)[1]["loss"].item()
    assert step(state, tokens, SEED)[1]["loss"].item() == same
    later = state._replace(step=jnp.int32(1))
    assert step(later, tokens, SEED)[1]["loss"].item() != same
    assert step(state, tokens, np.uint32(6))[1]["loss"].item() != same
