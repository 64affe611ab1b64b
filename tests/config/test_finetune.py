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


def resolve(preset, *flags, **overrides):
    """The configuration as the command line makes it, `flags` included."""
    values = flags_lib.FlagValues()
    config = load_config(preset, file="finetune")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["main", *(f"--config.{flag}" for flag in flags)])
        config_flags.DEFINE_config_dict("config", config, flag_values=values)
        values(sys.argv)
    values.config.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in overrides.items()}
    )
    return load(values.config.to_dict())


TEXTS = ("text", "choices", "labels", "metrics", "class_weights")


@pytest.mark.parametrize(
    ("preset", "key", "flags", "value"),
    [
        ("sst2", "seeds", ["(0,1)"], (0, 1)),
        ("sst2", "seeds", ["(0, 1, 2)"], (0, 1, 2)),
        ("sst2", "seeds", ["0,1"], (0, 1)),
        ("sst2", "seeds", ["[0,1]"], (0, 1)),
        ("sst2", "seeds", ["3"], (3,)),
        ("ablations", "tasks", ["cola,rte"], ("cola", "rte")),
        ("ablations", "tasks", ["cola, rte"], ("cola", "rte")),
        ("ablations", "tasks", ["('cola', 'rte')"], ("cola", "rte")),
        *(
            ("custom", f"custom.{key}", ["title,body"], ("title", "body"))
            for key in TEXTS
        ),
        ("custom", "custom.text", ["title"], ("title",)),
        ("custom", "custom.text", ["('title', 'body')"], ("title", "body")),
        ("custom", "custom.text", ["0,1"], ("0", "1")),
        ("custom", "custom.text", ["()"], ()),
        ("custom", "custom.text", [""], ()),
        ("custom", "custom.score_range", ["1,5"], (1, 5)),
        ("custom", "custom.score_range", ["(0.0, 2.5)"], (0, 2.5)),
        # of several, the last one wins
        ("custom", "custom.text", ["a", "a,b"], ("a", "b")),
        ("custom", "custom.text", ["a,b", "c"], ("c",)),
        ("custom", "custom.text", ["a,b", "()"], ()),
        ("custom", "custom.score_range", ["0,5", "1,2"], (1.0, 2.0)),
    ],
)
def test_lists_may_be_written_with_and_without_brackets(preset, key, flags, value):
    config = resolve(preset, *(f"{key}={flag}" for flag in flags), init_from="run")
    assert flatten(config.to_dict())[key] == value


@pytest.mark.parametrize("preset", ["sst2", "all", "custom", "sst2+rte", ""])
def test_every_fine_tuning_is_valid(preset):
    config = resolve(preset, init_from="run")
    assert config.tasks == tuple((preset or "sst2").split("+"))
    assert config.data.source == ("files" if preset == "custom" else "tfds")
    assert json.loads(json.dumps(config.to_dict()))


def test_the_default_fine_tuning_is_that_of_the_paper():
    config = resolve("sst2", init_from="run")
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
    config = resolve(preset, init_from="run", data__dir="data")
    assert config.tasks == tuple(tasks.split())
    assert config.default_workdir == f"runs/finetune/{preset}"
    assert (config.seeds, config.data.source) == ((42,), "babylm")
    assert (config.train.batch_size, config.train.num_epochs) == (
        *(batch_size, num_epochs),
    )
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
    metrics = {name: TASKS[name].metrics[0] for name in config.tasks}
    by_f1 = {name for name, metric in metrics.items() if metric == "f1"}
    assert by_f1 == {"mrpc", "qqp"} & set(config.tasks)
    assert {*metrics.values()} <= {"f1", "accuracy"}


@pytest.mark.parametrize(
    ("preset", "tasks", "train_examples"),
    [
        ("ablations", "cola sst2 mrpc stsb qqp mnli qnli rte", 0),
        ("layer_transfer", "race mnli", 2000),
        ("aux_lm_weight", "mrpc rte qqp mnli", 0),
    ],
)
def test_analyses_have_their_tasks_and_any_key_can_be_set(
    preset, tasks, train_examples
):
    config = resolve(preset, init_from="run")
    assert config.suite.compare == config.preset == preset
    assert config.tasks == tuple(tasks.split())
    assert config.eval.train_examples == train_examples
    other = resolve(preset, "head.dropout=0.2", "seeds=4", init_from="run")
    assert (other.head.dropout, other.seeds) == (0.2, (4,))


def test_the_values_that_a_suite_compares_can_be_set():
    flags = ["suite.train_sizes=50,0", "suite.aux_lm_weights=0,1"]
    suite = resolve("aux_lm_weight", *flags, init_from="run").suite
    assert (suite.train_sizes, suite.aux_lm_weights) == ((50, 0), (0, 1))
    flags = ["suite.train_sizes=50,0", "suite.compare=train_sizes"]
    assert resolve("sst2", *flags, init_from="run").suite.train_sizes == (50, 0)


