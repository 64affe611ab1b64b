import pytest

from gpt1_jax.config import JOBS, usage


def test_help_lists_every_job_and_flag():
    text = usage.describe(["main", "--help"])
    for job in JOBS:
        assert f"configs/{job}.py" in text
    for flag in ("--workdir", "--distributed", "--config.SECTION.KEY=VALUE"):
        assert flag in text
    assert max(map(len, text.splitlines())) <= 100


def test_help_on_a_job_lists_its_presets_and_keys():
    text = usage.describe(["main", "--config=configs/pretrain.py:quickstart", "-h"])
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


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (AttributeError("no\n  such key"), "no such key"),
        (KeyError("lost"), "lost"),
        (ValueError(), "ValueError"),
    ],
)
def test_errors_of_the_parser_are_one_line(error, line):
    assert usage.one_line(error) == line
