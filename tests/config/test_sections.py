import json
import re

import pytest
from tiny_run import load_config

from gpt1_jax.config import load
from gpt1_jax.config.checks import split_paths
from gpt1_jax.errors import UserError

PRESETS = (
    *("paper", "paper_1m", "paper_h200", "paper_h100x8", "paper_v5e_16"),
    *("babylm", "small", "suite", "quickstart", "day"),
)


def resolve(preset="paper", **overrides):
    return load(load_config(preset, **overrides).to_dict())


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_those_as_wide_as_the_paper_want_a_large_corpus(preset):
    config = resolve(preset)
    assert load(json.loads(json.dumps(config.to_dict()))) == config
    full_size = preset.startswith(("paper", "babylm"))
    for kind in ("transformer", "lstm"):
        assert resolve(preset, model__kind=kind).model.is_full_size == full_size


def test_the_default_is_the_recipe_of_the_paper():
    config = resolve()
    model = config.model.with_vocab_size(40478)
    sizes = (model.num_layers, model.num_heads, model.embed_dim, model.mlp_dim)
    assert (*sizes, model.max_seq_len) == (12, 12, 768, 3072, 512)
    assert {model.embed_dropout, model.attn_dropout, model.resid_dropout} == {0.1}
    assert (config.train.batch_size, config.train.num_epochs) == (64, 100)
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (2.5e-4, 2000)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.01, 1.0)
    assert resolve("paper_1m").train.num_steps == 1_000_000


ARGUMENTS, SOURCE, STEPS = "optimizer__arguments", "data__source", "train__num_steps"
SGD = {"optimizer__name": "sgd"}
LION = {"optimizer__name": "lion"}
UPDATES = {"train__num_epochs": 0.0}  # whose number is given instead of epochs
SHORT = UPDATES | {"optimizer__warmup_steps": 0, "optimizer__warmup_fraction": 0.95}
LATER = {"optimizer__schedule": "cosine_after_warmup"}
NO_ARGUMENTS = (
    *("0.9", "momentum=f(0)", "momentum=", "momentum=1,momentum=2"),
    *("**{'momentum': 1}", "momentum=1)(x=2"),
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"tokenizer__kind": "gpt1"}, "tokenizer.path.*finetune-transformer-lm"),
        ({"tokenizer__kind": "huggingface"}, "tokenizer.path.*hf://ORG/NAME"),
        ({SOURCE: "text"}, "data.train=PATHS"),
        ({SOURCE: "tfds"}, "NAME:SPLIT"),
        ({SOURCE: "tokens"}, "needs --config.data.train=FILES"),
        ({SOURCE: "tokens", "data__train": "a.bin"}, "the tokenizer that made th"),
        ({"data__train": "a.txt"}, "data.train='a.txt'.*data.source=text"),
        ({"data__document_separator": "--"}, "separator='--'.*does not.* leave it emp"),
        ({"optimizer__name": ""}, "optimizer.name is empty.*released_adam"),
        ({ARGUMENTS: "a=0.9"}, "arguments='a=0.9'.*released_adam.*takes none"),
        *(
            (SGD | {ARGUMENTS: each}, f"ts={re.escape(repr(each))}.*NAME=VALUE.*True")
            for each in NO_ARGUMENTS
        ),
        (LION | {ARGUMENTS: "b2=0.9"}, "='b2=0.9'.*set --config.optimizer.b2 instead"),
        ({"optimizer__schedule": "x"}, "schedule='x' .*cosine_after_warmup"),
        (UPDATES | {STEPS: 30}, "steps=30.*--config.optimizer.warmup_steps=3"),
        (SHORT | LATER | {STEPS: 10}, "warmup_fraction=0.95.*warmup_steps=1"),
        ({"train__batch_size": 10, "train__accumulation_steps": 4}, "=10 must .*=4"),
        ({"init_optimizer": True}, "init_optimizer=True.*init_from=FOLDER"),
        ({"step": "8"}, "step='8'.*--config.init_from=FOLDER"),
        ({"init_from": "r", "tokenizer__path": "t"}, "from='r' and .*r.path='t'"),
    ],
    ids=str,
)
def test_impossible_values_are_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        resolve(**overrides)


