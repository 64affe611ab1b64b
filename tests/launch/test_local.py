"""`launch/local.sh`: processes that find each other, fail, stop and resume."""

import functools
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_run import ROOT, as_flags, tiny_overrides

from gpt1_jax.parallel.processes import EXIT_AGAIN

WHO = 'echo "$JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS"'


def test_each_process_is_told_who_and_where_it_is(run_script, tmp_path):
    logs = f"--logs={tmp_path / 'logs'}"
    code, output, _ = run_script("local.sh", logs, 3, "bash", "-c", WHO)
    others = [(tmp_path / f"logs/process-{i}.log").read_text() for i in (1, 2)]
    places = {text.split(" at ")[1] for text in (output, *others)}
    assert code == 0 and len(places) == 1
    assert [text.split(" at ")[0] for text in (output, *others)] == [
        "0 of 3",
        "1 of 3",
        "2 of 3",
    ]


def test_a_dry_run_prints_the_commands_and_starts_nothing(run_script, tmp_path):
    made = tmp_path / "made by it"
    code, output, errors = run_script("local.sh", 2, "--dry-run", "touch", made)
    assert (code, errors) == (0, "") and not made.exists()
    lines = output.splitlines()
    assert len(lines) == 2 and all("made\\ by\\ it" in line for line in lines)
    assert "JAX_PROCESS_ID=0" in lines[0] and "JAX_PROCESS_ID=1" in lines[1]


def test_the_first_failure_decides_and_the_rest_are_killed(run_script, tmp_path):
    fail = (
        f'[ "$JAX_PROCESS_ID" = 1 ] && echo why && exit 3; sleep 60; touch {tmp_path}/a'
    )
    code, _, errors = run_script("local.sh", "--grace=00", 2, "bash", "-c", fail)
    assert code == 3 and not (tmp_path / "a").exists()
    assert "process 1 of 2 ended with 3" in errors and "why" in errors


def test_restarts_are_of_all_processes_and_limited(run_script, tmp_path):
    fail = f"echo begun; echo >> {tmp_path}/runs-$JAX_PROCESS_ID; sleep 0.5; exit 75"
    flags = ("--restarts=02", "--grace=08", f"--logs={tmp_path}")
    code, _, errors = run_script("local.sh", *flags, 2, "bash", "-c", fail)
    assert code == 1 and "after 2 restarts; giving up" in errors
    assert [len((tmp_path / f"runs-{i}").read_text()) for i in (0, 1)] == [3, 3]
    assert (tmp_path / "process-1.log").read_text() == "begun\n" * 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the number of processes is ''"),
        (["two", "true"], "the number of processes is 'two'"),
        (["0", "true"], "the number of processes is '0'"),
        (["2"], "no command"),
        (["--restart=1", "2", "true"], "unknown option --restart=1"),
        (["--restarts=", "2", "true"], "--restarts= is not"),
        (["--grace=1m", "2", "true"], "--grace=1m is not"),
    ],
)
def test_wrong_use_is_one_error(run_script, arguments, problem):
    code, output, errors = run_script("local.sh", *arguments)
    assert (code, output) == (2, "") and problem in errors
    assert errors.count("error:") == 1 and "Usage: " in errors


def start_run(corpus_dir, tmp_path, *options):
    """Two joined processes of a run of 300 steps; the number of each in a file."""
    overrides = tiny_overrides(corpus_dir) | {
        "train.num_steps": 300,
        "checkpoint.every_steps": 50,
        "eval.every_steps": 300,
    }
    program = [sys.executable, "-m", "gpt1_jax.main", f"--workdir={tmp_path / 'run'}"]
    program += ["--config=configs/pretrain.py:quickstart", *as_flags(overrides)]
    # Those that are left need time to end by themselves once they have saved.
    command = ["launch/local.sh", "--grace=10", *options, "2"]
    note = f'echo $$ > {tmp_path}/pid-$JAX_PROCESS_ID; exec "$@"'
    return subprocess.Popen(
        [*command, "bash", "-c", note, "-", *program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, acts):
    """Acts once at the first line that holds each text; exit code and output."""
    lines = []
    with process:
        for line in process.stdout:
            lines.append(line)
            for text in [text for text in acts if text in line]:
                acts.pop(text)()
    return process.returncode, "".join(lines)


@pytest.mark.slow
def test_a_run_survives_the_death_of_a_process_and_stops_when_asked(
    corpus_dir, tmp_path
):
    process = start_run(corpus_dir, tmp_path, "--restarts=1")
    checkpoints = tmp_path / "run" / "checkpoints"
    found = []

    def kill_one():
        while process.poll() is None and not (checkpoints / "50").exists():
            time.sleep(0.02)
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)

    def stop_at_the_next_step():
        names = (path.name for path in checkpoints.iterdir())
        found.append(max(int(name) for name in names if name.isdigit()))
        acts["/300  loss"] = functools.partial(process.send_signal, signal.SIGTERM)

    acts = {
        "step     60/300": kill_one,
        "Resuming from the checkpoint of step ": stop_at_the_next_step,
    }
    code, output = finish(process, acts)
    assert code == EXIT_AGAIN, output
    assert "process 1 of 2 ended with 137" in output
    # Of 50; or of a later one, if the disk was slow and the run went on meanwhile.
    assert found[0] >= 50
    assert f"Resuming from the checkpoint of step {found[0]}." in output
    assert "stopped by a signal" in output
