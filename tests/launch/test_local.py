"""`launch/local.sh`: processes that find each other, fail, stop and resume."""

import signal
import subprocess
import time

from tiny_run import ROOT

from gpt1_jax.parallel.processes import EXIT_AGAIN

WHO = 'echo "$JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS"'


def test_each_process_is_told_who_and_where_it_is(run_script, tmp_path):
    logs = f"--logs={tmp_path / 'logs'}"
    code, output, _ = run_script("local.sh", logs, 3, "bash", "-c", WHO)
    others = [(tmp_path / f"logs/process-{i}.log").read_text() for i in (1, 2)]
    who, places = zip(*(text.split(" at ") for text in (output, *others)), strict=True)
    assert code == 0 and len(set(places)) == 1
    assert who == ("0 of 3", "1 of 3", "2 of 3")


def test_the_first_failure_decides_and_the_rest_are_killed(run_script, tmp_path):
    fail = (
        f'[ "$JAX_PROCESS_ID" = 1 ] && echo why && exit 3; sleep 60; touch {tmp_path}/a'
    )
    code, _, errors = run_script("local.sh", "--grace=00", 2, "bash", "-c", fail)
    assert code == 3 and not (tmp_path / "a").exists()
    assert "process 1 of 2 ended with 3" in errors and "why" in errors


def test_restarts_are_of_all_processes_and_limited(run_script, tmp_path):
    fail = f"echo begun; echo >> {tmp_path}/runs-$JAX_PROCESS_ID; exit 75"
    flags = ("--restarts=02", "--grace=08", f"--logs={tmp_path}")
    code, _, errors = run_script("local.sh", *flags, 2, "bash", "-c", fail)
    assert code == 1 and "after 2 restarts; giving up" in errors
    assert "value too great" not in errors, "08 is decimal"
    assert [len((tmp_path / f"runs-{i}").read_text()) for i in (0, 1)] == [3, 3]
    assert (tmp_path / "process-1.log").read_text() == "begun\n" * 3


def test_a_stop_is_passed_on_to_all_processes(tmp_path):
    """They save and end with 75, which is no failure of one that the others die of."""
    train = (
        f"trap 'echo >> {tmp_path}/saved-$JAX_PROCESS_ID; exit 75' TERM; "
        "echo ready; while sleep 0.1; do :; done"
    )
    process = subprocess.Popen(
        ["launch/local.sh", f"--logs={tmp_path}", "2", "bash", "-c", train],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        while "ready" not in process.stdout.readline():
            assert process.poll() is None
        log = tmp_path / "process-1.log"
        while not (log.exists() and log.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output = process.stdout.read()
    assert process.returncode == EXIT_AGAIN and "killing" not in output
    assert all((tmp_path / f"saved-{index}").exists() for index in (0, 1))
