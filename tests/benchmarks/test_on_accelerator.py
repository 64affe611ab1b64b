"""Measurements run in turn within their limits, and their results are never lost."""

import argparse
import importlib
import itertools
import json
import operator
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from tiny_run import load_config

import gpt1_jax
from benchmarks import harness
from benchmarks.harness import read_records
from benchmarks.on_accelerator import __main__ as on_accelerator
from benchmarks.on_accelerator.__main__ import MEASUREMENTS, LeftOut, Measurement


@pytest.fixture
def measurements(monkeypatch):
    """`measurements(name="code", ..)`: programs of Python in place of all others."""
    monkeypatch.setattr(on_accelerator, "LEAST_SECONDS", 0)
    monkeypatch.setattr(on_accelerator, "GRACE_SECONDS", 2)
    monkeypatch.setattr(on_accelerator, "_WITH_RESULTS", set())
    monkeypatch.setenv(harness.PROGRAMS, "")  # each run sets it

    def replace(seconds=60, **programs):
        made = {
            name: Measurement(
                seconds, lambda flags, seconds, code=code: [sys.executable, "-c", code]
            )
            for name, code in programs.items()
        }
        monkeypatch.setattr(on_accelerator, "MEASUREMENTS", made)

    return replace


def run(folder, *flags, minutes=5):
    """(measurement, status) of each line of results.jsonl afterwards; the exit code."""
    code = 0
    try:
        on_accelerator.main([f"--output={folder}", f"--minutes={minutes}", *flags])
    except SystemExit as end:
        code = end.code
    results = read_records(folder / on_accelerator.RESULTS)
    return [(result["measurement"], result["status"]) for result in results], code


def test_one_that_fails_does_not_stop_the_others(tmp_path, measurements, capsys):
    measurements(
        good="print('found 7')", bad="print('a fault'); exit(3)", last="print('end')"
    )
    results, code = run(tmp_path)
    assert results == [("good", "done"), ("bad", "failed (3)"), ("last", "done")]
    assert code == 1
    assert (tmp_path / "bad.log").read_text() == "a fault\n"
    assert "found 7" in capsys.readouterr().out


def test_the_same_command_goes_on_with_what_is_not_done(tmp_path, measurements):
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write"
    measurements(one=f"{count}('one ')", two=f"{count}('two '); exit(1)")
    run(tmp_path)
    measurements(one=f"{count}('one ')", two=f"{count}('two ')")
    results, code = run(tmp_path)
    assert (tmp_path / "runs").read_text() == "one two two "
    assert results[1:] == [("two", "failed (1)"), ("two", "done")]
    assert code == 0


def test_a_measurement_ends_with_its_time_and_its_own_processes(tmp_path, measurements):
    grandchild = "import time; print('began', flush=True); time.sleep(60)"
    call = f"subprocess.run([sys.executable, '-c', {grandchild!r}])"
    measurements(seconds=4, slow=f"import subprocess, sys; {call}", after="pass")
    start = time.monotonic()
    results, _ = run(tmp_path)
    assert time.monotonic() - start < 30
    assert results == [("slow", "out of time"), ("after", "done")]
    assert (tmp_path / "slow.log").read_text() == "began\n"


def test_what_a_measurement_saves_when_it_is_told_to_end_is_kept(
    tmp_path, measurements
):
    path = str(tmp_path / "checkpoint")
    saving = f"signal.signal(15, lambda *_: (open({path!r}, 'w').close(), exit(75)))"
    measurements(seconds=4, run=f"import signal, time; {saving}; time.sleep(60)")
    assert run(tmp_path)[0] == [("run", "out of time")]
    assert Path(path).exists()


def test_nothing_begins_when_the_time_is_up(
    tmp_path, measurements, capsys, monkeypatch
):
    measurements(one="pass")
    monkeypatch.setattr(on_accelerator, "LEAST_SECONDS", 10)
    assert run(tmp_path, minutes=0.1) == ([], 0)
    assert "one: no time left" in capsys.readouterr().out


def test_a_line_that_was_cut_off_is_passed_over(tmp_path, measurements):
    measurements(one="pass")
    run(tmp_path)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"measurement": "tw')
    measurements(one="pass", two="pass")
    assert run(tmp_path)[0] == [("one", "done"), ("two", "done")]