SIZES = {"suite__compare": "train_sizes"}  # a learning curve


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("sst2", {"init_from": ""}, r"--config\.init_from=runs/pretrain/quickstart"),
        ("sst2", {"seeds": ()}, r"config\.seeds=\(\) must name one or more"),
        ("sst2", {"seeds": ("range(3)",)}, r"seeds\[0\]='range\(3\)'.* whole number"),
        ("sst2", {"seeds": (0, -1)}, r"seeds\[1\]=-1"),
        ("sst2", {"tasks": ()}, r"config\.tasks=\(\) must name one or more"),
        ("sst2", {"transfer_layers": "-1"}, "transfer_layers='-1' must be all, none"),
        ("sst2", {"transfer_layers": "²"}, "transfer_layers='²' must be all, none"),
        ("sst2", {"data__source": "files"}, r"='files': .*finetune\.py:custom"),
        ("custom", {"data__source": "tfds"}, "custom.* source='files'"),
        ("sst2", {"data__source": "jsonl"}, r"'jsonl' .*--config\.data\.dir=DIR"),
        ("sst2", {"data__source": "web"}, "source='web' .*official"),
        ("babylm", {}, r"'babylm' .*--config\.data\.dir=DIR"),
        ("sst2", {"data__max_seq_len": -1}, "max_seq_len=-1"),
        ("sst2", {"data__seq_len_buckets": (64, 32)}, r"len_buckets=\(64, 32\)"),
        ("sst2", {"data__seq_len_buckets": (0, 8)}, r"len_buckets=\(0, 8\)"),
        (
            "sst2",
            {"data__seq_len_buckets": ("a",)},
            r"buckets\[0\]='a' must be a whole",
        ),
        ("sst2", {"head__dropout": 1.0}, r"head\.dropout=1\.0"),
        ("sst2", {"head__dropout": 0.999995}, r"0\.999995 .*\[0, 0\.99999\]"),
        ("sst2", {"head__score_loss": "x"}, "score_loss='x' .*regression"),
        ("sst2", {"head__aux_lm_weight": -0.5}, r"aux_lm_weight=-0\.5"),
        ("sst2", {"eval__batch_size": 0}, r"eval\.batch_size=0"),
        ("sst2", {"eval__train_examples": -1}, r"eval\.train_examples=-1"),
        ("sst2", {"train__num_steps": 5}, r"num_epochs=3\.0 .*num_steps=5"),
        # what a suite compares
        ("sst2", {"suite__compare": "x"}, "suite.compare='x' .* '', scratch, abl"),
        ("sst2", {"suite__aux_lm_weights": (0.5, -0.1)}, r"\(0\.5, -0\.1\) .* below 0"),
        ("sst2", {"suite__aux_lm_weights": (1, 1.0)}, r"\(1, 1\.0\) .*different"),
        ("sst2", {"suite__aux_lm_weights": (math.inf,)}, r"\(inf,\) .*below 0"),
        ("sst2", {"suite__train_sizes": (-5,)}, r"train_sizes=\(-5,\) .*below 0"),
        (
            "aux_lm_weight",
            {"suite__train_sizes": ()},
            "train_sizes is empty.*'aux_lm_w",
        ),
        ("sst2", SIZES | {"suite__train_sizes": ()}, "is empty.*'train_sizes'"),
        (
            "layer_transfer",
            {"suite__train_sizes": (9,)},
            "does noth.* to 'train_sizes'",
        ),
        ("sst2", {"suite__train_sizes": (100,)}, "does nothing .*compare=''; leave"),
        (
            "sst2",
            SIZES | {"suite__aux_lm_weights": (1.5,)},
            "that to 'aux_lm_weight'.$",
        ),
        (
            "aux_lm_weight",
            {"suite__lstm_init_from": "a"},
            "does noth.* to 'ablations'.$",
        ),
        ("layer_transfer", {"transfer_layers": "3"}, "layers='3', .*'layer_transfer'"),
        ("ablations", {"head__aux_lm_weight": 0.0}, "aux_lm_weight=0, .*above 0"),
        ("aux_lm_weight", {"data__max_train_examples": 9}, "=9, .* in config.suite.tr"),
        ("sst2", SIZES | {"data__max_train_examples": 9}, "=9, .* in config.suite.tra"),
        # a task of one's own
        ("custom", {"custom__head": "x"}, r"custom\.head='x' .*similarity"),
        ("custom", {"custom__labels": ((0,), 1)}, r"labels\[0\]=\(0,\) must be text"),
        ("custom", {"custom__text": ("a,,b",)}, r"text=\('a', '', 'b'\) .*different"),
        ("custom", {"custom__text": ("a", "a")}, r"text=\('a', 'a'\) .*different"),
        ("custom", {"custom__score_range": (5, 0)}, r"score_range=\(5, 0\) .*lowest"),
        ("custom", {"custom__score_range": (5.0,)}, r"=\(5\.0,\) must be a tuple of 2"),
        ("custom", {"custom__score_range": ("a", "b")}, r"range\[0\]='a' .*a number"),
        ("custom", {"data__max_test_examples": -1}, "max_test_examples=-1"),
        ("custom", {"data__dev_fraction": 1.0}, r"=1\.0 must lie in \[0, 1\)"),
        ("custom", {"data__dev_fraction": 0.1, "data__dev": "d.csv"}, "'d.csv' names"),
        ("custom", {"data__folds": 5, "data__dev": "d.csv"}, "folds=5 holds .*'d.csv"),
        ("custom", {"data__folds": 5, "data__dev_fraction": 0.1}, "5 does not go with"),
        ("custom", {"data__folds": 1}, "folds=1 must be 0, or at least 2"),
        ("custom", {"data__folds": 5, "data__fold": 6}, "6 is none of .*folds=5 is"),
        ("custom", {"data__fold": 1}, "fold=1 is none of the parts"),
        ("sst2", {"data__folds": 5}, "folds=5 divides the training file of a task"),
        ("sst2", {"data__dev_fraction": 0.1}, "=0.1 divides the training file of a"),
    ],
    ids=str,
)
def test_impossible_fine_tunings_are_refused_by_name(preset, overrides, message):
    with pytest.raises(UserError, match=message):
        resolve(preset, **{"init_from": "run", **overrides})


