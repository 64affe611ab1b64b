import json
import sys

import pytest
from absl import flags as flags_lib
from ml_collections import config_flags
from tiny_run import load_config

from gpt1_jax.config import load

TOPOLOGIES = ("paper_h200", "paper_h100x8", "paper_v5e_16", "paper_v5e_256")
PRESETS = ("paper", "paper_1m", *TOPOLOGIES, "small", "quickstart")


def resolve(preset="paper", **overrides):
    return load(load_config(preset, **overrides).to_dict())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid(preset):
    config = resolve(preset)
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()


def test_the_default_is_the_recipe_of_the_paper():
    config = resolve()
    model = config.model_config(40478)
    sizes = (model.num_layers, model.num_heads, model.embed_dim, model.mlp_dim)
    assert (*sizes, model.max_seq_len) == (12, 12, 768, 3072, 512)
    assert {model.embed_dropout, model.attn_dropout, model.resid_dropout} == {0.1}
    assert (config.train.batch_size, config.train.num_epochs) == (64, 100)
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (2.5e-4, 2000)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.01, 1.0)
    assert resolve("paper_1m").train.num_steps == 1_000_000


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"distributed__heartbeat_seconds": 5}, ["heartbeat_seconds=5", "at least 10"]),
        ({"distributed__stuck_minutes": -1.0}, ["stuck_minutes=-1.0"]),
        ({"model__embed_dim": 100, "model__num_heads": 12}, ["embed_dim=100", "108"]),
        ({"model__num_layers": 0}, ["num_layers=0", "positive"]),
        ({"model__max_seq_len": 1}, ["max_seq_len=1", "at least 2"]),
        ({"model__attn_dropout": 1.0}, ["attn_dropout=1.0", "[0, 1)"]),
        ({"model__dtype": "float16"}, ["model.dtype='float16'", "bfloat16"]),
        ({"model__layer_loop": "while"}, ["layer_loop='while'", "scan"]),
        ({"model__embed_dropout_on": "x"}, ["embed_dropout_on='x'", "matrix"]),
        ({"model__softmax_rows": "x"}, ["softmax_rows='x'", "tokens+positions"]),
        ({"tokenizer__kind": "bert"}, ["tokenizer.kind='bert'", "gpt1"]),
        ({"tokenizer__kind": "gpt1"}, ["tokenizer.path", "finetune-transformer-lm"]),
        ({"data__source": "web"}, ["data.source='web'", "tfds"]),
        ({"data__source": "text"}, ["data.train=PATHS"]),
        ({"data__source": "tfds"}, ["NAME:SPLIT"]),
        ({"data__train": "a.txt"}, ["data.train='a.txt'", "source=text"]),
        ({"data__valid_fraction": 1.0}, ["valid_fraction=1.0"]),
        ({"optimizer__name": "sgd"}, ["optimizer.name='sgd'", "released_adam"]),
        ({"optimizer__schedule": "x"}, ["schedule='x'", "cosine_after_warmup"]),
        ({"optimizer__b2": 1.0}, ["optimizer.b2=1.0"]),
        ({"optimizer__learning_rate": 0.0}, ["learning_rate=0.0", "positive"]),
        ({"train__num_steps": 10}, ["num_epochs=100.0", "num_steps=10", "one of them"]),
        ({"train__num_epochs": 0.0}, ["num_epochs=0.0", "one of them"]),
        (
            {"train__num_epochs": 0.0, "train__num_steps": 30},
            ["num_steps=30", "--config.optimizer.warmup_steps=3"],
        ),
        ({"train__batch_size": 10, "train__accumulation_steps": 4}, ["=10", "=4"]),
        ({"train__matmul_precision": "x"}, ["matmul_precision='x'", "highest"]),
        ({"eval__every_steps": 0}, ["eval.every_steps=0"]),
        ({"eval__sample_top_k": -1}, ["sample_top_k=-1"]),
        ({"checkpoint__keep_latest": 1}, ["keep_latest=1", "2"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"init_optimizer": True}, ["init_optimizer=True", "init_from=FOLDER"]),
        ({"init_step": 8}, ["init_step=8", "--config.init_from=FOLDER"]),
        (
            {"init_from": "run", "tokenizer__path": "saved"},
            ["init_from='run'", "tokenizer.path='saved'"],
        ),
    ],
)
def test_impossible_values_are_refused_by_name(overrides, parts):
    with pytest.raises(ValueError) as error:
        resolve(**overrides)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("train.batch_size", "8", "a whole number"),
        ("train.batch_size", 8.0, "a whole number"),
        ("train.batch_size", True, "a whole number"),
        ("optimizer.learning_rate", "fast", "a number"),
        ("optimizer.learning_rate", True, "a number"),
        ("log.tensorboard", 1, "True or False"),
        ("data.train", 3, "text"),
        ("model.num_layers", None, "a whole number"),
        ("seed", [0], "a whole number"),
        ("train", 3, "a section of keys"),
    ],
)
def test_values_of_another_type_are_refused_by_name(key, value, wanted):
    values = load_config("paper").to_dict()
    *sections, name = key.split(".")
    place = values
    for section in sections:
        place = place[section]
    place[name] = value
    with pytest.raises(ValueError) as error:
        load(values)
    assert f"config.{key}=" in str(error.value) and wanted in str(error.value)