def test_a_configuration_file_may_list_names_with_commas():
    config, names = load_config(data__source="text"), ["one, two.txt", "three.txt"]
    with config.ignore_type():
        config.data.train = names
    assert split_paths(load(config.to_dict()).data.train) == names


def section(preset="paper", **overrides):
    overrides = {f"model__{key}": value for key, value in overrides.items()}
    return resolve(preset, **overrides).model.with_vocab_size(40478)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"kind": "gru"}, "model.kind='gru' .*transformer, lstm"),
        ({"embed_dim": 100, "num_heads": 12}, "embed_dim=100.*108"),
        ({"num_layers": 0}, "num_layers=0 .*positive"),
        ({"embed_dim": 2**63}, "embed_dim=9223372036854775808 .*at most"),
        ({"embed_dropout": 0.999999}, r"=0.999999 .*\[0, 0.99999\].*round to 1"),
        ({"kind": "lstm", "lstm_units": 0}, "lstm_units=0 .*positive"),
        (
            {"kind": "lstm", "softmax_rows": "tokens+positions"},
            "no position embeddings.*--config.model.softmax_rows=tokens",
        ),
    ],
    ids=str,
)
def test_impossible_models_are_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        section(**overrides)


def test_an_lstm_is_chosen_by_its_kind_alone():
    """The sizes of a Transformer's layers stay as they are, and do not matter."""
    model = section(kind="lstm", num_layers=0, num_heads=5, mlp_dim=0)
    assert (model.lstm_units, model.depth) == (2048, 1)
    assert model.layers == "LSTM layer of 2,048 units"
    assert (section().depth, section().layers) == (12, "12 layers")


@pytest.mark.parametrize("preset", ["babylm", "small", "suite", "quickstart", "day"])
def test_small_presets_keep_the_papers_ratio_of_units_to_width(preset):
    model = section(preset)
    ratio = model.lstm_units / model.embed_dim
    assert ratio == pytest.approx(2048 / 768, rel=0.01)


M = 10**6


def test_the_milestones_of_both_tracks_of_the_challenge():
    ones, tens = (list(range(1, 11)), list(range(20, 101, 10)))
    hundreds = list(range(200, 1001, 100))
    amounts = tuple(count * M for count in (*ones, *tens, *hundreds))
    assert resolve("babylm").checkpoint.milestones == ("words", amounts)


def test_a_million_updates_have_milestones_as_figure_2_spaces_them():
    config = resolve("paper_1m")
    spaced = tuple(m * 10**k for k in (3, 4, 5) for m in (1, 2, 5))
    expected = ("steps", (*spaced, config.train.num_steps))
    assert config.checkpoint.milestones == expected


@pytest.mark.parametrize("unit", ["words", "tokens", "steps"])
def test_milestones_have_the_unit_that_is_set(unit):
    config = resolve(**{f"checkpoint__milestone_{unit}": (2000, 3000)})
    assert config.checkpoint.milestones == (unit, (2000, 3000))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"tokens": (-1, 5)}, r"milestone_tokens=\(-1, 5\) must be .* rising order"),
        ({"steps": (5, 5)}, r"milestone_steps=\(5, 5\) must be .* as 1000,2000"),
        (
            {"tokens": (M,), "steps": (2000,)},
            r"config.checkpoint.milestone_tokens and config.checkpoint.milestone_steps"
            " are set; set one",
        ),
    ],
    ids=str,
)
def test_milestones_that_cannot_be_are_refused(overrides, message):
    keys = {f"checkpoint__milestone_{unit}": each for unit, each in overrides.items()}
    with pytest.raises(ValueError, match=message):
        resolve(**keys)
