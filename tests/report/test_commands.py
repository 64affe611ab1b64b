"""The commands that a report names are the program's."""

import shlex

import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.report import commands

COMMANDS = {name: value for name, value in vars(commands).items() if name.isupper()}


@pytest.mark.parametrize("name", [n for n in COMMANDS if not n.startswith("_")])
def test_commands_are_accepted(name):
    program, *flags = shlex.split(COMMANDS[name].replace("\\\n", ""))[2:]
    assert program == "gpt1_jax.main"
    path, _, preset = flags[0].removeprefix("--config=configs/").partition(":")
    given = dict(flag.removeprefix("--config.").split("=", 1) for flag in flags[1:])
    if "seeds" in given:
        given["seeds"] = tuple(map(int, given["seeds"].split(",")))
    values = load_config(preset, file=path.removesuffix(".py"), **given)
    config_lib.load(values.to_dict())
