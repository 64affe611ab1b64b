"""Folders of 1.0 are read by every job, and training resumes from them."""

import contextlib
import json
import os
import runpy
import shutil
import types
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from etils import epath
from tiny_run import load_config, metrics_without_times, saved_state, stop_after
from tiny_tasks import read_lines

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.config import find_job
from gpt1_jax.config.saved import read_json
from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.jobs import finetune
from gpt1_jax.report.studies import read_evaluation
from gpt1_jax.runs.checkpoint_files import read_metadata
from gpt1_jax.runs.milestones import saved_milestones
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.signals import Stopped

SAVED = Path(__file__).parent / "saved_runs"

make = types.SimpleNamespace(**runpy.run_path(str(SAVED / "make.py")))

RUNS = {name: run for name, *run in make.RUNS}
VERSIONS = sorted(path.name for path in SAVED.glob("[0-9]*"))


@pytest.fixture(params=VERSIONS)
def saved(request, tmp_path, monkeypatch):
    """A copy of a version's folders, beside the data that they were made from."""
    shutil.copytree(SAVED / request.param, tmp_path, dirs_exist_ok=True)
    make.write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def one_device(monkeypatch):
    """As when the folders were made."""
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *backend: devices)
    monkeypatch.setattr(jax, "device_count", lambda *backend: 1)


def configured(job, preset="", **flags):
    """A job's configuration; flags as on the command line."""
    tuples = {k: eval(v) for k, v in flags.items() if str(v).startswith("(")}
    config = load_config(preset, file=job, **{**flags, **tuples})
    cache = jax.config.jax_compilation_cache_dir
    for section in (config, config.get("train", {})):
        if "compilation_cache_dir" in section:
            section.compilation_cache_dir = cache
    if "cache_dir" in config.get("data", {}):
        config.data.cache_dir = os.path.abspath("cache")
    return config_lib.load(config.to_dict())


def as_made(name):
    """The configuration that made a folder."""
    job, preset, flags = RUNS[name]
    return configured(job, preset, **flags)


def run(config, workdir):
    find_job(config.job).import_module().run(config, workdir)


@pytest.mark.parametrize("name", ["pretrain", "lstm", "finetune"])
def test_training_resumes_bit_for_bit(saved, one_device, capsys, name):
    """It ends where a run does that was never stopped, on this machine.

    On one that computes other bits than the one that made the folder, nearly.
    """
    config = as_made(name)
    checkpoints = saved / name / "checkpoints"
    for path in checkpoints.iterdir():
        if path.name != "2":
            shutil.rmtree(path)
    (saved / name / "results.json").unlink(missing_ok=True)
    digest = read_metadata(epath.Path(saved / name), 2)["params_digest"]

    run(config, "never_stopped")
    same = read_metadata(epath.Path("never_stopped"), 2)["params_digest"] == digest
    run(config, name)
    assert "Resuming from the checkpoint of step 2" in capsys.readouterr().out
    expected = saved_state(saved / "never_stopped", 4)
    for key, value in saved_state(saved / name, 4).items():
        tolerance = 0 if same else 1e-6
        np.testing.assert_allclose(value, expected[key], rtol=0, atol=tolerance)
    records = [metrics_without_times(saved / each) for each in (name, "never_stopped")]
    assert records[0] == records[1] or not same


@pytest.mark.parametrize("name", ["finetune", "suite"])
def test_what_has_finished_is_not_trained_again(saved, one_device, monkeypatch, name):
    monkeypatch.setattr(finetune, "fit", lambda *run: pytest.fail("it began"))
    tables = Path(name, "results.md").read_text()
    run(as_made(name), name)
    assert Path(name, "results.md").read_text() == tables


@pytest.mark.parametrize(
    "name", ["zero_shot", "minimal_pairs", "reading_times", "babylm"]
)
def test_what_is_scored_is_not_scored_again(saved, one_device, monkeypatch, name):
    """The same numbers, to all digits, whatever the table looks like."""
    monkeypatch.setattr(Scorer, "__call__", lambda *args: pytest.fail("scored again"))
    before = read_evaluation(epath.Path(name), {}).scores
    run(as_made(name), name)
    after = read_evaluation(epath.Path(name), {}).scores
    assert len(before) > 0
    pd.testing.assert_frame_equal(before, after, check_exact=True)


