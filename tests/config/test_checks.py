"""Plain values become a typed configuration, or are refused by name."""

import dataclasses
import math
import re
from typing import get_args

import pytest
from tiny_run import load_config

from gpt1_jax.config import JOBS, load
from gpt1_jax.config.checks import PLACE, marks, places, section_type
from gpt1_jax.config.sections import DEFAULT_SAMPLING, SamplingConfig
from gpt1_jax.errors import UserError


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("train.batch_size", "8", "a whole number"),
        ("train.batch_size", 8.0, "a whole number"),
        ("train.batch_size", True, "a whole number"),
        ("optimizer.learning_rate", "fast", "a number"),
        ("optimizer.learning_rate", True, "a number"),
        ("optimizer.learning_rate", 10**400, "a number"),
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


def test_unknown_and_needed_keys_are_refused():
    values = load_config("paper").to_dict()
    for section in ("model", "train"):
        wrong = {**values, section: {**values[section], "layers": 3}}
        with pytest.raises(ValueError, match=rf"config\.{section}.*'layers'"):
            load(wrong)
    for section, key in (("model", "num_layers"), ("optimizer", "learning_rate")):
        less = {k: v for k, v in values[section].items() if k != key}
        with pytest.raises(ValueError, match=rf"{section} lacks the keys \['{key}'\]"):
            load({**values, section: less})
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
    assert load(sampling) == load(
        load_config("", file="generate", init_from="a").to_dict()
    )


def test_the_model_of_every_job_is_checked_by_its_keys():
    values = load_config("sst2", file="finetune", init_from="run").to_dict()
    for key, value, problem in (
        ("layers", 3, r"config\.model has unknown keys \['layers'\]"),
        ("num_layers", 3, r"config\.model lacks the keys .*'embed_dim'"),
        ("remat", "yes", r"config\.model\.remat='yes' must be True or False"),
        ("loss_chunk", -1, r"config\.model\.loss_chunk=-1 must not be negative"),
    ):
        with pytest.raises(UserError, match=problem):
            load({**values, "model": {**values["model"], key: value}})


@pytest.mark.parametrize("value", ["a\udcff", "a\ud800"])
def test_text_that_utf_8_cannot_encode_is_refused_by_name(value):
    values = load_config("paper").to_dict()
    values["data"]["train"] = value
    with pytest.raises(UserError, match=r"config\.data\.train: '.*' is half of a"):
        load(values)
    values = load_config("", file="generate", init_from="a").to_dict()
    values["sampling"]["stop_strings"] = ("end", value)
    with pytest.raises(UserError, match=r"config\.sampling\.stop_strings\[1\]: "):
        load(values)


@pytest.mark.parametrize("job", JOBS)
def test_sections_name_their_keys_in_messages(job):
    for field in dataclasses.fields(JOBS[job].config_class()):
        if section := section_type(field.type):
            assert section.section == field.name


def test_sections_made_by_hand_are_checked_too():
    sampling = dataclasses.asdict(DEFAULT_SAMPLING)
    for key, value, problem in (
        ("top_p", 1.5, r"config\.sampling\.top_p=1\.5 must lie in \(0, 1\]"),
        ("top_p", 0.0, r"config\.sampling\.top_p=0\.0 must lie in \(0, 1\]"),
        ("min_p", -0.5, r"config\.sampling\.min_p=-0\.5 must lie in \[0, 1\]"),
        ("temperature", math.nan, r"config\.sampling\.temperature=nan must be pos"),
        ("stop_strings", ["a"], r"config\.sampling\.stop_strings=.* must be a tuple"),
        ("top_k", "many", r"config\.sampling\.top_k='many' must be a whole number"),
    ):
        with pytest.raises(UserError, match=problem):
            SamplingConfig(**{**sampling, key: value})
    SamplingConfig(**{**sampling, "top_p": 1, "min_p": 0})


# --- files and folders --------------------------------------------------------------


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


# --- the folder to write to ---------------------------------------------------------


def test_a_folder_is_refused_where_none_is_written():
    without = {job for job in JOBS if not JOBS[job].config_class().writes_folder}
    assert without == {
        "predict",
        "generate",
        "surprisal",
        "features",
        "verify",
        "batches",
        "explore",
    }
    config = load(load_config("", file="predict", init_from="run", text="a").to_dict())
    assert config.default_workdir == ""
    config.check_workdir("")
    with pytest.raises(ValueError, match=r"--workdir='a', but .* --config.output=FILE"):
        config.check_workdir("a")
    config = load(load_config("small").to_dict())
    assert config.default_workdir == "runs/pretrain/small"
    config.check_workdir("a")
