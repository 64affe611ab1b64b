import absl.flags
import pytest
from tiny_run import load_config

from gpt1_jax.config import JOBS, usage


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
    assert "--config.train.num_steps=1500" in text


def test_the_own_configurations_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["main", "--config=configs/pretrain.py:small", "--config.seed=1"]
    found = usage.find_configs(given)
    assert found[1] == f"--config={usage.CONFIGS / 'pretrain.py'}:small"
    assert found[2] == given[2]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "pretrain.py").write_text("")
    assert usage.find_configs(given) == given  # a file of one's own comes first


def test_a_file_that_is_not_there_is_refused_with_the_list():
    with pytest.raises(FileNotFoundError, match=r"configs/no.py.*configs/pretrain.py"):
        usage.find_configs(["main", "--config=configs/no.py:small"])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            # As ml_collections words it, an error's message within another's.
            AttributeError("'\\'num_layer\\'\\nDid you mean \"num_layers\" instead?'"),
            "--config.model.num_layer=3: there is no key 'num_layer'; did you mean "
            "num_layers?",
        ),
        (KeyError("'depth'"), "--config..depth: there is no key 'depth'."),
        (KeyError("\"'depth'\""), "--config..depth: there is no key 'depth'."),
        (
            ValueError("Traceback (most recent call last):\n  ValueError: no preset"),
            "no preset",
        ),
        (ValueError(), "ValueError"),
        (ValueError("two\n  lines"), "two lines"),
    ],
)
def test_errors_of_the_parser_are_one_line(error, line):
    assert usage.explain(error, ["main", "--config.model.num_layer=3"]) == line


PRETRAIN = "--config=configs/pretrain.py"


def test_a_key_without_its_section_gets_a_hint():
    line = usage.explain(KeyError("'num_steps'"), ["main", PRETRAIN])
    assert line.endswith("no key 'num_steps'; did you mean --config.train.num_steps?")


def test_a_section_that_is_none_is_named_with_its_flag():
    flag = "--config.data.texts=x"
    line = usage.explain(KeyError("'data'"), ["main", flag])
    assert line == f"{flag}: there is no key 'data'."
    flag = "--config.seed.first=3"
    line = usage.explain(
        TypeError("string indices must be integers"), ["main", PRETRAIN, flag]
    )
    assert line == f"{flag}: config.seed is a value, without keys of its own."


def test_an_error_in_a_configuration_file_is_its_last_line(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("def get_config():\n    raise ValueError('my own')\n")
    error = ValueError("Traceback (most recent call last):\n  ValueError: my own")
    assert usage.explain(error, ["main", f"--config={path}"]) == "my own"


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
        ("nonsense", ["--config=no/file.py"], "--nonsense: there is no such flag."),
    ],
)
def test_an_unknown_flag_is_refused_with_the_key_that_is_meant(name, argv, line):
    error = absl.flags.UnrecognizedFlagError(name)
    said = usage.explain(error, ["main", *argv, f"--{name}=1"])
    assert said.startswith(f"--{name}: there is no such flag") and line in said


@pytest.mark.parametrize("config", [[PRETRAIN], PRETRAIN.split("=")])
def test_a_preset_after_a_space_is_refused_with_the_colon(config):
    said = usage.refuse_words(["small"], ["main", *config, "small"])
    assert said.endswith(f"a preset follows a colon: {PRETRAIN}:small")
    more = usage.refuse_words(["a=b"], ["main", *config, "a=b"])
    assert (
        more
        == "unexpected arguments ['a=b']; set values with --config.section.key=value."
    )


def test_a_slip_in_the_name_of_a_preset():
    with pytest.raises(ValueError) as problem:
        load_config("quikstart")
    assert usage.explain(problem.value, []).endswith("Did you mean quickstart?")
    with pytest.raises(ValueError) as problem:
        load_config("huge")
    assert usage.explain(problem.value, []).endswith(", day.")


def test_a_file_after_a_space_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = usage.find_configs(["main", "--config", "configs/report.py", "--workdir"])
    assert found == ["main", f"--config={usage.CONFIGS / 'report.py'}", "--workdir"]


@pytest.mark.parametrize(
    ("job", "preset", "key", "value"),
    [
        ("pretrain", "quickstart", "num_layers", 4),
        ("pretrain", "", "num_layers", 12),
        ("pretrain", "no such preset", "num_layers", 12),
    ],
)
def test_the_defaults_of_a_job_are_those_of_its_preset(job, preset, key, value):
    assert usage.defaults(job, preset)["model"][key] == value


def test_a_job_without_presets_has_defaults_too():
    assert usage.defaults("report", "any")["runs"] == "runs"
