"""`launch/restart.sh`: what is run again, how often, and what a signal does."""

import signal
import subprocess

import pytest
from tiny_run import ROOT

NO_DELAY = {"RESTART_DELAY": "0"}


@pytest.fixture
def counted(tmp_path):
    """A command that notes each of its runs, and how many there were."""

    def command(then):
        return ["bash", "-c", f"echo run >> {tmp_path}/runs; {then}"]

    def runs():
        return (tmp_path / "runs").read_text().count("run")

    return command, runs


@pytest.mark.parametrize("end", ["exit 75", "kill -ABRT $$", "kill -KILL $$"])
def test_what_can_resume_is_run_again_a_limited_number_of_times(
    run_script, counted, end
):
    command, runs = counted
    code, _, errors = run_script("restart.sh", *command(end), RESTARTS="2", **NO_DELAY)
    assert (code, runs()) == (1, 3)
    assert "restart 2 of 2" in errors and "after 2 restarts; giving up" in errors


@pytest.mark.parametrize("end", [0, 1, 74, 127])
def test_other_ends_are_passed_on(run_script, counted, tmp_path, end):
    """Here of a command that was restarted twice."""
    command, runs = counted
    then = f"[ $(wc -l < {tmp_path}/runs) = 3 ] || exit 75; exit {end}"
    code, _, _ = run_script("restart.sh", *command(then), **NO_DELAY)
    assert (code, runs()) == (end, 3)


TRAIN = "trap 'echo stopping; exit 75' TERM; echo ready; while sleep 0.1; do :; done"


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "USR2", "between"])
def test_a_signal_stops_the_command_for_good(counted, name):
    """One that comes between two runs, too."""
    command, runs = counted
    then, when, end = TRAIN, "ready", 75
    if name == "between":
        name, then, when, end = "TERM", "exit 134", "in 120 seconds", 134
    process = subprocess.Popen(
        ["bash", str(ROOT / "launch/restart.sh"), *command(then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        for line in process.stdout:
            if when in line:
                process.send_signal(signal.Signals[f"SIG{name}"])
                break
        assert ("stopping" in process.stdout.read()) == (end == 75)
    assert (process.returncode, runs()) == (end, 1)
