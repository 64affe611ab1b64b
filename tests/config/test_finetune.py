"""Fine-tuning's configuration: the paper's values, and those that are refused."""

import dataclasses
import json
import math
import sys

import pytest
from absl import flags as flags_lib
from ml_collections import config_flags
from tiny_run import load_config

from gpt1_jax import program  # noqa: F401  # how it reads tuples
from gpt1_jax.config import load
from gpt1_jax.config.finetune import check_kind, describe_left_out, suite_variants
from gpt1_jax.config.flat import flatten
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.paper_tasks import TASKS


def resolve(preset, *flags, init_from="run", **overrides):
    """The configuration as the command line makes it, `flags` included."""
    values = flags_lib.FlagValues()
    named = {"init_from": init_from, **overrides}
    config = load_config(preset, file="finetune", **named)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["main", *(f"--config.{flag}" for flag in flags)])
        config_flags.DEFINE_config_dict("config", config, flag_values=values)
        values(sys.argv)
    return load(values.config.to_dict())


@pytest.mark.parametrize(
    ("preset", "key", "flags", "value"),
    [
        ("sst2", "seeds", ["(0, 1, 2)"], (0, 1, 2)),
        ("sst2", "seeds", ["[0,1]"], (0, 1)),
        ("sst2", "seeds", ["3"], (3,)),
        ("ablations", "tasks", ["cola, rte"], ("cola", "rte")),
        ("ablations", "tasks", ["('cola', 'rte')"], ("cola", "rte")),
        ("custom", "custom.class_weights", ["1,2"], ("1", "2")),
        ("custom", "custom.text", ["title"], ("title",)),
        ("custom", "custom.text", ["()"], ()),
        ("custom", "custom.text", [""], ()),
        ("custom", "custom.score_range", ["(0.0, 2.5)"], (0, 2.5)),
        ("aux_lm_weight", "suite.train_sizes", ["50,0"], (50, 0)),
        ("aux_lm_weight", "suite.aux_lm_weights", ["0,1"], (0, 1)),
        # of several, the last one wins
        ("custom", "custom.text", ["a,b", "c"], ("c",)),
        ("custom", "custom.score_range", ["0,5", "1,2"], (1.0, 2.0)),
    ],
)
def test_lists_may_be_written_with_and_without_brackets(preset, key, flags, value):
    config = resolve(preset, *(f"{key}={flag}" for flag in flags))
    assert flatten(config.to_dict())[key] == value


def test_the_default_fine_tuning_is_that_of_the_paper():
    config = resolve("sst2")
    optimizer, train = config.optimizer, config.train
    assert (optimizer.learning_rate, optimizer.schedule) == (6.25e-5, "linear")
    assert (optimizer.warmup_steps, optimizer.warmup_fraction) == (0, 0.002)
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-8)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.01, 1.0)
    assert (train.batch_size, train.num_epochs) == (32, 3.0)
    assert (config.head.dropout, config.head.aux_lm_weight) == (0.1, 0.5)
    assert config.eval.first_epoch_steps == (1000, 2000, 4000, 8000, 16000, 32000)
    assert config.transfer_layers == "all"
    pretraining = load(load_config("paper").to_dict()).model
    assert config.model.with_sizes(pretraining) == pretraining


@pytest.mark.parametrize(
    ("preset", "tasks", "batch_size", "num_epochs"),
    [
        ("babylm", "rte mrpc qqp mnli", 32, 10),
        ("babylm_long", "boolq multirc", 16, 10),
        ("babylm_wsc", "wsc", 32, 30),
    ],
)
def test_babylm_presets_are_the_settings_of_its_pipeline(
    preset, tasks, batch_size, num_epochs
):
    """Defaults of its finetune/run.py, and the values in eval_finetuning.sh."""
    config = resolve(preset, data__dir="data")
    assert config.tasks == tuple(tasks.split())
    assert (config.seeds, config.data.source) == ((42,), "babylm")
    train = config.train
    assert (train.batch_size, train.num_epochs) == (batch_size, num_epochs)
    assert dataclasses.asdict(config.optimizer) == {
        "name": "adamw",
        "arguments": "",
        "learning_rate": 3e-5,
        "b1": 0.9,
        "b2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "clip_norm": 1e9,
        "schedule": "cosine_after_warmup",
        "warmup_steps": 0,
        "warmup_fraction": 0.06,
        "final_fraction": 0.1,
    }
    assert (config.head.dropout, config.head.aux_lm_weight) == (0.1, 0)
    assert (config.eval.first_epoch_steps, config.eval.batch_size) == ((), 64)
    assert config.data.longest(512) == 512
    for task in config.tasks:
        by_f1 = task in ("mrpc", "qqp")
        assert TASKS[task].metrics[0] == ("f1" if by_f1 else "accuracy")


