"""Folders of older versions still open: to resume, to start from, to predict with."""

import importlib.util
import math
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_run import load_config, metrics_without_times, saved_state
from tiny_tasks import read_lines

from gpt1_jax import config as config_lib
from gpt1_jax.jobs import finetune, predict, pretrain
from gpt1_jax.ops import dropout
from gpt1_jax.runs.milestones import saved_milestones
from gpt1_jax.runs.open import open_run

SAVED = Path(__file__).parent / "saved_runs"
VERSIONS = sorted(path.name for path in SAVED.glob("[0-9]*"))

spec = importlib.util.spec_from_file_location("make", SAVED / "make.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


@pytest.fixture(params=VERSIONS)
def saved(request, tmp_path, monkeypatch):
    """A copy of a version's folders, in the working directory they were made in."""
    for folder in (SAVED / request.param).iterdir():
        shutil.copytree(folder, tmp_path / folder.name)
    for path in (tmp_path / "texts").iterdir():
        os.utime(path, (make.MTIME, make.MTIME))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def random_bits_of_0_1_0(words, rows, row_shape, window=None, unit_ndim=1):
    """The masks then: each hash served two neighbours, counted through all rows."""
    del unit_ndim
    window = window or tuple((0, size) for size in row_shape)
    starts, sizes = zip(*window, strict=True)
    first = rows * np.uint32(math.prod(row_shape))
    index = first.reshape(rows.shape + (1,) * len(row_shape))
    index = index + dropout._flat_index(row_shape, starts, sizes)
    bits = dropout.hash_bits(index >> 1, words[0], words[1])
    return (bits >> (16 * (index & 1))).astype(jnp.uint16)


@pytest.fixture
def its_masks(saved, monkeypatch):
    """Those of the version, with which runs end where they would have then."""
    jax.clear_caches()
    monkeypatch.setattr(dropout, "random_bits", random_bits_of_0_1_0)
    yield
    jax.clear_caches()


@pytest.fixture
def one_device(monkeypatch):
    """As when the folders were made."""
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *backend: devices)
    monkeypatch.setattr(jax, "device_count", lambda *backend: 1)


def resolved(job, preset, flags, tmp_path):
    config = load_config(preset, file=job)
    values = {k: eval(v) if str(v)[0] in "(" else v for k, v in flags.items()}
    config.update_from_flattened_dict(values)
    config.train.compilation_cache_dir = jax.config.jax_compilation_cache_dir
    if job == "pretrain":
        config.data.cache_dir = str(tmp_path / "cache")
    return config_lib.load(config.to_dict())


def roll_back(folder, step):
    """The folder as it was when its run had come to `step`."""
    expected = saved_state(folder, max(map(int, os.listdir(folder / "checkpoints"))))
    for path in (folder / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)
    return expected, metrics_without_times(folder)


def assert_goes_on(folder, expected, step):
    state, records = expected
    for name, value in saved_state(folder, step).items():
        np.testing.assert_allclose(value, state[name], atol=1e-6, err_msg=name)
    found = metrics_without_times(folder)
    assert [record["step"] for record in found] == [r["step"] for r in records]
    for ours, theirs in zip(found, records, strict=True):
        for name, value in theirs.items():
            if name == "sample":  # since then drawn with other random numbers
                assert ours[name]
            elif isinstance(value, float):
                assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
            else:
                assert ours[name] == value, name


@pytest.mark.usefixtures("its_masks")
def test_pre_training_resumes_and_ends_where_it_would_have(saved, one_device, capsys):
    folder = saved / "pretrain"
    expected = roll_back(folder, 4)
    pretrain.run(resolved("pretrain", "quickstart", make.PRETRAIN, saved), "pretrain")
    assert "Resuming from the checkpoint of step 4" in capsys.readouterr().out
    assert_goes_on(folder, expected, 8)


@pytest.mark.usefixtures("its_masks")
def test_fine_tuning_resumes_and_ends_where_it_would_have(saved, one_device, capsys):
    folder = saved / "finetune"
    expected = roll_back(folder, 2)
    (folder / "results.json").unlink()
    before = (folder / "predictions" / "dev.jsonl").read_text()
    finetune.run(resolved("finetune", "sst2", make.FINETUNE, saved), "finetune")
    assert "Resuming from the checkpoint of step 2" in capsys.readouterr().out
    assert_goes_on(folder, expected, 4)
    assert len(before.splitlines()) == 8


def test_a_finished_run_is_not_repeated(saved, one_device, monkeypatch):
    monkeypatch.setattr(finetune, "fit", lambda plan: pytest.fail("it began"))
    finetune.run(resolved("finetune", "sst2", make.FINETUNE, saved), "finetune")


@pytest.mark.usefixtures("its_masks")
def test_fine_tuning_starts_from_it(saved, one_device):
    config = resolved("finetune", "sst2", make.FINETUNE, saved)
    finetune.run(config, "again")
    one, other = (metrics_without_times(saved / name) for name in ("again", "finetune"))
    assert one[0]["loss"] == pytest.approx(other[0]["loss"], rel=1e-5)


def test_it_predicts_what_it_predicted(saved, one_device, tmp_path):
    rows = read_lines(saved / "tasks" / "sst2" / "dev.jsonl")
    (tmp_path / "lines.txt").write_text("".join(f"{r['sentence']}\n" for r in rows))
    values = load_config("", file="predict").to_dict()
    values |= {"init_from": "finetune", "input": "lines.txt", "output": "out.jsonl"}
    predict.run(config_lib.load(values), "")
    for found, expected in zip(
        read_lines(tmp_path / "out.jsonl"),
        read_lines(saved / "finetune" / "predictions" / "dev.jsonl"),
        strict=True,
    ):
        assert found["prediction"] == expected["prediction"]
        assert found["probabilities"] == pytest.approx(
            expected["probabilities"], abs=1e-4
        )


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_it_opens(saved, name):
    run = open_run(name)
    assert run.config.job == name
    assert run.model.num_layers == 1 and run.step in (4, 8)
    assert saved_milestones(run.folder) == {}  # nothing says how much text was read
