"""The core of the package can be carried off, and trains as the whole package does."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from core import ROOT, closure, module_paths, size, write_core
from tiny_run import (
    as_flags,
    assert_same_run,
    tiny_overrides,
)

PROGRAM = ("-m", "gpt1_jax.main", "--config=configs/pretrain.py:quickstart")
# Prints the modules that a pre-training has imported, as it ends.
LIST_MODULES = """
import atexit, json, sys
atexit.register(lambda: print("modules", json.dumps(sorted(sys.modules))))
sys.argv[0] = "gpt1_jax"
from gpt1_jax.main import run
run()
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    folder = tmp_path_factory.mktemp("carried") / "core"
    write_core(folder)
    return folder


@pytest.fixture(scope="module")
def pretrain(core, corpus_dir):
    """Pre-trains in a folder below the core; returns what was printed."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(workdir, *flags, program=PROGRAM, cwd=core):
        tiny = as_flags(tiny_overrides(corpus_dir))
        done = subprocess.run(
            [sys.executable, *program, *tiny, f"--workdir={workdir}", *flags],
            cwd=cwd,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def steps(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


@pytest.mark.slow
def test_the_core_pretrains_samples_resumes_and_goes_on(
    core, pretrain, tmp_path, capsys
):
    flags = ("--config.checkpoint.milestone_steps=0,2", "--config.eval.sample_tokens=4")
    printed = pretrain("first", *flags, program=("-c", LIST_MODULES, PROGRAM[-1]))
    assert "  | " in printed and "Loss curve" in printed
    assert_only_the_core_was_loaded(printed, capsys)
    first = core / "first"
    assert {0, 2, 12} <= set(steps(first))

    interrupted = shutil.copytree(first, core / "interrupted")
    shutil.rmtree(interrupted / "checkpoints" / "12")
    assert "Resuming from the checkpoint of step 8" in pretrain(interrupted, *flags)
    assert_same_run(interrupted, first, 12)

    printed = pretrain("further", "--config.init_from=first")
    assert "Start: step 12 of " in printed
    printed = pretrain(
        "lstm", "--config.model.kind=lstm", "--config.model.lstm_units=24"
    )
    assert "LSTM layer of 24 units" in printed and "Done" in printed

    pretrain(tmp_path / "whole", *flags, cwd=ROOT)
    assert_same_run(first, tmp_path / "whole", 12)


def assert_only_the_core_was_loaded(printed, capsys):
    line = next(line for line in printed.splitlines() if line.startswith("modules "))
    loaded = json.loads(line.removeprefix("modules "))
    ours = {name.removeprefix("gpt1_jax.") for name in loaded if "gpt1_jax." in name}
    core = closure("jobs.pretrain")
    assert ours - closure("main", "program") <= core
    with capsys.disabled():
        for name, names in (("the core", core), ("loaded by a pre-training", ours)):
            modules, lines = size(names)
            print(f"\n{name}: {modules} modules, {lines:,} lines", end="")
        print(f"; with all packages {len(loaded):,} modules")


@pytest.mark.slow
def test_the_tests_of_the_core_pass(core):
    some = ("ops/test_dropout.py", "training/test_fit.py", "config/test_checks.py")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-x",
            *(f"tests/{name}" for name in some),
        ],
        cwd=core,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(FileExistsError, match="is not empty; name another"):
        write_core(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_pages_say_how_large_the_core_is():
    modules, lines = size(closure("jobs.pretrain"))
    rounded = f"{round(lines, -2):,}"
    for page in ("docs/architecture.md", "docs/paper-to-code.md"):
        assert f"{modules} modules of {rounded} lines" in (ROOT / page).read_text()
    readme = (ROOT / "README.md").read_text()
    assert f"{rounded} with all that pre-training runs" in readme


def test_every_module_of_the_core_is_one_of_the_package():
    assert closure("jobs.pretrain") <= set(module_paths())
