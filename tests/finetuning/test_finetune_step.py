"""One update of fine-tuning: its losses, rates, parts, devices and seeds."""

import functools
import re
from collections import Counter

import jax
import numpy as np
import optax
import pytest
from collectives import collectives
from made_up_batches import made_up_batch, on_devices, unpadded
from tiny_models import layers_as_usual, made_up_params, usual
from tiny_tasks import finetune_config

from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head, classification_loss
from gpt1_jax.finetuning.steps import finetune_loss, make_finetune_step
from gpt1_jax.model import language_model
from gpt1_jax.ops.dropout import step_noise
from gpt1_jax.parallel.mesh import make_mesh, to_global_batch
from gpt1_jax.training.optimizer import Optimizer, make_optimizer, skip_nonfinite
from gpt1_jax.training.state import init_state
from gpt1_jax.training.steps import jit_step

BASE = {"init_from": "runs/pretrain/tiny"}
PAIRS = Head(num_outputs=3, per_choice=False, dropout=0.1, extract_token=96)
CHOICES = Head(num_outputs=2, per_choice=True, dropout=0.1, extract_token=96)
SEVERAL = PAIRS._replace(multilabel=True)
SEED = np.uint32(5)
SCHEDULE = optax.constant_schedule(0.1)
SGD = Optimizer(*skip_nonfinite(optax.sgd(SCHEDULE)), SCHEDULE)


@functools.cache
def params_of(model, head):
    return made_up_params(heads.init_params, model, head)


@pytest.fixture(scope="module")
def no_dropout(tiny):
    return tiny(embed_dropout=0.0, attn_dropout=0.0, resid_dropout=0.0)


def make_step(model, head, aux_lm_weight=0.5, accumulation_steps=1, mesh=None):
    """An unjitted step with a plain optimizer, and a state before it."""
    step = make_finetune_step(model, head, SGD, aux_lm_weight, accumulation_steps, mesh)
    return step, init_state(params_of(usual(model), head), SGD)


@functools.cache
def jitted(model, head, aux_lm_weight=0.5):
    """The step on one device, compiled once for all tests; and a state before it."""
    step, state = make_step(model, head, aux_lm_weight)
    return jax.jit(step), state


def batch_for(model, head):
    return made_up_batch(model, (16, 2, 12), head.num_outputs)


def run_steps(step, state, batch, seed=SEED, steps=3):
    """Losses of some steps, and the state after them."""
    history = []
    for _ in range(steps):
        state, metrics = step(state, batch, seed)
        history.append(metrics["loss"].item())
    return np.asarray(history), state


@functools.cache
def expected_of(model, head):
    """Losses and parameters on one device, with padding and layers run as usual."""
    step, state = jitted(layers_as_usual(model), head)
    return run_steps(step, state, batch_for(model, head))


def assert_same_training(actual, expected, tolerance=1e-6):
    """Of the losses and the states of `run_steps`."""
    np.testing.assert_allclose(actual[0], expected[0], rtol=tolerance)
    assert largest_difference(actual[1].params, expected[1].params) < tolerance


def largest_difference(one, other):
    """Of two trees."""
    differences = jax.tree.map(
        lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(), one, other
    )
    return float(max(jax.tree.leaves(differences)))


@pytest.mark.parametrize(("head", "weight"), [(SEVERAL, 2.0), (CHOICES, 0.5)])
def test_loss_is_that_of_the_task_and_weighted_that_of_language_modelling(
    no_dropout, head, weight
):
    """L3 = L2 + lambda L1, computed anew from the model's outputs."""
    head = head._replace(dropout=0.0)
    batch, noise = batch_for(no_dropout, head), step_noise(SEED, np.int32(0), 16)

    @jax.jit
    def losses(params):
        found = finetune_loss(no_dropout, head, weight, params, batch, noise)
        logits, output = heads.apply(no_dropout, head, params, batch.tokens)
        tokens = batch.tokens.reshape(32, 12)
        nll = language_model.next_token_nll(no_dropout, output, tokens)
        return found, classification_loss(logits, batch.targets, head.multilabel), nll

    (loss, metrics), clf_loss, nll = jax.device_get(losses(params_of(no_dropout, head)))
    lengths = batch.lengths.ravel()
    lm_loss = np.mean(
        [row[: n - 1].mean() for row, n in zip(nll, lengths, strict=True)]
    )
    assert float(metrics["clf_loss"]) == pytest.approx(clf_loss, rel=1e-6)
    assert float(metrics["lm_loss"]) == pytest.approx(lm_loss, rel=1e-6)
    assert float(loss) == pytest.approx(clf_loss + weight * lm_loss, rel=1e-6)


def test_weight_of_zero_leaves_language_modelling_out(no_dropout):
    """Words of the vocabulary that are in no text get a gradient from it alone."""
    head = CHOICES._replace(dropout=0.0)
    batch = batch_for(no_dropout, head)
    unused = np.setdiff1d(np.arange(97), batch.tokens)
    moved, clf_losses = [], []
    for weight in (0.0, 0.5):
        step, state = jitted(no_dropout, head, weight)
        after, metrics = step(state, batch, SEED)
        assert ("lm_loss" in metrics) == bool(weight)
        wte = [np.asarray(s.params["transformer"]["wte"]) for s in (state, after)]
        moved.append(np.abs(wte[1] - wte[0])[unused].max())
        clf_losses.append(metrics["clf_loss"].item())
        if not weight:
            assert metrics["loss"] == metrics["clf_loss"]
    assert moved[0] == 0.0
    assert moved[1] > 1e-6
    assert clf_losses[0] == pytest.approx(clf_losses[1], rel=1e-6)


