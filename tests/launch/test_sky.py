"""`launch/sky.yaml`: SkyPilot's own schema, and its command run in a shell."""

import importlib.util
import os
import subprocess
import sys

import pytest
import yaml
from tiny_run import ROOT

from gpt1_jax.parallel.processes import EXIT_AGAIN

SKY = ROOT / "launch/sky.yaml"


@pytest.fixture
def task():
    return yaml.safe_load(SKY.read_text())


def test_skypilot_reads_it(tmp_path):
    if not importlib.util.find_spec("sky"):
        pytest.skip("SkyPilot is not installed (pip install skypilot)")
    read = f"import sky; print(sky.Task.from_yaml({str(SKY)!r}).resources)"
    command, env = [sys.executable, "-c", read], {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tpu-v5litepod-16" in done.stdout


def test_a_stopped_run_is_recovered_and_other_restarts_are_limited(task):
    recovery = task["resources"]["job_recovery"]
    assert EXIT_AGAIN in recovery["recover_on_exit_codes"]
    assert 1 not in recovery["recover_on_exit_codes"], "those have no limit"
    assert recovery["max_restarts_on_errors"] > 0
    assert int(task["envs"]["RESTARTS"]) > 0


@pytest.mark.parametrize("kind", ["tpu", "cuda"])
def test_every_host_runs_the_command_and_gpu_hosts_say_who_is_there(
    task, tmp_path, kind
):
    """The commands as SkyPilot runs them on host 1 of 2, with a fake restart.sh."""
    (tmp_path / "launch").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text("activated=yes; export activated\n")
    (tmp_path / "launch/restart.sh").write_text(
        'echo "$activated $JAX_PROCESS_ID/$JAX_NUM_PROCESSES'
        '@$JAX_COORDINATOR_ADDRESS $#: $*"\n'
    )
    given = {
        **task["envs"],
        "KIND": kind,
        "COMMAND": "train 'my texts'",
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
    }
    done = subprocess.run(
        ["bash", "-c", task["run"]],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
    )
    who = {"tpu": "/@", "cuda": "1/2@10.0.0.7:8476"}[kind]
    assert done.stdout == f"yes {who} 2: train my texts\n", done.stderr
