import absl.flags
import pytest

from gpt1_jax.config import JOBS, usage
from gpt1_jax.config.flat import flatten
from gpt1_jax.errors import UserError

PRETRAIN = "--config=configs/pretrain.py"


def test_help_lists_jobs_and_flags_and_of_a_job_its_presets_and_keys():
    text = usage.describe_usage(["main", "--help"])
    for flag in ("--workdir", "--distributed", "--config.SECTION.KEY=VALUE"):
        assert flag in text
    assert all(f"configs/{job}.py" in text for job in JOBS)
    of_job = usage.describe_usage(["main", f"{PRETRAIN}:quickstart", "-h"])
    assert "quickstart  a small model" in of_job
    key = "  --config.train.num_steps=1500\n      updates, instead of epochs\n"
    assert key in of_job
    assert max(map(len, of_job.splitlines())) <= 88


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


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--config.num_steps=3", "such key; did you mean --config.train.num_steps?"),
        ("--config.data.jsonl_field=a", "did you mean --config.data.text_field?"),
        ("--config.zzz", "there is no such key."),
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
    ("text", "problem"),
    [
        ("def get_config():\n    return nam", ", line 2: NameError: name 'nam' is not"),
        ("def get_config(:", ": SyntaxError: invalid syntax (own.py, line 1)"),
    ],
)
def test_a_slip_in_a_configuration_file_names_the_line(write, text, problem):
    path = write("own.py", text)
    with pytest.raises(UserError) as error:
        usage.find_configs(["main", f"--config={path}"])
    assert str(error.value).startswith(f"{path}{problem}")


@pytest.mark.parametrize(
    ("name", "argv", "line"),
    [
        ("init_from", [PRETRAIN], "--config.init_from?"),
        ("every_steps", [PRETRAIN], "eval.every_steps or --config.log.every"),
        ("workdirs", ["--config", "configs/pretrain.py"], "--workdir?"),
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
        ("--config.train.num_epochs=1:2", "a number"),
        ("--config.log.wandb=maybe", "True or False"),
    ],
)
def test_a_value_of_another_type_is_one_line(flag, kind):
    error = absl.flags.IllegalFlagValueError(f"flag {flag}: not\n so.")
    assert usage.explain(error, ["main", PRETRAIN, flag]) == f"{flag} must be {kind}."
    error = absl.flags.IllegalFlagValueError("flag --distributed=x: not one of a, b.")
    assert usage.explain(error, ["main", PRETRAIN]).endswith("not one of a, b.")


def test_a_preset_that_there_is_not_is_refused_with_the_one_that_is_meant():
    with pytest.raises(UserError, match=r", day\. Did you mean quickstart\?$"):
        usage.find_configs(["main", f"{PRETRAIN}:quikstart"])


@pytest.mark.parametrize(
    ("job", "preset", "key", "value"),
    [
        ("pretrain", "quickstart", "train.num_steps", 1500),
        ("pretrain", "no such preset", "train.num_steps", 0),
        ("report", "any", "runs", "runs"),
    ],
)
def test_the_defaults_of_a_job_are_those_of_its_preset(job, preset, key, value):
    assert flatten(usage.defaults(job, preset))[key] == value
