"""`launch/setup.sh`: what is installed on a host, by a uv that only records."""

import shutil
import subprocess

import pytest
from tiny_run import ROOT


@pytest.fixture
def host(tmp_path):
    """A folder that holds a copy of the script, as a checkout does."""
    (tmp_path / "host/launch").mkdir(parents=True)
    shutil.copy(ROOT / "launch/setup.sh", tmp_path / "host/launch")
    return tmp_path / "host"


def set_up(host, recorder, *arguments):
    return subprocess.run(
        ["bash", str(host / "launch/setup.sh"), *arguments],
        env={"PATH": f"{recorder.folder}:/usr/bin:/bin", "HOME": str(host)},
        capture_output=True,
        text=True,
    )


def test_the_checkout_is_installed_and_only_once_given_an_environment(host, recorder):
    recorder.add("uv")
    assert set_up(host, recorder, "tpu,gcp").returncode == 0
    make, install = recorder.calls()
    assert make == "uv venv --python \\>=3.11\\,\\<3.14 .venv"
    assert install == "uv pip install --python .venv/bin/python -e .\\[tpu\\,gcp\\]"
    (host / ".venv").mkdir()
    assert set_up(host, recorder, "tpu,gcp").returncode == 0
    assert recorder.calls()[2:] == [install]


def test_a_dry_run_prints_the_commands_and_calls_none(host, recorder):
    recorder.add("uv")
    done = set_up(host, recorder, "--dry-run", "cuda,lm-eval")
    assert done.returncode == 0 and recorder.calls() == []
    assert len(done.stdout.splitlines()) == 2 and ".\\[cuda\\,lm-eval\\]" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["tpu", "gcp"], ["tpu gcp"], [""], ["-x"]])
def test_wrong_use_is_one_error(host, recorder, arguments):
    recorder.add("uv")
    done = set_up(host, recorder, *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert recorder.calls() == []