def test_unknown_and_missing_keys_are_refused():
    values = load_config("paper").to_dict()
    for section in ("model", "train"):
        wrong = {**values, section: {**values[section], "layers": 3}}
        with pytest.raises(ValueError, match=rf"config\.{section}.*'layers'"):
            load(wrong)
    with pytest.raises(ValueError, match=r"lacks the keys \['seed'\]"):
        load({k: v for k, v in values.items() if k != "seed"})
    with pytest.raises(ValueError, match="unknown keys"):
        load({**values, "sed": 1})


def test_unknown_presets_are_refused_with_the_list():
    with pytest.raises(ValueError, match=r"'huge'.*paper, paper_1m"):
        load_config("huge")


# --- fine-tuning and prediction ---------------------------------------------------


def resolve_file(file, preset, *flags, **overrides):
    """The configuration as the command line makes it, `flags` included."""
    values = flags_lib.FlagValues()
    config = load_config(preset, file=file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["main", *(f"--config.{flag}" for flag in flags)])
        config_flags.DEFINE_config_dict("config", config, flag_values=values)
        values(sys.argv)
    values.config.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in overrides.items()}
    )
    return load(values.config.to_dict())


@pytest.mark.parametrize("preset", ["sst2", "all", "custom", "sst2+rte", ""])
def test_every_fine_tuning_is_valid(preset):
    config = resolve_file("finetune", preset, init_from="run")
    assert config.tasks == tuple((preset or "sst2").split("+"))
    assert config.data.source == ("files" if preset == "custom" else "tfds")
    assert json.loads(json.dumps(config.to_dict()))


def test_the_default_fine_tuning_is_that_of_the_paper():
    config = resolve_file("finetune", "sst2", init_from="run")
    optimizer, train = config.optimizer, config.train
    assert (optimizer.learning_rate, optimizer.schedule) == (6.25e-5, "linear")
    assert (optimizer.warmup_steps, optimizer.warmup_fraction) == (0, 0.002)
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-8)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.01, 1.0)
    assert (train.batch_size, train.num_epochs) == (32, 3.0)
    assert (config.head.dropout, config.head.aux_lm_weight) == (0.1, 0.5)
    assert config.eval.first_epoch_steps == (1000, 2000, 4000, 8000, 16000, 32000)
    assert config.transfer_layers == "all"
    pretraining = resolve().model
    assert {k: pretraining[k] for k in config.model} == dict(config.model)


@pytest.mark.parametrize(
    ("flag", "seeds"),
    [
        ("seeds=(0,1)", (0, 1)),
        ("seeds=(0, 1, 2)", (0, 1, 2)),
        ("seeds=0,1", (0, 1)),
        ("seeds=[0,1]", (0, 1)),
        ("seeds=3", (3,)),
    ],
)
def test_seeds_may_be_written_with_and_without_brackets(flag, seeds):
    assert resolve_file("finetune", "sst2", flag, init_from="run").seeds == seeds


def test_a_prediction_is_valid():
    config = resolve_file("predict", "", init_from="run", text="a")
    assert (config.job, config.batch_size) == ("predict", 64)


@pytest.mark.parametrize(
    ("preset", "overrides", "parts"),
    [
        ("sst2", {"init_from": ""}, ["--config.init_from=runs/pretrain/quickstart"]),
        ("sst2", {"seeds": ()}, ["config.seeds is empty"]),
        (
            "sst2",
            {"seeds": ("range(3)",)},
            ["config.seeds[0]='range(3)'", "whole number"],
        ),
        ("sst2", {"seeds": (-1,)}, ["seeds=-1"]),
        ("sst2", {"tasks": ()}, ["config.tasks is empty"]),
        ("sst2", {"transfer_layers": "-1"}, ["transfer_layers='-1'", "none"]),
        ("sst2", {"data__source": "files"}, ["'files'", "finetune.py:custom"]),
        ("custom", {"data__source": "tfds"}, ["'custom'", "source='files'"]),
        ("sst2", {"data__source": "jsonl"}, ["'jsonl'", "--config.data.dir=DIR"]),
        ("sst2", {"data__source": "web"}, ["'web'", "official"]),
        ("sst2", {"data__max_seq_len": -1}, ["max_seq_len=-1"]),
        ("sst2", {"data__seq_len_buckets": (64, 32)}, ["seq_len_buckets=(64, 32)"]),
        ("sst2", {"data__seq_len_buckets": ("a",)}, ["seq_len_buckets[0]='a'"]),
        ("custom", {"custom__score_range": (1.0,)}, ["score_range=(1.0,)", "of 2"]),
        ("custom", {"custom__head": "x"}, ["custom.head='x'", "similarity"]),
        ("sst2", {"head__dropout": 1.0}, ["head.dropout=1.0"]),
        ("sst2", {"head__score_loss": "x"}, ["score_loss='x'", "regression"]),
        ("sst2", {"head__aux_lm_weight": -0.5}, ["aux_lm_weight=-0.5"]),
        ("sst2", {"eval__batch_size": 0}, ["eval.batch_size=0"]),
        ("sst2", {"train__num_steps": 5}, ["num_epochs=3.0", "num_steps=5"]),
    ],
    ids=str,
)
def test_impossible_fine_tunings_are_refused_by_name(preset, overrides, parts):
    with pytest.raises(ValueError) as error:
        resolve_file("finetune", preset, **{"init_from": "run", **overrides})
    for part in parts:
        assert part in str(error.value)
