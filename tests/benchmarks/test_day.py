"""A training in the background that is stopped, killed, lost, and goes on."""

import json
import os
import shutil
import signal
import time

import pytest
from tiny_run import as_flags, run_program, tiny_overrides, write_texts
from tiny_tasks import write_lines

from benchmarks.experiments import day
from benchmarks.paper_model import load_config
from gpt1_jax import config as config_lib
from gpt1_jax.studies.zero_shot import job as zero_shot

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


def test_an_error_that_ended_a_run_is_in_its_log(tmp_path):
    printed = tmp_path / "transformer.txt"
    printed.write_text("gpt1_jax: error: an old one\nstep 1\nstep 2\n")
    assert day.why_ended(printed) == "killed"
    printed.write_text("step 1\ngpt1_jax: error: the disk is full\n(--verb ..)\n")
    assert day.why_ended(printed) == "the disk is full"


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


def test_a_figure_is_drawn_of_loss_and_pairs(pretrained, tmp_path):
    folder, scores = tmp_path / "day", tmp_path / "scores"
    shutil.copytree(pretrained, folder / "transformer")
    pairs = tmp_path / "anaphor_gender_agreement.jsonl"
    pair = {"sentence_good": "the boats", "sentence_bad": "boats the"}
    write_lines(pairs, [{**pair, "UID": pairs.stem}] * 3)
    config = load_config("minimal_pairs", pairs.stem)
    config.update(init_from=str(folder / "transformer"), step="all")
    config.data.update(source="official", dir=str(tmp_path))
    zero_shot.run(config_lib.load(config.to_dict()), str(scores))
    given = ("--seconds=21,19", f"--output={tmp_path / 'day.png'}")
    day.main(["figure", f"--folder={folder}", f"--scores={scores}", *given])
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")
