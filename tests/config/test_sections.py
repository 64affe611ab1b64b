import json
import re

import pytest
from tiny_run import load_config

from gpt1_jax.config import load
from gpt1_jax.config.checks import split_paths
from gpt1_jax.errors import UserError

ACCELERATORS = ("paper_h200", "paper_h100x8", "paper_v5e_16")
PRESETS = (
    "paper",
    "paper_1m",
    *ACCELERATORS,
    "babylm",
    "small",
    "suite",
    "quickstart",
    "day",
)


def resolve(preset="paper", **overrides):
    return load(load_config(preset, **overrides).to_dict())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid(preset):
    config = resolve(preset)
    assert load(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("kind", ["transformer", "lstm"])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_at_the_papers_width_want_a_large_corpus(preset, kind):
    full_size = preset.startswith(("paper", "babylm"))
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


UPDATES = {"train__num_epochs": 0.0}  # whose number is given instead of epochs
SGD = {"optimizer__name": "sgd"}
NO_ARGUMENTS = (
    *("0.9", "momentum", "momentum=f(0)", "momentum=", "momentum=1,momentum=2"),
    *("**{'momentum': 1}", "momentum=1)(x=2", "momentum=1)+(2"),
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"distributed__heartbeat_seconds": 5}, "heartbeat_seconds=5 .*at least 10"),
        ({"distributed__stuck_minutes": -1.0}, "stuck_minutes=-1.0"),
        ({"tokenizer__kind": "bert"}, "tokenizer.kind='bert' .*gpt1"),
        ({"tokenizer__kind": "gpt1"}, "tokenizer.path.*finetune-transformer-lm"),
        ({"tokenizer__kind": "huggingface"}, "tokenizer.path.*hf://ORG/NAME"),
        ({"data__source": "web"}, "data.source='web' .*tfds"),
        ({"data__source": "text"}, "data.train=PATHS"),
        ({"data__source": "tfds"}, "NAME:SPLIT"),
        ({"data__source": "tokens"}, "needs --config.data.train=FILES"),
        (
            {"data__source": "tokens", "data__train": "a.bin"},
            "the tokenizer that made th",
        ),
        ({"data__train": "a.txt"}, "data.train='a.txt'.*data.source=text"),
        *(
            (
                {"data__document_separator": "--", **source},
                "document_separator='--'.*does not read it; leave it empty",
            )
            for source in (
                {"data__source": "builtin"},
                {"data__source": "tfds", "data__train": "a:b"},
            )
        ),
        ({"data__valid_fraction": 1.0}, "valid_fraction=1.0"),
        ({"optimizer__name": ""}, "optimizer.name is empty.*released_adam"),
        (
            {"optimizer__arguments": "a=0.9"},
            "arguments='a=0.9'.*released_adam.*takes none",
        ),
        *(
            (
                SGD | {"optimizer__arguments": given},
                f"arguments={re.escape(repr(given))}.*NAME=VALUE.*0.9,nesterov=True",
            )
            for given in NO_ARGUMENTS
        ),
        (
            {"optimizer__name": "lion", "optimizer__arguments": "b2=0.9"},
            "arguments='b2=0.9'.*set --config.optimizer.b2 instead",
        ),
        ({"optimizer__schedule": "x"}, "schedule='x' .*cosine_after_warmup"),
        ({"optimizer__b2": 1.0}, "optimizer.b2=1.0"),
        ({"optimizer__learning_rate": 0.0}, "learning_rate=0.0 .*positive"),
        ({"train__num_steps": 10}, "num_epochs=100.0.*num_steps=10.*one of them"),
        (UPDATES, "num_epochs=0.0.*one of them"),
        ({"train__num_epochs": 1e26}, r"num_epochs=1e\+26.*2,147,483,647"),
        (
            UPDATES | {"train__num_steps": 30},
            "steps=30.*--config.optimizer.warmup_steps=3",
        ),
        (
            UPDATES
            | {
                "train__num_steps": 10,
                "optimizer__warmup_steps": 0,
                "optimizer__warmup_fraction": 0.95,
                "optimizer__schedule": "cosine_after_warmup",
            },
            "within config.optimizer.warmup_fraction=0.95.*warmup_steps=1",
        ),
        ({"train__batch_size": 10, "train__accumulation_steps": 4}, "=10 must .*=4"),
        ({"train__matmul_precision": "x"}, "matmul_precision='x' .*highest"),
        ({"eval__every_steps": 0}, "eval.every_steps=0"),
        ({"eval__sample_top_k": -1}, "sample_top_k=-1"),
        ({"checkpoint__keep_latest": 1}, "keep_latest=1 .*2"),
        ({"seed": -1}, "seed=-1"),
        ({"init_optimizer": True}, "init_optimizer=True.*init_from=FOLDER"),
        ({"step": "8"}, "step='8'.*--config.init_from=FOLDER"),
        (
            {"init_from": "run", "tokenizer__path": "saved"},
            "init_from='run' and config.tokenizer.path='saved'",
        ),
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