@pytest.mark.parametrize(
    ("preset", "tasks", "train_examples"),
    [
        ("ablations", "cola sst2 mrpc stsb qqp mnli qnli rte", 0),
        ("layer_transfer", "race mnli", 2000),
        ("aux_lm_weight", "mrpc rte qqp mnli", 0),
    ],
)
def test_analyses_have_their_tasks(preset, tasks, train_examples):
    config = resolve(preset)
    assert config.suite.compare == config.preset == preset
    assert config.tasks == tuple(tasks.split())
    assert config.eval.train_examples == train_examples


SIZES = {"suite__compare": "train_sizes"}  # a learning curve


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("sst2", {"seeds": ()}, r"config\.seeds=\(\) must name one or more"),
        ("sst2", {"seeds": ("range(3)",)}, r"seeds\[0\]='range\(3\)'.* whole number"),
        ("sst2", {"transfer_layers": "²"}, "transfer_layers='²' must be all, none"),
        ("sst2", {"data__source": "files"}, r"='files': .*finetune\.py:custom"),
        ("custom", {"data__source": "tfds"}, "custom.* source='files'"),
        ("sst2", {"data__source": "jsonl"}, r"'jsonl' .*--config\.data\.dir=DIR"),
        ("sst2", {"data__source": "web"}, "source='web' .*official"),
        ("sst2", {"eval__batch_size": 0}, r"eval\.batch_size=0"),
        ("sst2", {"data__seq_len_buckets": (0, 8)}, r"len_buckets=\(0, 8\)"),
        ("sst2", {"train__num_steps": 5}, r"num_epochs=3\.0 .*num_steps=5"),
        # what a suite compares
        ("sst2", {"suite__aux_lm_weights": (1, 1.0)}, r"\(1, 1\.0\) .*different"),
        ("sst2", {"suite__aux_lm_weights": (math.inf,)}, r"\(inf,\) .*below 0"),
        ("sst2", {"suite__train_sizes": (-5,)}, r"train_sizes=\(-5,\) .*below 0"),
        ("sst2", SIZES | {"suite__train_sizes": ()}, "is empty.*'train_sizes'"),
        ("sst2", {"suite__train_sizes": (100,)}, "does nothing .*compare=''; leave"),
        ("sst2", SIZES | {"suite__aux_lm_weights": (1.5,)}, "to 'aux_lm_weight'.$"),
        ("aux_lm_weight", {"suite__lstm_init_from": "a"}, "noth.* to 'ablations'.$"),
        ("layer_transfer", {"transfer_layers": "3"}, "layers='3', .*'layer_transfer'"),
        ("ablations", {"head__aux_lm_weight": 0.0}, "aux_lm_weight=0, .*above 0"),
        ("aux_lm_weight", {"data__max_train_examples": 9}, "=9, .* in config.suite.tr"),
        ("sst2", SIZES | {"data__max_train_examples": 9}, "=9, .* in config.suite.tra"),
        # a task of one's own
        ("custom", {"custom__labels": ((0,), 1)}, r"labels\[0\]=\(0,\) must be text"),
        ("custom", {"custom__text": ("a,,b",)}, r"text=\('a', '', 'b'\) .*different"),
        ("custom", {"custom__score_range": (5, 0)}, r"score_range=\(5, 0\) .*lowest"),
        ("custom", {"custom__score_range": (5.0,)}, r"=\(5\.0,\) must be a tuple of 2"),
        ("custom", {"data__dev_fraction": 0.1, "data__dev": "d.csv"}, "'d.csv' names"),
        ("custom", {"data__folds": 5, "data__dev": "d.csv"}, "folds=5 holds .*'d.csv"),
        ("custom", {"data__folds": 5, "data__dev_fraction": 0.1}, "5 does not go with"),
        ("custom", {"data__folds": 1}, "folds=1 must be 0, or at least 2"),
        ("custom", {"data__folds": 5, "data__fold": 6}, "6 is none of .*folds=5 is"),
        ("sst2", {"data__folds": 5}, "folds=5 divides the training file of a task"),
    ],
    ids=str,
)
def test_impossible_fine_tunings_are_refused_by_name(preset, overrides, message):
    with pytest.raises(UserError, match=message):
        resolve(preset, **overrides)


