"""The commands that a report names are the program's."""

import inspect
import shlex

import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.report import commands
from gpt1_jax.report.commands import Models

COMMANDS = [
    function
    for name, function in inspect.getmembers(commands, inspect.isfunction)
    if function.__module__ == commands.__name__ and not name.startswith("_")
]
START = [function for function in COMMANDS if inspect.signature(function).parameters]


def split(command):
    return shlex.split(command.replace("\\\n", ""))[2:]


@pytest.mark.parametrize("function", COMMANDS)
def test_commands_are_accepted(function):
    program, *flags = split(function(Models()) if function in START else function())
    assert program == "gpt1_jax.main"
    path, _, preset = flags[0].removeprefix("--config=configs/").partition(":")
    given = dict(flag.removeprefix("--config.").split("=", 1) for flag in flags[1:])
    if "seeds" in given:
        given["seeds"] = tuple(map(int, given["seeds"].split(",")))
    values = load_config(preset, file=path.removesuffix(".py"), **given)
    config_lib.load(values.to_dict())


@pytest.mark.parametrize("function", START)
def test_commands_name_the_models_whatever_they_are_called(function):
    flags = split(function(Models("my runs/$(date)", "it's")))
    assert "--config.init_from=my runs/$(date)" in flags
    takes_both = function in (commands.ablations, commands.zero_shot)
    assert any(flag.endswith("init_from=it's") for flag in flags) == takes_both
