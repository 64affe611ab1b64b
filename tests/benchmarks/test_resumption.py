"""A run that goes on is compared with one that never stopped."""

import json
import shutil

import pytest
from tiny_run import as_flags, run_program, tiny_overrides, write_texts

from benchmarks.experiments import resumption

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of twelve steps that saved its last."""
    folder = tmp_path_factory.mktemp("resumption")
    write_texts(folder)
    workdir = folder / "run"
    flags = as_flags(tiny_overrides(folder))
    config = "--config=configs/pretrain.py:quickstart"
    code, printed = run_program(config, f"--workdir={workdir}", *flags)
    assert code == 0, printed
    return workdir


def test_another_loss_and_another_step_are_differences(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    assert resumption.differences(run, copy, 12) == {"records": 0, "arrays": 0}
    assert len(resumption.records(run)) > 6
    path = copy / "metrics.jsonl"
    first, *others = path.read_text().splitlines()
    record = json.loads(first)
    changed = {**record, "loss": record["loss"] + 1e-6}
    changed.update(step_seconds=100, mfu=0.4)
    path.write_text("\n".join([json.dumps(changed), *others]) + "\n")
    assert resumption.differences(run, copy, 12) == {"records": 1, "arrays": 0}
    shutil.rmtree(copy / "checkpoints" / "12")
    shutil.copytree(copy / "checkpoints" / "8", copy / "checkpoints" / "12")
    assert resumption.differences(run, copy, 12)["arrays"] > 0