def test_padding_does_not_change_the_update(no_dropout):
    """A longer bucket: the same losses, the same parameters after."""
    head = CHOICES._replace(dropout=0.0)
    step, state = jitted(no_dropout, head)
    batch = batch_for(no_dropout, head)
    longer = np.pad(batch.tokens, ((0, 0), (0, 0), (0, 4)))
    expected, actual = (
        run_steps(step, state, each) for each in (batch, batch._replace(tokens=longer))
    )
    assert_same_training(actual, expected)


# Section 4.1's schedule with the released code's arithmetic, rates of update t.
STORY_CLOZE = {
    0: 0.0,
    1: 6.204710e-5,
    2: 6.159420e-5,
    46: 4.166667e-5,
    69: 3.125e-5,
    92: 2.083333e-5,
    137: 4.528986e-7,
}
MNLI = {
    0: 0.0,
    1: 8.488618e-7,
    36: 3.052997e-5,
    73: 6.184571e-5,
    74: 6.237437e-5,
    100: 6.233022e-5,
    18_406: 3.125085e-5,
    36_812: 1.697770e-9,
}


@pytest.mark.parametrize(
    ("task", "num_steps", "rates"),
    [("story_cloze", 138, STORY_CLOZE), ("mnli", 36_813, MNLI)],
)
def test_learning_rates_of_the_paper(task, num_steps, rates):
    config = finetune_config(task, BASE)
    assert config.optimizer.warmup_fraction == 0.002
    schedule = make_optimizer(config.optimizer, num_steps).learning_rate
    for step, rate in rates.items():
        # 1 - x has steps of 6e-8 where x is near 1
        assert float(schedule(step)) == pytest.approx(rate, rel=5e-7, abs=5e-12), step


LOOKUPS = {"embed_dropout_on": "lookups"}
MATRIX = {
    "embed_dropout_on": "matrix",
    "softmax_rows": "tokens+positions",
    "attention_form": "plain",
}


@pytest.mark.parametrize(
    ("overrides", "head", "parts", "sharding"),
    [
        ({"kind": "lstm"}, PAIRS, 1, "replicated"),
        (MATRIX, CHOICES, 2, "full"),
        ({**LOOKUPS, "loss_chunk": 5, "remat": True}, PAIRS, 1, "full"),
    ],
    ids=["LSTM", "matrix, plain attention", "lookups, layer by layer"],
)
def test_eight_devices_train_as_one_does(tiny, overrides, head, parts, sharding):
    """Jitted as in a run, and without the padding that one device computes.

    With dropout, whose masks are the padded batch's. Where each has all parameters,
    they exchange gradients and nothing else.
    """
    model, mesh = tiny(**overrides), make_mesh(sharding)
    step, before = make_step(model, head, accumulation_steps=parts, mesh=mesh)
    batch = unpadded(batch_for(model, head), mesh.size, parts)
    batch = to_global_batch(batch, mesh)
    assert len(batch.tokens.addressable_shards) == mesh.size == 8
    state = on_devices(before, mesh)
    compiled = jit_step(step, mesh, state).lower(state, batch, SEED).compile()
    actual = run_steps(compiled, state, batch)
    assert_same_training(actual, expected_of(model, head))
    kinds = Counter(kind for kind, _ in collectives(compiled))
    if sharding == "replicated":
        assert kinds == {"all-reduce": 1}
    else:  # once, however many parts
        assert kinds["reduce-scatter"] == 7, "the layer's, embeddings, the head"


def test_step_lowers_for_accelerators(tiny):
    """Ahead of time, without one: the layouts that CPUs like are left to XLA.

    A GPU is asked for one layout of LayerNorm's arrays, two for each. Products write
    what they read, bfloat16.
    """
    model = tiny(dtype="bfloat16", mlp_dim=64)
    batch = unpadded(batch_for(model, CHOICES), devices=4)
    step, state = make_step(model, CHOICES)
    traced = jax.jit(step).trace(state, batch, SEED)
    for platform, asked in (("cuda", 2), ("tpu", 0)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.gather" in text
        found = re.findall("@(LayoutConstraint|CustomSPMDPartitioning)", text)
        assert len(found) == asked * 2 * model.num_layers
        products = [x for x in text.splitlines() if "stablehlo.dot_general" in x]
        to_bfloat16 = [line for line in products if line.endswith("xbf16>")]
        assert len(to_bfloat16) > len(products) / 2
        assert "tensor<128x32xbf16>" in text, "97 softmax rows are filled up to 128"
    assert "tensor<128x32xbf16>" not in traced.lower().as_text(), "not on a CPU"


def test_seeds_share_one_program_and_have_masks_of_their_own(tiny):
    """And so has each step."""
    step, state = jitted(tiny(**LOOKUPS), PAIRS)
    batch = batch_for(tiny(), PAIRS)
    run_steps(step, state, batch)
    programs = step._cache_size()
    found = [
        run_steps(step, state, batch, np.uint32(seed), 2)
        for seed in (0, 1, 2**32 - 1, 0)
    ]
    assert step._cache_size() == programs
    assert len({history[0] for history, _ in found}) == 3
    np.testing.assert_array_equal(found[0][0], found[3][0])
    assert largest_difference(found[0][1].params, found[3][1].params) == 0.0
    again = state._replace(step=np.int32(1))
    first, later = (step(s, batch, SEED)[1]["loss"].item() for s in (state, again))
    assert first != later
