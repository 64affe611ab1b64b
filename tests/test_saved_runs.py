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
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.jobs import finetune, predict, pretrain, report
from gpt1_jax.ops import dropout
from gpt1_jax.runs.milestones import saved_milestones
from gpt1_jax.runs.open import open_run
from gpt1_jax.studies.zero_shot import job as zero_shot

SAVED = Path(__file__).parent / "saved_runs"

spec = importlib.util.spec_from_file_location("make", SAVED / "make.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


@pytest.fixture(params=make.RUNS)
def saved(request, tmp_path, monkeypatch):
    """A copy of a version's folders, in the working directory they were made in."""
    for folder in (SAVED / request.param).iterdir():
        shutil.copytree(folder, tmp_path / folder.name)
    for path in (tmp_path / "texts").iterdir():
        os.utime(path, (make.MTIME, make.MTIME))
    monkeypatch.chdir(tmp_path)
    return tmp_path


newer = pytest.mark.parametrize("saved", ["2026-11-24"], indirect=True)


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
def its_masks(saved, request, monkeypatch):
    """Those of the version, with which runs end where they would have then."""
    if request.node.callspec.params["saved"] != "0.1.0":
        yield
        return
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


# How flags of older versions are written today.
TODAY = {
    ("init_step", 6): ("step", "6"),
    ("init_step", "best"): ("step", "best"),
    ("step", "kept"): ("step", "milestones"),
    ("checkpoint.keep_at_steps", "2:6:+4"): ("checkpoint.milestone_steps", "(2, 6)"),
    ("checkpoint.keep_at_words", "100:500:+400"): (
        "checkpoint.milestone_words",
        "(100, 500)",
    ),
}


def resolved(saved, name):
    """The configuration that made a folder, in today's words."""
    version = "2026-11-24" if (saved / "lstm").exists() else "0.1.0"
    job, preset, flags = next(run[1:] for run in make.RUNS[version] if run[0] == name)
    config = load_config(preset, file=job)
    given = dict(TODAY.get(flag, flag) for flag in flags.items())
    values = {
        key: eval(value) if str(value).startswith("(") else value
        for key, value in given.items()
    }
    config.update_from_flattened_dict(values)
    if "train" in config:
        config.train.compilation_cache_dir = jax.config.jax_compilation_cache_dir
    if job == "pretrain":
        config.data.cache_dir = str(saved / "cache")
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
    milestones = saved_milestones(folder)
    known = {(record["step"], "valid_loss" in record) for record in records}
    found = [
        record
        for record in metrics_without_times(folder)
        # Since then each milestone is evaluated.
        if (record["step"], "valid_loss" in record) in known
        or not ("valid_loss" in record and record["step"] in milestones)
    ]
    assert [record["step"] for record in found] == [r["step"] for r in records]
    for ours, theirs in zip(found, records, strict=True):
        for name, value in theirs.items():
            if name == "sample":  # since then drawn with other random numbers
                assert ours[name]
            elif isinstance(value, float):
                assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
            else:
                assert ours[name] == value, name


def check_resumes(saved, name, step, last, capsys):
    folder = saved / name
    expected = roll_back(folder, step)
    config = resolved(saved, name)
    {"pretrain": pretrain, "finetune": finetune}[config.job].run(config, name)
    assert f"Resuming from the checkpoint of step {step}" in capsys.readouterr().out
    assert_goes_on(folder, expected, last)


@pytest.mark.usefixtures("its_masks")
def test_pre_training_resumes_and_ends_where_it_would_have(saved, one_device, capsys):
    # Where milestones are kept, the step before the last one is one of them.
    step = 6 if (saved / "pretrain" / "checkpoints" / "6").exists() else 4
    check_resumes(saved, "pretrain", step, 8, capsys)


@newer
@pytest.mark.parametrize("name, step, last", [("lstm", 7, 8), ("continued", 2, 4)])
def test_other_pre_training_resumes(saved, one_device, capsys, name, step, last):
    check_resumes(saved, name, step, last, capsys)


@pytest.mark.usefixtures("its_masks")
def test_fine_tuning_resumes_and_ends_where_it_would_have(saved, one_device, capsys):
    (saved / "finetune" / "results.json").unlink()
    before = read_lines(saved / "finetune" / "predictions" / "dev.jsonl")
    check_resumes(saved, "finetune", 2, 4, capsys)
    after = read_lines(saved / "finetune" / "predictions" / "dev.jsonl")
    assert len(after) == len(before) == 8


def test_a_finished_run_is_not_repeated(saved, one_device, monkeypatch):
    monkeypatch.setattr(finetune, "fit", lambda *run: pytest.fail("it began"))
    finetune.run(resolved(saved, "finetune"), "finetune")


@newer
def test_a_finished_suite_is_not_repeated(saved, one_device, monkeypatch):
    monkeypatch.setattr(finetune, "fit", lambda *run: pytest.fail("it began"))
    tables = (saved / "suite" / "results.md").read_text()
    finetune.run(resolved(saved, "suite"), "suite")
    assert (saved / "suite" / "results.md").read_text() == tables


@newer
def test_a_scored_step_is_not_scored_again(saved, one_device, monkeypatch):
    def scored(*args):
        raise AssertionError("scored again")

    tables = (saved / "zero_shot" / "results.md").read_text()
    monkeypatch.setattr(Scorer, "__call__", scored)
    zero_shot.run(resolved(saved, "zero_shot"), "zero_shot")
    assert (saved / "zero_shot" / "results.md").read_text() == tables


@newer
def test_all_of_it_is_reported(saved):
    values = load_config("", file="report").to_dict()
    values["runs"] = "pretrain,lstm,continued,suite,zero_shot"
    report.run(config_lib.load(values), "page")
    text = (saved / "page" / "report.md").read_text()
    for name in ("pretrain", "lstm", "continued", "zero_shot", "Table 5"):
        assert name in text


@pytest.mark.usefixtures("its_masks")
def test_fine_tuning_starts_from_it(saved, one_device):
    finetune.run(resolved(saved, "finetune"), "again")
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


@newer
def test_what_was_converted_opens(saved):
    converted, origin = open_run("converted"), open_run("pretrain")
    assert converted.model.embed_dim == origin.model.embed_dim
    jax.tree.map(np.testing.assert_array_equal, converted.params, origin.params)


def test_its_milestones_are_known(saved):
    if (saved / "lstm").exists():
        assert list(saved_milestones(saved / "pretrain")) == [2, 6]
        assert list(saved_milestones(saved / "lstm")) == [1, 7]
    else:  # nothing says how much text was read
        assert saved_milestones(saved / "pretrain") == {}
