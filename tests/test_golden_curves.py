"""The losses of 300 updates equal kept numbers, so that no change of a recipe hides.

The configurations are those of `configs/`, but for the sizes, the learning rates and
the warmups, which are those of short runs. Rounding moves these losses by a tenth of
`TOLERANCE` at most: another number of threads or devices, other instructions, or
initial weights that differ by 1e-7.
"""

from collections.abc import Iterable

import jax
import numpy as np
import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.finetuning.initial_state import finetune_state_shapes, init_finetune_state
from gpt1_jax.finetuning.steps import Batch, make_finetune_step
from gpt1_jax.model.language_model import init_params
from gpt1_jax.parallel.mesh import make_mesh, state_sharding
from gpt1_jax.training.initial_state import init_pretrain_state, pretrain_state_shapes
from gpt1_jax.training.optimizer import make_optimizer
from gpt1_jax.training.steps import jit_step, make_pretrain_step

STEPS = 300
AT = (1, 10, 25, 50, 75, 100, 125, 150, 175, 200, 225, 250, 275, 300)
TOLERANCE = {"transformer": 4e-5, "lstm": 1e-4, "finetune": 4e-5}
KEPT = {  # losses in nats, after the updates `AT`
    "transformer": (
        *(3.464453, 3.464436, 3.439362, 3.291185, 3.137853),
        *(2.924882, 2.602798, 2.548392, 2.531463, 2.340503),
        *(2.225053, 2.418975, 2.321435, 2.027895),
    ),
    "lstm": (
        *(3.466223, 3.465620, 3.453728, 3.260919, 3.250056),
        *(2.903409, 2.443684, 2.417593, 2.297118, 2.043571),
        *(1.955342, 2.204212, 1.932055, 1.679777),
    ),
    "finetune": (
        *(2.471451, 2.472326, 2.449793, 2.413330, 2.307506),
        *(2.191051, 2.236337, 2.230391, 2.146061, 2.180872),
        *(2.150374, 2.072927, 2.120153, 2.091362),
    ),
}
VOCAB, ROWS, LENGTH = 32, 8, 8
START, EXTRACT = VOCAB, VOCAB + 2  # of fine-tuning's three special tokens
SIZES = {
    "model__num_layers": 2,
    "model__num_heads": 2,
    "model__embed_dim": 16,
    "model__mlp_dim": 64,
    "model__lstm_units": 24,
    "model__max_seq_len": LENGTH,
}
RATE = {"optimizer__learning_rate": 3e-3}
MESH = make_mesh(devices=jax.devices()[:1])


def texts(seed: int) -> np.ndarray:
    """[STEPS, ROWS, LENGTH] tokens; one of two follows each, seven times in eight."""
    random = np.random.RandomState(seed)  # no version of NumPy changes its numbers
    shape = STEPS, ROWS, LENGTH
    followers = random.randint(VOCAB, size=(VOCAB, 2))
    tokens = random.randint(VOCAB, size=shape)
    choices, is_random = random.randint(2, size=shape), random.randint(8, size=shape)
    for t in range(1, LENGTH):
        follower = followers[tokens[..., t - 1], choices[..., t]]
        tokens[..., t] = np.where(is_random[..., t], follower, tokens[..., t])
    return tokens.astype(np.int32)


def examples() -> Iterable[Batch]:
    """Texts of 4 to `LENGTH` tokens, labelled by whether their first word is odd."""
    tokens = texts(seed=1)
    lengths = np.random.RandomState(2).randint(4, LENGTH + 1, tokens.shape[:2])
    labels = tokens[..., 1] % 2
    tokens[..., 0] = START
    place = np.arange(LENGTH)
    tokens[place == lengths[..., None] - 1] = EXTRACT
    tokens[place >= lengths[..., None]] = 0
    targets = np.eye(2, dtype=np.float32)[labels]
    lengths = lengths.astype(np.int32)[..., None]
    return map(Batch, tokens[:, :, None], lengths, targets)


def losses(step, state, batches, seed: int) -> np.ndarray:
    """The training loss of each update.

    LayerNorm's gains begin at a tenth of 1. Otherwise almost all that is normalised
    would have a variance near 1, beside which epsilon vanishes.
    """

    def lowered(path, leaf):
        return leaf / 10 if path[-1].key == "scale" else leaf

    state = state._replace(params=jax.tree.map_with_path(lowered, state.params))
    step, found = jit_step(step, MESH, state), []
    for batch in batches:
        state, metrics = step(state, batch, np.uint32(seed))
        found.append(metrics["loss"])
    return np.asarray(jax.device_get(found))


def pretrain(kind: str) -> np.ndarray:
    """The losses of a pre-training."""
    short = {"model__kind": kind, "optimizer__warmup_steps": 30}
    values = load_config("paper", **SIZES, **RATE, **short).to_dict()
    config = config_lib.load(values)
    model = config.model.with_vocab_size(VOCAB)
    optimizer = make_optimizer(config.optimizer, STEPS)
    sharding = state_sharding(MESH, pretrain_state_shapes(model, optimizer))
    state = init_pretrain_state(config, model, optimizer, None, sharding)
    step = make_pretrain_step(model, optimizer)
    return losses(step, state, texts(seed=0), config.seed)


def finetune() -> np.ndarray:
    """The losses of a fine-tuning, from weights that were not trained."""
    short = {"init_from": "none", "optimizer__warmup_fraction": 0.1}
    values = load_config("sst2", file="finetune", **RATE, **short).to_dict()
    config = config_lib.load(values)
    sizes = config_lib.load(load_config("paper", **SIZES).to_dict()).model
    model = config.model.with_sizes(sizes).with_vocab_size(EXTRACT + 1)
    head = Head(2, False, config.head.dropout, EXTRACT)
    optimizer = make_optimizer(config.optimizer, STEPS)
    sharding = state_sharding(MESH, finetune_state_shapes(model, head, optimizer))
    start = init_params(sizes.with_vocab_size(VOCAB), jax.random.key(1))
    state = init_finetune_state(
        model, head, optimizer, start, model.depth, config.seeds[0], sharding
    )
    step = make_finetune_step(model, head, optimizer, config.head.aux_lm_weight)
    return losses(step, state, examples(), config.seeds[0])


@pytest.mark.parametrize("kind", KEPT)
def test_the_losses_of_a_training_are_those_that_were_kept(kind):
    found = (finetune() if kind == "finetune" else pretrain(kind))[np.array(AT) - 1]
    assert np.abs(found - KEPT[kind]).max() < TOLERANCE[kind], (
        f"The recipe of {kind} has changed: its losses after the updates {AT} are "
        f"{found.astype(float).round(6).tolist()}. Keep these numbers only if the "
        "change is meant, and say so in the changelog and in docs/fidelity.md."
    )
