import re

import absl.flags
import pytest

from gpt1_jax.config import JOBS, usage
from gpt1_jax.errors import UserError


def test_help_lists_every_job_and_flag():
    text = usage.describe_usage(["main", "--help"])
    for job in JOBS:
        assert f"configs/{job}.py" in text
    for flag in ("--workdir", "--distributed", "--config.SECTION.KEY=VALUE"):
        assert flag in text
    assert max(map(len, text.splitlines())) <= 100


def test_help_on_a_job_lists_its_presets_and_keys():
    text = usage.describe_usage(
        ["main", "--config=configs/pretrain.py:quickstart", "-h"]
    )
    assert "quickstart  a small model" in text
    assert "  --config.train.num_steps=1500\n      updates, instead of epochs\n" in text
    assert max(map(len, text.splitlines())) <= 88


def test_the_own_configurations_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["main", "--config=configs/pretrain.py:small", "--config.seed=1"]
    found = usage.find_configs(given)
    assert found[1] == f"--config={usage.CONFIGS / 'pretrain.py'}:small"
    assert found[2] == given[2]
    spaced = usage.find_configs(["main", "--config", "configs/pretrain.py", "--help"])
    assert spaced == ["main", f"--config={usage.CONFIGS / 'pretrain.py'}", "--help"]
    (tmp_path / "configs").mkdir()
    own = (usage.CONFIGS / "pretrain.py").read_text()
    (tmp_path / "configs" / "pretrain.py").write_text(own)
    assert usage.find_configs(given) == given  # a file of one's own comes first


def test_a_file_that_is_not_there_is_refused_with_the_list():
    with pytest.raises(FileNotFoundError, match=r"configs/no.py.*configs/pretrain.py"):
        usage.find_configs(["main", "--config=configs/no.py:small"])


PRETRAIN = "--config=configs/pretrain.py"


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--config.model.num_layer=3", "such key; did you mean --config.model.num_la"),
        ("--config.num_steps=3", "such key; did you mean --config.train.num_steps?"),
        ("--config.data.jsonl_field=a", "did you mean --config.data.text_field?"),
        ("--config.plot=a.png", "did you mean --config.figure?"),
        ("--config.zzz", "there is no such key."),
        ("-config.zzz.b=3", "there is no such key."),
        ("--noconfig.log.wand", "no such key; did you mean --config.log.wandb"),
        ("--config.train=3", "config.train is a section; set one of its keys."),
        ("--config.seed.first=3", "config.seed is a value, without keys inside it."),
    ],
)
def test_a_key_that_there_is_not_is_one_line_with_a_hint(flag, problem):
    with pytest.raises(UserError) as error:
        usage.find_configs(["main", flag, *PRETRAIN.split("="), "--config.seed=1"])
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{flag}: ") and problem in line
    assert usage.explain(error.value, []) == line


@pytest.mark.parametrize(
    "flag", ["--config.log.wandb", "--noconfig.log.wandb", "--config.seed", "3"]
)
def test_keys_that_there_are_pass(flag):
    assert usage.find_configs(["main", PRETRAIN, flag])[-1] == flag


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "def get_config():\n    raise ValueError('my own')",
            ", line 2: ValueError: my",
        ),
        ("def get_config():\n    return nam", ", line 2: NameError: name 'nam' is not"),
        ("def get_config(:", ": SyntaxError: invalid syntax (own.py, line 1)"),
        ("import no_such_package", ", line 1: ModuleNotFoundError: No module named"),
        ("config = 3", ": AttributeError: module 'own' has no attribute 'get_config'"),
    ],
)
def test_a_slip_in_a_configuration_file_names_the_line(tmp_path, text, problem):
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        usage.find_configs(["main", f"--config={path}"])
    assert str(error.value).startswith(f"{path}{problem}")


@pytest.mark.parametrize(
    ("name", "argv", "line"),
    [
        ("init_from", [PRETRAIN], "--config.init_from?"),
        ("num_layers", [f"{PRETRAIN}:small"], "--config.model.num_layers?"),
        ("train.num_steps", [PRETRAIN], "--config.train.num_steps?"),
        ("every_steps", [PRETRAIN], "eval.every_steps or --config.log.every"),
        ("workdirs", ["--config", "configs/pretrain.py"], "--workdir?"),
        ("data.dirr", ["--config=configs/finetune.py"], "--config.data.dir?"),
        ("data.jsonl_field", [PRETRAIN], "--config.data.text_field?"),
        ("nonsense", [PRETRAIN], "--nonsense: there is no such flag."),
    ],
)
def test_an_unknown_flag_is_refused_with_the_key_that_is_meant(name, argv, line):
    error = absl.flags.UnrecognizedFlagError(name)
    said = usage.explain(error, ["main", *argv, f"--{name}=1"])
    assert said.startswith(f"--{name}: there is no such flag") and line in said


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        ("--config.train.num_steps=many", "a whole number"),
        ("--config.train.num_epochs=1:2", "a number"),
        ("--config.log.wandb=maybe", "True or False"),
    ],
)
def test_a_value_of_another_type_is_one_line(flag, kind):
    error = absl.flags.IllegalFlagValueError(f"flag {flag}: not\n so.")
    assert usage.explain(error, ["main", PRETRAIN, flag]) == f"{flag} must be {kind}."
    error = absl.flags.IllegalFlagValueError("flag --distributed=x: not one of a, b.")
    assert usage.explain(error, ["main", PRETRAIN]).endswith("not one of a, b.")


@pytest.mark.parametrize("config", [[PRETRAIN], PRETRAIN.split("=")])
def test_a_preset_after_a_space_is_refused_with_the_colon(config):
    said = usage.refuse_words(["small"], ["main", *config, "small"])
    assert said.endswith(f"a preset follows a colon: {PRETRAIN}:small")
    more = usage.refuse_words(["a=b"], ["main", *config, "a=b"])
    assert (
        more
        == "unexpected arguments ['a=b']; set values with --config.section.key=value."
    )


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("pretrain.py:quikstart", r".*, day\. Did you mean quickstart\?"),
        ("pretrain.py:huge", r".*choose one of paper, .*, day\."),
        ("predict.py:huge", r"this job has no presets; leave out the colon.*"),
    ],
)
def test_a_preset_that_there_is_not(config, problem):
    with pytest.raises(UserError) as error:
        usage.find_configs(["main", f"--config=configs/{config}"])
    assert re.fullmatch(problem, str(error.value))
    argv = ["main", f"--config=configs/{config}"]
    assert usage.explain(error.value, argv) == str(error.value)


@pytest.mark.parametrize(
    ("preset", "layers"), [("quickstart", 4), ("", 12), ("no such preset", 12)]
)
def test_the_defaults_of_a_job_are_those_of_its_preset(preset, layers):
    assert usage.defaults("pretrain", preset)["model"]["num_layers"] == layers


def test_a_job_without_presets_has_defaults_too():
    assert usage.defaults("report", "any")["runs"] == "runs"
