"""A training in the background that is stopped, killed, lost, and goes on."""

import json
import os
import shutil
import signal
import time

import pytest
from tiny_run import as_flags, run_program, tiny_overrides, write_texts

from benchmarks.experiments import day

pytestmark = pytest.mark.slow


def wait_until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def script(tmp_path):
    """`script(command)`: its exit code and what it prints."""
    write_texts(tmp_path)
    every = ("checkpoint.every_steps", "eval.every_steps", "log.every_steps")
    tiny = {**tiny_overrides(tmp_path), **dict.fromkeys(every, 500)}
    tiny["checkpoint.milestone_steps"] = "()"
    del tiny["data.source"], tiny["data.train"]
    files = {"train": "[0-8].txt", "valid": "9.txt"}
    texts = [f"--{name}={tmp_path / 'texts' / file}" for name, file in files.items()]

    def run(command, **overrides):
        flags = [f"--folder={tmp_path / 'day'}"]
        if command == "start":
            flags += [*texts, "--cores=0", *as_flags({**tiny, **overrides})]
        program = ("-m", "benchmarks.experiments.day", command)
        return run_program(*flags, program=program)

    yield run
    run("stop")


def test_whatever_stops_it_it_goes_on(script, tmp_path):
    folder = tmp_path / "day" / "transformer"
    long = {"train.num_steps": 100_000}

    def start(**overrides):
        code, printed = script("start", **overrides)
        assert code == 0, printed

    def saved(more_than=0):
        return lambda: day.newest_step(folder) > more_than

    start(**long)
    code, printed = script("start", **long)
    assert code == 1 and printed.startswith("day.py: process "), printed
    wait_until(saved())
    assert script("stop")[0] == 0
    stopped = day.newest_step(folder)
    start(**long)
    wait_until(saved(stopped))
    os.kill(day.trained_by(folder), signal.SIGKILL)
    wait_until(lambda: not day.trained_by(folder))
    killed = day.newest_step(folder)
    start(**long)
    assert script("stop")[0] == 0
    shutil.rmtree(folder)
    start(**{"train.num_steps": 12})
    wait_until(lambda: not day.trained_by(folder))
    start(**long)
    assert day.trained_by(tmp_path / "day" / "lstm")
    assert script("stop")[0] == 0
    lines = (tmp_path / "day" / "log.jsonl").read_text().splitlines()
    starts, ends = [], []
    for entry in map(json.loads, lines):
        (starts if entry["event"] == "start" else ends).append(entry)
    assert [(each["run"], each["step"]) for each in starts] == [
        ("transformer", 0),
        ("transformer", stopped),
        ("transformer", killed),
        ("transformer", 0),
        ("lstm", 0),
    ]
    whys = ["SIGTERM", "killed", "SIGTERM", "its folder is gone", "finished"]
    assert [each["why"] for each in ends] == [*whys, "SIGTERM"]
    assert ends[1]["steps"] == killed - stopped > 0 < ends[1]["tokens_per_second"]
    code, printed = script("table")
    assert code == 0 and printed.count("| SIGTERM |") == 3
