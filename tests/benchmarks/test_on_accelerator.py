"""Measurements run in turn within their limits, and their results are never lost."""

import importlib
import json
import operator
import sys
import time
from pathlib import Path

import pytest
from tiny_run import load_config

from benchmarks import harness
from benchmarks.harness import read_records
from benchmarks.on_accelerator import __main__ as on_accelerator
from benchmarks.on_accelerator.__main__ import MEASUREMENTS, Measurement


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


def test_one_that_fails_stops_no_other_and_is_measured_again(
    tmp_path, measurements, capsys
):
    """A line of the results that was cut off is passed over."""
    measurements(good="print('found 7')", bad="print('a fault'); exit(3)", last="")
    results, code = run(tmp_path)
    assert results == [("good", "done"), ("bad", "failed (3)"), ("last", "done")]
    assert code == 1
    assert (tmp_path / "bad.log").read_text() == "a fault\n"
    assert "found 7" in capsys.readouterr().out
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"measurement": "ba')
    measurements(good="exit(1)", bad="", last="exit(1)")
    results, code = run(tmp_path)
    assert (results[3:], code) == ([("bad", "done")], 0)


def test_a_measurement_ends_with_its_time_and_its_own_processes(tmp_path, measurements):
    """What it saves when it is told to end is kept."""
    call = "subprocess.run('echo began; sleep 60', shell=True)"
    path = str(tmp_path / "checkpoint")
    saving = f"signal.signal(15, lambda *_: (open({path!r}, 'w').close(), exit(75)))"
    measurements(
        seconds=2,
        slow=f"import subprocess; {call}",
        saving=f"import signal, time; {saving}; time.sleep(60)",
        after="pass",
    )
    start = time.monotonic()
    results, _ = run(tmp_path)
    assert time.monotonic() - start < 40
    late = [("slow", "out of time"), ("saving", "out of time")]
    assert results == [*late, ("after", "done")]
    assert (tmp_path / "slow.log").read_text() == "began\n"
    assert Path(path).exists()


def test_results_of_a_measurement_that_begins_again_are_kept(tmp_path, measurements):
    file = tmp_path / "one.json"
    for code in ("write('first'); exit(1)", "write('second'); exit(1)", "close()"):
        measurements(one=f"open({str(file)!r}, 'a').{code}")
        on_accelerator._WITH_RESULTS.add("one")
        run(tmp_path)
    kept = [(tmp_path / f"one.{number}.json").read_text() for number in (1, 2)]
    assert kept == ["first", "firstsecond"]


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


def values_of(command):
    """What a job is given; each is a value of its configuration."""
    config, _, *overrides = (flag for flag in command if flag.startswith("--"))
    file, preset = Path(config).name.split(".py:")
    known, values = load_config(preset, file), {}
    for override in overrides:
        name, _, value = override.removeprefix("--config.").partition("=")
        operator.attrgetter(name)(known)
        values[name] = value
    return values


@pytest.mark.parametrize("toy", [False, True])
def test_pre_training_takes_as_many_steps_as_there_is_time_for(tmp_path, toy):
    given = parsed(tmp_path, "--texts=books", *["--toy"] * toy)
    measured = {"results": {"jax_bf16": {"median_seconds": 0.05}}}
    (tmp_path / "step.json").write_text(json.dumps(measured))
    first = on_accelerator.pretrain(given, 400.0)
    values = values_of(first)
    steps = 20 if toy else int(400 * 0.75 / 0.05)
    assert values["train.num_steps"] == str(steps) and values["data.train"] == "books"
    assert values["train.compilation_cache_dir"] == f"{tmp_path / 'programs'}/jax"
    (tmp_path / "pretrain").mkdir()
    config = {"train": {"num_steps": steps}}
    (tmp_path / "pretrain" / "config.json").write_text(json.dumps(config))
    assert on_accelerator.pretrain(given, 520.0) == first, "it goes on as it began"