def test_unknown_presets_are_refused_with_the_list():
    with pytest.raises(ValueError, match=r"'huge'.*paper, paper_1m"):
        load_config("huge")


# --- the model ----------------------------------------------------------------------


def section(preset="paper", **overrides):
    overrides = {f"model__{key}": value for key, value in overrides.items()}
    return resolve(preset, **overrides).model.with_vocab_size(40478)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"kind": "gru"}, "model.kind='gru' .*transformer, lstm"),
        ({"embed_dim": 100, "num_heads": 12}, "embed_dim=100.*108"),
        ({"num_layers": 0}, "num_layers=0 .*positive"),
        ({"max_seq_len": 1}, "max_seq_len=1 .*at least 2"),
        ({"max_seq_len": 2**31}, "max_seq_len=2147483648 .*at most 2,147,483,647"),
        ({"embed_dim": 2**63}, "embed_dim=9223372036854775808 .*at most"),
        ({"attn_dropout": 1.0}, r"attn_dropout=1.0 .*\[0, 0.99999\]"),
        ({"embed_dropout": 0.999999}, r"=0.999999 .*\[0, 0.99999\].*round to 1"),
        ({"resid_dropout": -0.1}, r"resid_dropout=-0.1 .*\[0, 0.99999\]"),
        ({"dtype": "float16"}, "model.dtype='float16' .*bfloat16"),
        ({"layer_loop": "while"}, "layer_loop='while' .*scan"),
        ({"embed_dropout_on": "x"}, "embed_dropout_on='x' .*matrix"),
        ({"softmax_rows": "x"}, r"softmax_rows='x' .*tokens\+positions"),
        ({"kind": "lstm", "lstm_units": 0}, "lstm_units=0 .*positive"),
        ({"kind": "lstm", "embed_dim": 0}, "embed_dim=0 .*positive"),
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


def test_sizes_go_up_to_the_largest_index_of_an_array():
    assert section(max_seq_len=2**31 - 1, layer_loop="scan").layer_loop == "scan"


def test_an_lstm_is_chosen_by_its_kind_alone():
    """The sizes of a Transformer's layers stay as they are, and do not matter."""
    model = section(kind="lstm")
    assert (model.lstm_units, model.depth) == (2048, 1)
    assert section(kind="lstm", num_layers=0, num_heads=5, mlp_dim=0).depth == 1
    assert section().depth == 12


def test_small_presets_keep_the_papers_ratio_of_units_to_width():
    for preset in ("babylm", "small", "suite", "quickstart", "day"):
        model = section(preset)
        ratio = model.lstm_units / model.embed_dim
        assert ratio == pytest.approx(2048 / 768, rel=0.01), preset


def test_layers_are_named_with_what_decides_their_number_of_parameters():
    assert section().layers == "12 layers"
    lstm = section(kind="lstm")
    assert lstm.layers == "LSTM layer of 2,048 units"


# --- milestones ---------------------------------------------------------------------

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


def test_milestones_have_the_unit_that_is_set():
    assert resolve().checkpoint.milestones[1] == ()
    for unit in ("words", "tokens", "steps"):
        config = resolve(**{f"checkpoint__milestone_{unit}": (2000, 3000)})
        assert config.checkpoint.milestones == (unit, (2000, 3000))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"words": ("ten",)}, r"milestone_words\[0\]='ten' must be a whole number"),
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