def is_running(pid):
    """Whether a process exists and is more than a line in the table of processes."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends the processes")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_measurement_ends_with_the_program_that_began_it(tmp_path, how):
    """And so do the processes of its variants, which would disturb the next run."""
    variant = (
        "import os, sys, time; from concurrent import futures; "
        "from multiprocessing import get_context; from benchmarks import harness; "
        "start = futures.ProcessPoolExecutor(1, get_context('spawn'), "
        "harness.end_with_parent); number = start.submit(os.getpid).result(); "
        "print(os.getpid(), number, flush=True); time.sleep(60)"
    )
    call = [sys.executable, "-c", variant]
    begin = f"m.wait({call!r}, open({str(tmp_path / 'pids')!r}, 'w'), 60)"
    whole = f"from benchmarks.on_accelerator import __main__ as m; {begin}"
    environment = {**os.environ, "PYTHONPATH": str(on_accelerator.ROOT)}
    process = subprocess.Popen([sys.executable, "-c", whole], env=environment)
    pids, end = [], time.monotonic() + 60
    while len(pids) < 2 and time.monotonic() < end:
        time.sleep(0.1)
        path = tmp_path / "pids"
        pids = path.read_text().split() if path.exists() else []
    assert len(pids) == 2 and all(map(is_running, pids))
    process.send_signal(how)
    process.wait()
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(is_running, pids))


def test_results_of_a_measurement_that_begins_again_are_kept(tmp_path, measurements):
    file = tmp_path / "one.json"
    measurements(one=f"open({str(file)!r}, 'w').write('first'); exit(1)")
    on_accelerator._WITH_RESULTS.add("one")
    run(tmp_path)
    measurements(one="exit(1)")  # it is cut off before it has any
    on_accelerator._WITH_RESULTS.add("one")
    run(tmp_path)
    assert file.read_text() == (tmp_path / "one.1.json").read_text() == "first"
    measurements(one=f"open({str(file)!r}, 'w').write('third')")
    on_accelerator._WITH_RESULTS.add("one")
    run(tmp_path)
    assert file.read_text() == "third"
    assert (tmp_path / "one.2.json").read_text() == "first"


def test_measurements_share_what_they_compile(tmp_path, measurements):
    measurements(one="import os; print(os.environ['BENCHMARK_PROGRAMS'])")
    run(tmp_path)
    programs = f"{tmp_path / 'programs'}"
    assert (tmp_path / "one.log").read_text() == f"{programs}\n"
    (tmp_path / "pretrain" / "checkpoints").mkdir(parents=True)
    command = on_accelerator.suite(parsed(tmp_path, "--tasks=here"), 100.0)
    assert f"--config.train.compilation_cache_dir={programs}/jax" in command


def test_a_trace_is_not_added_to_an_earlier_one(tmp_path):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "old.xplane.pb").touch()
    command = on_accelerator.kernels(parsed(tmp_path), 100.0)
    assert f"--trace={tmp_path / 'trace'}" in command
    assert not (tmp_path / "trace").exists()


def test_eight_minutes_hold_the_first_five():
    """Whatever happens to one of them; a longer time gives each more."""
    first = dict(itertools.islice(MEASUREMENTS.items(), 5))
    assert list(first) == ["fused", "step", "kernels", "finetune", "generate"]
    assert sum(each.seconds for each in first.values()) <= 8 * 60 - 5


def test_limits_grow_with_the_time_there_is(tmp_path, measurements):
    measurements(seconds=2, slow="import time; time.sleep(4)")
    assert run(tmp_path, minutes=5)[0] == [("slow", "out of time")]
    assert run(tmp_path, minutes=40)[0][1:] == [("slow", "done")]


def parsed(tmp_path, *flags):
    return on_accelerator.parse([f"--output={tmp_path}", "--minutes=1", *flags])


@pytest.mark.parametrize("flags", [(), ("--toy",)], ids=["paper", "toy"])
@pytest.mark.parametrize(
    "name", [n for n in MEASUREMENTS if n not in ("pretrain", "suite")]
)
def test_scripts_take_the_flags_they_are_given(tmp_path, name, flags):
    _, _, module, *arguments = MEASUREMENTS[name].command(
        parsed(tmp_path, *flags), 100.0
    )
    script = importlib.import_module(module)
    assert hasattr(script.parse([*arguments, "--output=x.json"]), "output")


def test_the_resumed_run_reads_the_texts_that_are_given(tmp_path):
    command = on_accelerator.resume(parsed(tmp_path, "--texts=books"), 100.0)
    assert "--texts=books" in command


def test_a_clone_that_is_not_installed_can_be_measured(monkeypatch):
    def version(package):
        if package == "gpt1_jax":
            raise metadata.PackageNotFoundError(package)
        return "1.2"

    monkeypatch.setattr(metadata, "version", version)
    versions = harness.describe("script", [])["versions"]
    assert versions["gpt1_jax"] == gpt1_jax.__version__


def assert_known(command):
    """The values that a job is given are values of its configuration."""
    config, _, *overrides = (flag for flag in command if flag.startswith("--"))
    file, preset = Path(config).name.split(".py:")
    known = load_config(preset, file)
    for override in overrides:
        name = override.removeprefix("--config.").partition("=")[0]
        operator.attrgetter(name)(known)


@pytest.mark.parametrize("flags", [(), ("--toy",)], ids=["paper", "toy"])
def test_pre_training_takes_as_many_steps_as_there_is_time_for(tmp_path, flags):
    with pytest.raises(LeftOut, match="--texts"):
        on_accelerator.pretrain(parsed(tmp_path, *flags), 100.0)
    given = parsed(tmp_path, "--texts=books", *flags)
    if not flags:
        with pytest.raises(LeftOut, match="150 seconds"):
            on_accelerator.pretrain(given, 100.0)
        with pytest.raises(LeftOut, match="results of step"):
            on_accelerator.pretrain(given, 400.0)
    measured = {"results": {"jax_bf16": {"median_seconds": 0.05}}}
    (tmp_path / "step.json").write_text(json.dumps(measured))
    command = on_accelerator.pretrain(given, 400.0)
    steps = 20 if flags else int(400 * 0.75 / 0.05)
    assert f"--config.train.num_steps={steps}" in command
    assert "--config.data.train=books" in command
    assert_known(command)


@pytest.mark.parametrize("flags", [(), ("--toy",)], ids=["paper", "toy"])
def test_the_suite_starts_from_what_was_pre_trained(tmp_path, flags):
    with pytest.raises(LeftOut, match="--tasks"):
        on_accelerator.suite(parsed(tmp_path, *flags), 100.0)
    given = parsed(tmp_path, "--tasks=here", *flags)
    with pytest.raises(LeftOut, match="pretrain"):
        on_accelerator.suite(given, 100.0)
    (tmp_path / "pretrain" / "checkpoints").mkdir(parents=True)
    command = on_accelerator.suite(given, 100.0)
    assert f"--config.init_from={tmp_path / 'pretrain'}" in command
    assert_known(command)


def test_what_runs_choose_is_measured_first():
    assert next(iter(MEASUREMENTS)) == "fused"


def test_what_is_left_out_says_why(tmp_path, capsys):
    assert run(tmp_path, "--only=suite") == ([("suite", "left out")], 0)
    assert "suite: left out, it needs --tasks" in capsys.readouterr().out


def test_a_training_goes_on_as_it_began(tmp_path):
    """Whatever time is left for it."""
    flags = argparse.Namespace(texts="a", valid="b", toy=False, output=tmp_path)
    times = {"results": {"jax_bf16": {"median_seconds": 0.06}}}
    (tmp_path / "step.json").write_text(json.dumps(times))
    first = on_accelerator.pretrain(flags, 270)
    assert "--config.train.num_steps=3375" in first
    (tmp_path / "pretrain").mkdir()
    config = {"train": {"num_steps": 3375}}
    (tmp_path / "pretrain" / "config.json").write_text(json.dumps(config))
    assert on_accelerator.pretrain(flags, 520) == first


def test_a_training_needs_the_time_of_a_step(tmp_path):
    flags = argparse.Namespace(texts="a", valid="b", toy=False, output=tmp_path)
    (tmp_path / "step.json").write_text(json.dumps({"results": {"jax_f32": {}}}))
    with pytest.raises(LeftOut, match="with jax_bf16, which failed"):
        on_accelerator.pretrain(flags, 270)
