"""Plain values become a typed configuration, or are refused by name."""

import pytest
from tiny_run import load_config

from gpt1_jax.config import load
from gpt1_jax.errors import UserError


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