JOBS = {  # that read a folder: what they are given beside it
    "generate": {"prompt": "bcd", "sampling.max_new_tokens": 2},
    "surprisal": {"input": "lines.txt", "output": "out.csv"},
    "features": {"input": "lines.txt", "output": "out.npz"},
    "explore": {"input": "lines.txt", "output": "out.html"},
    "convert": {},
    "zero_shot": make.TASKS,
    "minimal_pairs": make.PAIRS,
    "batches": {"steps": "(1,)", "output": "out.jsonl"},
    "verify": {"losses": 1, "output": "out.json"},
    "finetune": make.FINETUNE,
    "predict": {"input": "lines.txt", "output": "out.jsonl"},
    "report": {},
}
PRESETS = {"convert": "huggingface", "minimal_pairs": "custom"}
PRESETS |= {"zero_shot": "sst2", "finetune": "sst2"}
FOLDERS = {"runs": ("explore", "verify", "report")}  # named by this key
READ = [
    *((job, "pretrain") for job in JOBS if job not in ("predict", "report")),
    ("features", "lstm"),
    *((job, "finetune") for job in ("predict", "convert")),
    ("minimal_pairs", "converted"),
    ("verify", "exported"),
    ("report", "pretrain,lstm,finetune,suite,zero_shot"),
]


@pytest.mark.parametrize(("job", "folder"), READ)
def test_every_job_reads_it(saved, one_device, monkeypatch, job, folder):
    """What a job makes of a folder is its own tests' subject."""
    Path("lines.txt").write_text("bcd efg hi\n")
    key = next((key for key, jobs in FOLDERS.items() if job in jobs), "init_from")
    config = configured(job, PRESETS.get(job, ""), **{**JOBS[job], key: folder})
    stop_after(monkeypatch, 1)
    with pytest.raises(Stopped) if job == "finetune" else contextlib.nullcontext():
        run(config, "out" if config.writes_folder else "")
    assert job == "generate" or any(Path().glob("out*"))


def test_it_predicts_what_it_predicted(saved, one_device):
    rows = read_lines("tasks/sst2/dev.jsonl")
    Path("lines.txt").write_text("".join(f"{row['sentence']}\n" for row in rows))
    run(configured("predict", **JOBS["predict"], init_from="finetune"), "")
    kept = read_lines("finetune/predictions/dev.jsonl")
    for found, expected in zip(read_lines("out.jsonl"), kept, strict=True):
        assert found["prediction"] == expected["prediction"]
        probs = pytest.approx(expected["probabilities"], abs=1e-4)
        assert found["probabilities"] == probs


def test_what_was_converted_is_the_same_model_and_milestones_are_known(saved):
    converted, origin = open_run("converted"), open_run("pretrain")
    jax.tree.map(np.testing.assert_array_equal, converted.params, origin.params)
    assert list(saved_milestones(epath.Path("pretrain"))) == [2, 4]


def rewrite(file, **values):
    """Makes a JSON file what another version might have written."""
    values = {**read_json(file), **values}
    kept = {key: value for key, value in values.items() if value is not None}
    Path(file).write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("file", "job", "flags"),
    [
        ("pretrain/config.json", "generate", {"init_from": "pretrain", "prompt": "a"}),
        ("pretrain/config.json", "report", {"runs": "pretrain"}),
        ("pretrain/tokenizer/tokenizer.json", "convert", {"init_from": "pretrain"}),
        ("exported/gpt1_jax_tokenizer/tokenizer.json", "convert", {}),
        ("exported/trajectory.json", "verify", {"runs": "exported"}),
        ("finetune/results.json", "report", {"runs": "finetune"}),
        ("zero_shot/results.json", "report", {"runs": "zero_shot"}),
    ],
)
def test_another_format_is_refused_by_what_reads_it(saved, capsys, file, job, flags):
    rewrite(file, format=2, gpt1_jax="1.3.0")
    preset = "run" if not flags else PRESETS.get(job, "")
    config = configured(job, preset, **(flags or {"init_from": "exported"}))
    with pytest.raises(UserError) as error:
        run(config, "out" if config.writes_folder else "")
    said = f"{error.value}{capsys.readouterr().out}"
    assert "of format 2, written by gpt1_jax 1.3.0; " in said
    assert f"gpt1_jax {gpt1_jax.__version__} reads format 1. Use " in said


@pytest.mark.parametrize("other", [2, None], ids=["later", "before 1.0"])
def test_training_does_not_go_on_in_a_folder_of_another_format(saved, other):
    rewrite("pretrain/config.json", format=other)
    with pytest.raises(UserError, match="reads format 1"):
        run(as_made("pretrain"), "pretrain")
    assert read_json("pretrain/config.json").get("format") == other
