"""Who may attend to whom is said once: a change there reaches every form."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from core import write_core
from tiny_run import ROOT, as_flags, tiny_overrides

SED = next(
    line.strip()
    for line in (ROOT / "docs" / "library.md").read_text().splitlines()
    if line.strip().startswith("sed -i") and "ops/attention.py" in line
)


def edited(folder):
    """Makes the change of docs/library.md in a copy."""
    before = (folder / "gpt1_jax/ops/attention.py").read_text().splitlines()
    subprocess.run(SED, shell=True, cwd=folder, check=True)
    after = (folder / "gpt1_jax/ops/attention.py").read_text().splitlines()
    [line] = [a for a, b in zip(before, after, strict=True) if a != b]
    assert "key" in line
    return folder


def run(folder, *arguments, path=""):
    command, env = [sys.executable, *arguments], {"PYTHONPATH": f"{folder}{path}"}
    env = {**os.environ, **env}
    return subprocess.check_output(command, cwd=folder, env=env, text=True)


@pytest.mark.slow
def test_every_form_follows_the_rule(tmp_path):
    """Training, sampling, scores and padding removal equal the formula."""
    shutil.copytree(ROOT / "gpt1_jax", tmp_path / "gpt1_jax", symlinks=True)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    script, tests = str(ROOT / "tests" / "windowed.py"), f":{ROOT / 'tests'}"
    unchanged = json.loads(run(tmp_path, script, path=tests))
    windowed = json.loads(run(edited(tmp_path), script, path=tests))
    differences = [
        abs(one - other)
        for one, other in zip(unchanged["formula"], windowed["formula"], strict=True)
    ]
    assert min(differences) > 1e-3, "the rule has no effect"
    for found in (unchanged, windowed):
        assert Path(found.pop("package")).is_relative_to(tmp_path)
        del found["formula"]
        gradients = found.pop("gradients of the default form")
        assert gradients < 1e-4, "of their largest"
        assert {k: v for k, v in found.items() if v > 1e-5} == {}


@pytest.mark.slow
def test_training_with_all_defaults_follows_the_rule(tmp_path, corpus_dir):
    """In a copied core; up to 32 tokens, a window of 32 changes nothing."""
    write_core(tmp_path / "core")
    flags = as_flags(tiny_overrides(corpus_dir))
    flags = [f for f in flags if "attention_form" not in f and "max_seq_len" not in f]
    program = "-m", "gpt1_jax.main", "--config=configs/pretrain.py:quickstart"

    def losses(seq_len, workdir):
        own = f"--config.model.max_seq_len={seq_len}", f"--workdir={workdir}"
        printed = run(tmp_path / "core", *program, *flags, *own)
        return re.findall(r"validation loss (\S+)", printed)

    short, long = losses(32, "short"), losses(96, "long")
    edited(tmp_path / "core")
    assert short and losses(32, "short_windowed") == short
    assert losses(96, "long_windowed") != long
