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
    before = (folder / "gpt1_jax/ops/attention.py").read_text()
    subprocess.run(SED, shell=True, cwd=folder, check=True)
    after = (folder / "gpt1_jax/ops/attention.py").read_text()
    changed = [
        pair
        for pair in zip(before.splitlines(), after.splitlines(), strict=True)
        if pair[0] != pair[1]
    ]
    assert len(changed) == 1 and "key" in changed[0][0]
    return folder


def run(folder, *arguments, path=""):
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": f"{folder}{path}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
        length = f"--config.model.max_seq_len={seq_len}"
        printed = run(
            tmp_path / "core",
            *program,
            *flags,
            length,
            "--config.data.source=text",
            f"--workdir={tmp_path / workdir}",
        )
        return re.findall(r"validation loss (\S+)", printed)

    before = {seq_len: losses(seq_len, f"before{seq_len}") for seq_len in (32, 96)}
    edited(tmp_path / "core")
    after = {seq_len: losses(seq_len, f"after{seq_len}") for seq_len in (32, 96)}
    assert before[32] and before[32] == after[32]
    assert before[96] != after[96]
