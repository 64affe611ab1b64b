"""Plain values become a typed configuration, or are refused by name."""

import dataclasses
import math
import re
from typing import get_args

import pytest
from tiny_run import load_config

from gpt1_jax.config import JOBS, load
from gpt1_jax.config.checks import PLACE, marks, places, section_type
from gpt1_jax.config.sections import DEFAULT_SAMPLING
from gpt1_jax.errors import UserError


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("train.batch_size", "8", "a whole number"),
        ("train.batch_size", True, "a whole number"),
        ("optimizer.learning_rate", "fast", "a number"),
        ("optimizer.learning_rate", 10**400, "a number"),
        ("log.tensorboard", 1, "True or False"),
        ("data.train", 3, "text"),
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


def test_unknown_and_needed_keys_are_refused():
    values = load_config("paper").to_dict()
    wrong = {**values, "train": {**values["train"], "layers": 3}}
    with pytest.raises(ValueError, match=r"config\.train.*'layers'"):
        load(wrong)
    less = {k: v for k, v in values["optimizer"].items() if k != "learning_rate"}
    with pytest.raises(ValueError, match=r"lacks the keys \['learning_rate'\]"):
        load({**values, "optimizer": less})
    with pytest.raises(ValueError, match="unknown keys"):
        load({**values, "sed": 1})


def test_a_key_that_is_left_out_has_its_default():
    values = load_config("paper").to_dict()
    optimizer = {k: v for k, v in values["optimizer"].items() if k != "eps"}
    less = {**values, "optimizer": optimizer}
    for key in ("seed", "eval", "distributed"):
        del less[key]
    assert load(less) == load(values)
    sampling = {"job": "generate", "preset": "", "init_from": "a", "sampling": {}}
    assert load(sampling).sampling.max_new_tokens == 40  # the job's, not the section's


@pytest.mark.parametrize(
    ("key", "problem"), [("layers", "has unknown keys"), ("num_layers", "lacks the")]
)
def test_the_model_of_every_job_is_checked_by_its_keys(key, problem):
    values = load_config("sst2", file="finetune", init_from="run").to_dict()
    with pytest.raises(UserError, match=rf"config\.model {problem}"):
        load({**values, "model": {**values["model"], key: 3}})


def test_text_that_utf_8_cannot_encode_is_refused_by_name():
    values = load_config("", file="generate", init_from="a").to_dict()
    values["sampling"]["stop_strings"] = ("end", "a\ud800")
    with pytest.raises(UserError, match=r"config\.sampling\.stop_strings\[1\]: "):
        load(values)


@pytest.mark.parametrize("job", JOBS)
def test_sections_name_their_keys_in_messages(job):
    for field in dataclasses.fields(JOBS[job].config_class()):
        if section := section_type(field.type):
            assert section.section == field.name


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("top_p", 0.0, r"top_p=0\.0 must lie in \(0, 1\]"),
        ("min_p", 1.5, r"min_p=1\.5 must lie in \[0, 1\]"),
        ("temperature", math.nan, r"temperature=nan must be pos"),
        ("stop_strings", ["a"], r"stop_strings=.* must be a tuple"),
    ],
)
def test_sections_made_by_hand_are_checked_too(key, value, problem):
    with pytest.raises(UserError, match=rf"config\.sampling\.{problem}"):
        dataclasses.replace(DEFAULT_SAMPLING, **{key: value})
    dataclasses.replace(DEFAULT_SAMPLING, top_p=1, min_p=0)


def test_places_are_named_by_key_one_at_a_time():
    given = {"data.source": "text", "data.train": "a, gs://b/c", "data.cache_dir": "d"}
    found = list(places(load(load_config("paper", **given).to_dict())))
    assert ("config.data.train", "a", False) in found
    assert ("config.data.train", "gs://b/c", False) in found
    assert ("config.data.cache_dir", "d", False) in found
    values = load_config("", file="features", init_from="run", input="a.txt")
    values.output = "gs://b/out.npz"
    assert ("config.output", "gs://b/out.npz", True) in places(load(values.to_dict()))


def text_fields(cls, key=""):
    for field in dataclasses.fields(cls):
        if section := section_type(field.type):
            yield from text_fields(section, f"{key}{field.name}.")
        elif str in (field.type, *get_args(field.type)):
            yield f"{key}{field.name}", field


def test_every_key_that_names_a_file_or_folder_is_a_place():
    names = (
        "(.*_)?(from|input|output|figure|dir|path|runs|files|corpus|table)"
        "|data.(train|valid|dev|test|times|text)"
    )
    for job in JOBS:
        for key, field in text_fields(JOBS[job].config_class()):
            named = re.fullmatch(names, key) or re.fullmatch(names, field.name)
            assert bool(named) == (PLACE in marks(field.type)), (job, key)


def test_a_folder_is_refused_where_none_is_written():
    without = {job for job in JOBS if not JOBS[job].config_class().writes_folder}
    asked = {"predict", "generate", "surprisal", "features"}
    assert without == asked | {"verify", "batches", "explore"}
    config = load(load_config("", file="predict", init_from="run", text="a").to_dict())
    assert config.default_workdir == ""
    config.check_workdir("")
    with pytest.raises(ValueError, match=r"--workdir='a', but .* --config.output=FILE"):
        config.check_workdir("a")
    load(load_config("small").to_dict()).check_workdir("a")
