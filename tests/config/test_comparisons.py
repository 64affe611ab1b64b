"""The variants that a suite compares, as configurations."""

import dataclasses
import json

import pytest
from tiny_run import load_config

from gpt1_jax.config import comparisons, flatten, load
from gpt1_jax.config.comparisons import variants


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
        for name, variant in variants(config, num_layers).items()
    }


@pytest.mark.parametrize(
    ("compare", "layers", "expected"),
    [
        ("", "all", {"pretrained": {}}),
        ("", "3", {"pretrained": {}}),
        ("", "none", {"scratch": {}}),
        ("scratch", "all", {"pretrained": {}, "scratch": {"transfer_layers": "none"}}),
        ("scratch", "none", {"scratch": {}}),
    ],
)
def test_one_run_or_two_are_named_by_their_start(compare, layers, expected):
    config = configured(suite__compare=compare, transfer_layers=layers)
    assert named(config) == expected


def test_ablations_are_the_lines_of_table_5():
    config = configured("ablations", suite__lstm_init_from="runs/lstm", init_step="7")
    assert named(config) == {
        "full": {},
        "no_pretraining": {"transfer_layers": "none"},
        "no_aux_lm": {"head.aux_lm_weight": 0.0},
        "lstm": {"init_from": "runs/lstm"},
    }
    assert comparisons.left_out(config) == ""


def test_ablations_without_an_lstm_say_so():
    config = configured("ablations")
    assert list(variants(config, 12)) == ["full", "no_pretraining", "no_aux_lm"]
    assert "--config.suite.lstm_init_from=DIR" in comparisons.left_out(config)
    assert comparisons.left_out(configured(suite__compare="scratch")) == ""


def test_layer_transfer_goes_from_the_embeddings_alone_to_all_layers():
    expected = {f"layers{n}": {"transfer_layers": str(n)} for n in range(4)}
    assert named(configured("layer_transfer"), num_layers=3) == expected


def test_each_lambda_is_paired_with_each_size_the_largest_first():
    config = configured(
        "aux_lm_weight",
        suite__aux_lm_weights=(0, 0.25),
        suite__train_sizes=(100, 0, 2000),
    )
    assert list(variants(config, 12)) == [
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


@pytest.mark.parametrize("preset", ["sst2", "ablations", "aux_lm_weight"])
def test_a_variant_is_a_configuration_that_runs_alone(preset):
    config = configured(preset, suite__lstm_init_from="runs/lstm")
    for name, variant in variants(config, 2).items():
        again = load(json.loads(json.dumps(variant.to_dict())))
        assert again == variant
        (only,) = variants(again, 2).values()
        assert only == variant
        assert name == "no_pretraining" or variant.transfer_layers == "all"


def test_a_model_of_the_wrong_kind_is_refused_by_its_key():
    config = configured("ablations", suite__lstm_init_from="b")
    found = variants(config, 2)
    comparisons.check_kind("lstm", found["lstm"], "lstm")
    comparisons.check_kind("full", found["full"], "transformer")
    comparisons.check_kind("pretrained", found["full"], "lstm")
    with pytest.raises(ValueError, match=r"lstm_init_from='b' is a transformer"):
        comparisons.check_kind("lstm", found["lstm"], "transformer")
    lstm = dataclasses.replace(found["full"], init_from="a")
    with pytest.raises(ValueError, match=r"init_from='a' is an lstm, but the abla"):
        comparisons.check_kind("no_aux_lm", lstm, "lstm")
