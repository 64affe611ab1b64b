"""The sections of fine-tuning: names as flags give them, values that are refused."""

import sys

import pytest
from absl import flags as flags_lib
from ml_collections import config_flags
from tiny_run import load_config

from gpt1_jax.config import load


def resolve(preset, *flags, **overrides):
    """The configuration of a command line, and of overrides set in Python."""
    values = flags_lib.FlagValues()
    config = load_config(preset, file="finetune", init_from="run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["main", *(f"--config.{flag}" for flag in flags)])
        config_flags.DEFINE_config_dict("config", config, flag_values=values)
        values(sys.argv)
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    values.config.update_from_flattened_dict(overrides)
    return load(values.config.to_dict())


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("title", ("title",)),
        ("title,body", ("title", "body")),
        ("('title', 'body')", ("title", "body")),
        ("0,1", ("0", "1")),
        ("()", ()),
    ],
)
def test_names_may_be_written_with_and_without_brackets(flag, names):
    keys = ("text", "choices", "labels", "metrics")
    custom = resolve("custom", *(f"custom.{key}={flag}" for key in keys)).custom
    assert [getattr(custom, key) for key in keys] == [names] * 4


@pytest.mark.parametrize(("flag", "range"), [("1,5", (1, 5)), ("(0.0, 2.5)", (0, 2.5))])
def test_score_range_may_be_written_with_and_without_brackets(flag, range):
    assert resolve("custom", f"custom.score_range={flag}").custom.score_range == range


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"custom__labels": ((0,), 1)}, ["custom.labels[0]=(0,)", "text"]),
        ({"custom__text": ("a,,b",)}, ["text=('a', '', 'b')", "different"]),
        ({"custom__text": ("a", "a")}, ["text=('a', 'a')", "different"]),
        ({"custom__score_range": (5, 0)}, ["score_range=(5, 0)", "lowest"]),
        ({"custom__score_range": (5.0,)}, ["score_range=(5.0,)", "tuple of 2"]),
        ({"custom__score_range": ("a", "b")}, ["score_range[0]='a'", "a number"]),
        ({"data__max_test_examples": -1}, ["max_test_examples=-1"]),
        ({"data__seq_len_buckets": ("a",)}, ["seq_len_buckets[0]='a'", "whole"]),
        ({"data__seq_len_buckets": (0, 8)}, ["seq_len_buckets=(0, 8)"]),
    ],
    ids=str,
)
def test_impossible_values_are_refused_by_name(overrides, parts):
    with pytest.raises(ValueError) as error:
        resolve("custom", **overrides)
    for part in parts:
        assert part in str(error.value)


def test_longest_sequence_is_the_models_unless_set():
    assert resolve("custom").data.longest(512) == 512
    assert resolve("custom", "data.max_seq_len=100").data.longest(512) == 100
