import json

import pytest
from tiny_run import load_config

from gpt1_jax.config import load

TOPOLOGIES = ("paper_h200", "paper_h100x8", "paper_v5e_16", "paper_v5e_256")
PRESETS = ("paper", "paper_1m", *TOPOLOGIES, "babylm", "small", "quickstart")


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
            {"train__num_steps": 0, "train__num_epochs": 1e26},
            ["num_epochs=1e+26", "2,147,483,647"],
        ),
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
        ({"init_step": "8"}, ["init_step='8'", "--config.init_from=FOLDER"]),
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


def test_unknown_presets_are_refused_with_the_list():
    with pytest.raises(ValueError, match=r"'huge'.*paper, paper_1m"):
        load_config("huge")