# --- the variants that a suite compares ---------------------------------------------


def configured(preset="sst2", **overrides):
    values = load_config(preset, file="finetune", init_from="run", **overrides)
    return load(values.to_dict())


def changes(config, variant):
    """The keys, outside the section on the suite, in which a variant differs."""
    before, after = flatten(config.to_dict()), flatten(variant.to_dict())
    assert before.keys() == after.keys()
    return {
        key: after[key]
        for key in before
        if before[key] != after[key] and not key.startswith("suite.")
    }


def named(config, num_layers=12):
    return {
        name: changes(config, variant)
        for name, variant in suite_variants(config, num_layers).items()
    }


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
        ({"transfer_layers": "3"}, {"pretrained": {}}),
        (NONE, {"scratch": {}}),
        (TWO, {"pretrained": {}, "scratch": NONE}),
        (TWO | NONE, {"scratch": {}}),
        *((CURVE | {"transfer_layers": n}, BY_SIZE) for n in ("all", "3", "none")),
    ],
    ids=str,
)
def test_runs_are_named_by_their_start_or_number_of_examples(overrides, expected):
    assert [*named(configured(**overrides)).items()] == [*expected.items()]


def test_ablations_are_the_lines_of_table_5():
    config = configured("ablations", suite__lstm_init_from="runs/lstm", step="7")
    assert named(config) == {
        "full": {},
        "no_pretraining": {"transfer_layers": "none"},
        "no_aux_lm": {"head.aux_lm_weight": 0.0},
        "lstm": {"init_from": "runs/lstm"},
    }
    assert describe_left_out(config) == ""


def test_ablations_without_an_lstm_say_so():
    config = configured("ablations")
    assert list(suite_variants(config, 12)) == ["full", "no_pretraining", "no_aux_lm"]
    assert "--config.suite.lstm_init_from=DIR" in describe_left_out(config)
    assert describe_left_out(configured(suite__compare="scratch")) == ""


def test_layer_transfer_goes_from_the_embeddings_alone_to_all_layers():
    expected = {f"layers{n}": {"transfer_layers": str(n)} for n in range(4)}
    assert named(configured("layer_transfer"), num_layers=3) == expected


def test_each_lambda_is_paired_with_each_size_the_largest_first():
    config = configured(
        "aux_lm_weight",
        suite__aux_lm_weights=(0, 0.25),
        suite__train_sizes=(100, 0, 2000),
    )
    assert list(suite_variants(config, 12)) == [
        "lambda0-all",
        "lambda0.25-all",
        "lambda0-size2000",
        "lambda0.25-size2000",
        "lambda0-size100",
        "lambda0.25-size100",
    ]
    assert named(config)["lambda0.25-size100"] == {
        "head.aux_lm_weight": 0.25,
        "data.max_train_examples": 100,
    }


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("sst2", {}),
        ("sst2", SIZES),
        ("ablations", {"suite__lstm_init_from": "runs/lstm"}),
        ("aux_lm_weight", {}),
    ],
    ids=str,
)
def test_a_variant_is_a_configuration_that_runs_alone(preset, overrides):
    config = configured(preset, **overrides)
    for name, variant in suite_variants(config, 2).items():
        again = load(json.loads(json.dumps(variant.to_dict())))
        assert again == variant
        (only,) = suite_variants(again, 2).values()
        assert only == variant
        assert name == "no_pretraining" or variant.transfer_layers == "all"


def test_a_model_of_the_wrong_kind_is_refused_by_its_key():
    config = configured("ablations", suite__lstm_init_from="b")
    found = suite_variants(config, 2)
    check_kind("lstm", found["lstm"], "lstm")
    check_kind("full", found["full"], "transformer")
    check_kind("pretrained", found["full"], "lstm")
    with pytest.raises(ValueError, match=r"lstm_init_from='b' is a transformer"):
        check_kind("lstm", found["lstm"], "transformer")
    lstm = dataclasses.replace(found["full"], init_from="a")
    with pytest.raises(ValueError, match=r"init_from='a' is an lstm, but the abla"):
        check_kind("no_aux_lm", lstm, "lstm")
