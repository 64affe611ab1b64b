"""The core of the package can be carried off, and trains as the whole package does."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from core import PACKAGE, ROOT, closure, line_counts, size, write_core
from setuptools.command import editable_wheel
from tiny_run import as_flags, assert_same_run, tiny_overrides

PROGRAM = ("-m", "gpt1_jax.main", "--config=configs/pretrain.py:quickstart")
# Prints the modules of the package that a pre-training has imported, as it ends.
LIST_MODULES = """
import atexit, json, sys
def list_modules():
    ours = {n: m.__file__ for n, m in sys.modules.items() if n.startswith("gpt1_jax.")}
    print("modules", json.dumps(ours))
atexit.register(list_modules)
sys.argv[0] = "gpt1_jax"
from gpt1_jax.main import run
run()
"""
# Prints what a copy says of what it lacks.
ASK = """
import importlib
import gpt1_jax
def ask(function, *arguments):
    try:
        print("found", function(*arguments))
    except ImportError as error:
        print(type(error).__name__, error, sep=": ")
ask(gpt1_jax.load, "first")
ask(gpt1_jax.defaults, "pretrain:quickstart")
ask(importlib.import_module, "gpt1_jax.kernels.attention")
ask(importlib.import_module, "gpt1_jax.inference.scoring")
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    write_core(folder := tmp_path_factory.mktemp("carried") / "core")
    return folder


@pytest.fixture(scope="module")
def run(core, tmp_path_factory):
    """Runs Python in the core; the checkout is installed beside it, as editable."""
    beside = tmp_path_factory.mktemp("beside")
    mapping = {"gpt1_jax": str(PACKAGE)}
    finder = editable_wheel._finder_template("beside", mapping, {})
    (beside / "sitecustomize.py").write_text(f"{finder}\ninstall()\n")
    env = {**os.environ, "PYTHONPATH": str(beside)}

    def run(*arguments, cwd=core, code=0):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def pretrain(run, corpus_dir):
    """Pre-trains in a folder below the core; returns what was printed."""
    tiny = as_flags(tiny_overrides(corpus_dir))
    return lambda workdir, *flags, program=PROGRAM, **how: run(
        *program, *tiny, f"--workdir={workdir}", *flags, **how
    )


@pytest.mark.slow
def test_the_core_pretrains_resumes_and_goes_on(core, pretrain, tmp_path):
    flags = ("--config.checkpoint.milestone_steps=0,2",)
    printed = pretrain("first", *flags, program=("-c", LIST_MODULES, PROGRAM[-1]))
    assert "No plot of the loss: that needs gpt1_jax.report, which this" in printed
    line = next(x for x in printed.splitlines() if x.startswith("modules "))
    loaded = json.loads(line.removeprefix("modules "))
    assert all(path.startswith(f"{core}/") for path in loaded.values())
    ours = {name.removeprefix("gpt1_jax.") for name in loaded}
    assert ours <= closure("jobs.pretrain", "main", "program")
    first = core / "first"
    assert {"0", "2", "12"} <= {path.name for path in (first / "checkpoints").iterdir()}

    interrupted = shutil.copytree(first, core / "interrupted")
    shutil.rmtree(interrupted / "checkpoints" / "12")
    assert "Resuming from the checkpoint of step 8" in pretrain(interrupted, *flags)
    assert_same_run(interrupted, first, 12)

    printed = pretrain("further", "--config.init_from=first")
    assert "Start: step 12 of " in printed

    pretrain(tmp_path / "whole", *flags, cwd=ROOT)
    assert_same_run(first, tmp_path / "whole", 12)


@pytest.mark.slow
def test_what_the_core_lacks_is_not_found_beside_it(core, run, pretrain):
    lacks = "which this copy of the package does not have; copy it, too"
    assert run("-c", ASK).splitlines() == [
        f"MissingPackage: gpt1_jax.load needs gpt1_jax.trained_model, {lacks}.",
        f"MissingPackage: gpt1_jax.defaults needs gpt1_jax.scripting, {lacks}.",
        *(
            f"ModuleNotFoundError: There is no gpt1_jax.{name} in {core}/gpt1_jax"
            for name in ("kernels", "inference")
        ),
    ]
    builtin = "--config.data.source=builtin", "--config.data.train="
    for flags, module in (
        (builtin, "data.builtin"),
        (["--config.log.tensorboard=True"], "runs.tensorboard"),
        (["--config.init_from=hf://ORG/NAME"], "interop"),
        (["--config.model.attention_form=fused"], "kernels"),
    ):
        printed = pretrain("refused", *flags, code=1)
        assert f" needs gpt1_jax.{module}, {lacks}" in printed
        assert "Traceback" not in printed


@pytest.mark.slow
def test_the_tests_of_the_core_pass(run):
    """A file of each folder; the others are collected, and so import what they test."""
    some = ("shards", "transformer", "losses", "checkpoint_files", "resume", "fit")
    chosen = " or ".join(f"test_{name}" for name in some)
    run("-m", "pytest", "-q", "-n", "0", "-x", "-k", chosen)


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(FileExistsError, match="is not empty; name another"):
        write_core(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_pages_say_how_large_the_core_is_and_its_own_where_to_begin(core):
    modules, lines = size(closure("jobs.pretrain"))
    rounded = f"{round(lines, -2):,}"
    for page in ("docs/architecture.md", "docs/paper-to-code.md"):
        assert f"{modules} modules of {rounded} lines" in (ROOT / page).read_text()
    readme = (ROOT / "README.md").read_text()
    assert f"{rounded} with all that pre-training runs" in readme
    own = (core / "README.md").read_text()
    assert f"\n{modules} modules of {lines:,} lines that " in own
    for name in re.findall(r"`((?:gpt1_jax|configs)/[\w/]*\.py)`", own):
        assert (core / name).exists(), name


@pytest.mark.parametrize("start", ["jobs.pretrain", "training.steps"])
def test_what_a_training_imports_does_not_grow(start):
    """By more than 1 %; the lines of each module at some time are in a file."""
    kept = {}
    for line in (ROOT / "tests" / "core_lines.txt").read_text().splitlines():
        lines, name, *starts = line.split()
        kept |= {name: int(lines)} if start in starts else {}
    found = line_counts(closure(start))
    grown = "".join(
        f"\n  {name}: {kept.get(name, 0)} -> {found.get(name, 0)} lines"
        for name in sorted({*kept, *found})
        if kept.get(name) != found.get(name)
    )
    before, now = sum(kept.values()), sum(found.values())
    assert now <= 1.01 * before, (
        f"What {start} imports has grown from {before:,} to {now:,} lines:{grown}\n"
        "Move out of it what a training can do without. If it must grow, raise the "
        "numbers in tests/core_lines.txt, and say why in the commit."
    )
