"""`launch/detached.sh`: one command of a host, in a home folder of the test's own."""

import os
import time

import pytest


@pytest.fixture
def detached(run_script, tmp_path):
    """`detached(*arguments)`: runs the script; what is left is stopped in the end."""

    def run(*arguments):
        return run_script("detached.sh", *arguments, HOME=str(tmp_path))

    yield run
    run("stop")


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_command_is_started_once_seen_and_stopped(detached, tmp_path):
    log = tmp_path / "gpt1_jax.log"
    train = "trap 'echo saved; exit 75' TERM; echo step 1; while sleep 0.1; do :; done"
    code, output, _ = detached("start", "bash", "-c", train)
    assert code == 0 and "started" in output
    wait_for(lambda: log.exists() and "step 1" in log.read_text())
    assert detached("start", "true")[0] == 1
    assert "runs\nstep 1\n" in detached("status")[1]
    assert "stopping" in detached("stop")[1]
    wait_for(lambda: "does not run\nsaved\n" in detached("status")[1])
    assert "does not run" in detached("stop")[1]


def test_another_process_of_the_same_number_is_left_alone(detached, tmp_path):
    """As after the host has started anew."""
    (tmp_path / "gpt1_jax.pid").write_text(f"{os.getpid()}\n")
    assert "does not run" in detached("status")[1]
    assert "does not run" in detached("stop")[1]
    assert detached("start", "true")[0] == 0