def named(config, num_layers=12):
    """By name, the keys in which a variant differs, but for those of the suite."""
    before, found = flatten(config.to_dict()), {}
    for name, variant in suite_variants(config, num_layers).items():
        after = flatten(variant.to_dict())
        assert before.keys() == after.keys()
        keys = (key for key in before if not key.startswith("suite."))
        found[name] = {k: after[k] for k in keys if before[k] != after[k]}
    return found


NONE = {"transfer_layers": "none"}
TWO = {"suite__compare": "scratch"}
CURVE = SIZES | {"suite__train_sizes": (100, 0, 2000)}
BY_SIZE = {
    "all": {},
    "size2000": {"data.max_train_examples": 2000},
    "size100": {"data.max_train_examples": 100},
}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, {"pretrained": {}}),
        (NONE, {"scratch": {}}),
        (TWO, {"pretrained": {}, "scratch": NONE}),
        (TWO | NONE, {"scratch": {}}),
        *((CURVE | {"transfer_layers": n}, BY_SIZE) for n in ("all", "none")),
    ],
    ids=str,
)
def test_runs_are_named_by_their_start_or_number_of_examples(overrides, expected):
    assert [*named(resolve("sst2", **overrides)).items()] == [*expected.items()]


def test_ablations_are_the_lines_of_table_5():
    config = resolve("ablations", suite__lstm_init_from="runs/lstm", step="7")
    assert named(config) == {
        "full": {},
        "no_pretraining": {"transfer_layers": "none"},
        "no_aux_lm": {"head.aux_lm_weight": 0.0},
        "lstm": {"init_from": "runs/lstm"},
    }
    assert describe_left_out(config) == ""
    without = resolve("ablations")
    assert [*named(without)] == ["full", "no_pretraining", "no_aux_lm"]
    assert "--config.suite.lstm_init_from=DIR" in describe_left_out(without)
    assert describe_left_out(resolve("sst2", suite__compare="scratch")) == ""


def test_layer_transfer_goes_from_the_embeddings_alone_to_all_layers():
    expected = {f"layers{n}": {"transfer_layers": str(n)} for n in range(4)}
    assert named(resolve("layer_transfer"), num_layers=3) == expected


def test_each_lambda_is_paired_with_each_size_the_largest_first():
    given = {"aux_lm_weights": (0, 0.25), "train_sizes": (100, 0, 2000)}
    given = {f"suite__{key}": value for key, value in given.items()}
    found = named(resolve("aux_lm_weight", **given))
    sizes = ("all", "size2000", "size100")
    assert [*found] == [f"lambda{n}-{size}" for size in sizes for n in (0, 0.25)]
    assert found["lambda0.25-size100"] == {
        "head.aux_lm_weight": 0.25,
        "data.max_train_examples": 100,
    }


@pytest.mark.parametrize("preset", ["ablations", "aux_lm_weight"])
def test_a_variant_is_a_configuration_that_runs_alone(preset):
    lstm = {"suite__lstm_init_from": "runs/lstm"} if preset == "ablations" else {}
    for name, variant in suite_variants(resolve(preset, **lstm), 2).items():
        again = load(json.loads(json.dumps(variant.to_dict())))
        assert again == variant
        (only,) = suite_variants(again, 2).values()
        assert only == variant
        assert name == "no_pretraining" or variant.transfer_layers == "all"


def test_a_model_of_the_wrong_kind_is_refused_by_its_key():
    config = resolve("ablations", suite__lstm_init_from="b")
    found = suite_variants(config, 2)
    check_kind("lstm", found["lstm"], "lstm")
    check_kind("pretrained", found["full"], "lstm")
    with pytest.raises(ValueError, match=r"lstm_init_from='b' is a transformer"):
        check_kind("lstm", found["lstm"], "transformer")
    lstm = dataclasses.replace(found["full"], init_from="a")
    with pytest.raises(ValueError, match=r"init_from='a' is an lstm, but the abla"):
        check_kind("no_aux_lm", lstm, "lstm")
