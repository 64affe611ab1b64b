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


@pytest.mark.parametrize("end", [0, 1, 2, 74, 127])
def test_other_ends_are_passed_on(run_script, counted, end):
    command, runs = counted
    code, _, _ = run_script("restart.sh", *command(f"exit {end}"), **NO_DELAY)
    assert (code, runs()) == (end, 1)


def test_a_restarted_command_may_succeed(run_script, counted, tmp_path):
    command, runs = counted
    then = f"[ $(wc -l < {tmp_path}/runs) = 3 ] || exit 75"
    code, _, _ = run_script("restart.sh", *command(then), **NO_DELAY)
    assert (code, runs()) == (0, 3)


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2],
)
def test_a_signal_stops_the_command_for_good(counted, number):
    command, runs = counted
    then = "trap 'echo stopping; exit 75' TERM; echo ready; while sleep 0.1; do :; done"
    left = check_stopped(command(then), number, "ready", runs, 75)
    assert left == "stopping\n"


def test_a_signal_between_two_runs_stops_as_well(counted):
    command, runs = counted
    check_stopped(command("exit 134"), signal.SIGTERM, "in 120 seconds", runs, 134)


def check_stopped(command, number, when, runs, expected):
    """Sends a signal at a line of output; what is printed afterwards."""
    process = subprocess.Popen(
        ["bash", str(ROOT / "launch/restart.sh"), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        for line in process.stdout:
            if when in line:
                process.send_signal(number)
                break
        left = process.stdout.read()
    assert (process.returncode, runs()) == (expected, 1)
    return left


@pytest.mark.parametrize(
    ("arguments", "env", "problem"),
    [
        ([], {}, "no command"),
        (["true"], {"RESTARTS": "-1"}, "'-1' is not a number"),
        (["true"], {"RESTART_DELAY": "soon"}, "'soon' is not a number"),
    ],
)
def test_wrong_use_is_one_error(run_script, arguments, env, problem):
    code, _, errors = run_script("restart.sh", *arguments, **env)
    assert code == 2 and problem in errors
    assert errors.count("\n") == 1
