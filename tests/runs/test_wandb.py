"""Weights & Biases, as the package itself records a run offline."""

import json
import struct
import sys
import time

import pandas as pd
import pytest
from etils import epath

from gpt1_jax.errors import MissingPackage
from gpt1_jax.runs import records as records_lib
from gpt1_jax.runs.records import Records, Throughput, find_tracker

CONFIG = {"format": 1, "job": "pretrain", "model": {"num_layers": 2}}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # without the user's keys and settings
    wandb.teardown()
    yield wandb
    wandb.teardown()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def train(folder, first_step, *lines):
    """A session of a run that saves a checkpoint; its folder is named by the second."""
    time.sleep(1 - time.time() % 1)
    throughput = Throughput("tokens", 100, None)
    records = Records(epath.Path(folder), first_step, 10, throughput, ["wandb"], {}, {})
    (folder / "checkpoints" / "1").mkdir(exist_ok=True)
    for line in lines:
        records.write(line)
    records.close()


def runs_recorded(folder):
    """For each session the run's id and configuration, and the rows of its history."""
    found = []
    for path in sorted((folder / "wandb").glob("*/*.wandb")):
        messages = list(read_messages(path.read_bytes()))
        (run,) = (each.run for each in messages if each.HasField("run"))
        config = {each.key: json.loads(each.value_json) for each in run.config.update}
        rows = [row(each.history) for each in messages if each.HasField("history")]
        found.append((run, config, rows))
    return found


def row(history):
    """A row of the history, the parts of media as NAME/PART."""
    named = {"/".join(x.nested_key) or x.key: x.value_json for x in history.item}
    return {k: json.loads(v) for k, v in named.items() if not k.startswith("_")}


def read_messages(data):
    """The messages of a .wandb file: records of LevelDB's log after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    position, part = 7, b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        part += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(part)
            part = b""


@pytest.mark.usefixtures("real_figures")
def test_a_run_has_its_metrics_samples_and_plot(folder, offline, monkeypatch, capfd):
    """Here without a key, and so offline; switched off, nothing is written."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    train(folder, 0, {"step": 2, "loss": 1.0})
    assert not (folder / "wandb").exists()
    offline.teardown()
    monkeypatch.delenv("WANDB_MODE")
    lines = {"step": 2, "loss": 3.5}, {"step": 2, "valid_loss": 3.0, "sample": "<a>"}
    train(folder, 0, *lines)
    ((run, config, rows),) = runs_recorded(folder)
    assert config["model"] == CONFIG["model"] and run.project == "gpt1_jax"
    (row,) = rows  # of one step
    assert row.items() >= {"step": 2, "loss": 3.5, "valid_loss": 3.0}.items()
    (sample,) = (folder / "wandb").glob("*/" + "files/" + row["sample/path"])
    assert "<pre>&lt;a&gt;</pre>" in sample.read_text()
    assert row["loss_plot/path"].endswith(".png")
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    said = "".join(capfd.readouterr())
    assert "no API key (WANDB_API_KEY" in said
    assert f"wandb sync {folder / 'wandb'}" in said and "wandb: " not in said

    (folder / "checkpoints" / "1").rmdir()
    train(folder, 0, {"step": 2, "loss": 1.5})
    _, (anew, _, (row,)) = runs_recorded(folder)
    assert row["loss"] == 1.5
    assert anew.run_id != run.run_id, "a run that begins anew in its folder is another"


@pytest.mark.parametrize("sent_as", ["now", "1.0", "remote"])
def test_a_resumed_run_goes_on_without_earlier_steps(folder, monkeypatch, sent_as):
    if sent_as == "remote":
        monkeypatch.setattr(records_lib, "is_remote", lambda path: path == folder)
    train(folder, 0, *({"step": n, "loss": 1.0} for n in (2, 4, 6)))
    if sent_as == "1.0":
        note = folder / "wandb" / "run.json"
        run_id = json.loads(note.read_text())["id"]
        note.write_text(json.dumps({"id": run_id, "sent": {"lr": 4, "loss": 6}}))
    train(folder, 4, *({"step": n, "loss": 1.0} for n in (6, 8)))
    (first, _, _), (second, _, rows) = runs_recorded(folder)
    assert first.run_id == second.run_id
    assert [(row["step"], row["loss"]) for row in rows] == [(6, 1.0), (8, 1.0)]


@pytest.mark.usefixtures("real_figures")
@pytest.mark.parametrize("failing", ["init", "log", "finish"])
def test_what_fails_there_is_one_line_and_ends_nothing(
    folder, monkeypatch, capsys, offline, failing
):
    def fail(*arguments, **keywords):
        raise RuntimeError("no such server\nat all")

    owner = offline if failing == "init" else offline.Run
    monkeypatch.setattr(owner, failing, fail)
    train(folder, 0, {"step": 2, "loss": 1.0}, {"step": 4, "loss": 1.0})
    lines = "".join(capsys.readouterr()).splitlines()
    (warning,) = [line for line in lines if "WARNING" in line]
    assert "Weights & Biases: no such server; going on without it" in warning
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_suite_has_a_table_and_a_group(tmp_path, monkeypatch):
    suite = tmp_path / "all"
    run = suite / "sst2" / "full-seed0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({**CONFIG, "job": "finetune"}))
    (suite / "run.lock").touch()
    train(run, 0, {"step": 2, "clf_loss": 1.0})
    scores = pd.DataFrame({"task": ["sst2"], "score": [91.3]})
    find_tracker("wandb").log_results(epath.Path(suite), scores)
    ((one, _, _),) = runs_recorded(run)
    ((table, _, rows),) = runs_recorded(suite)
    assert one.run_group == table.run_group == "all"
    assert one.display_name == "sst2/full-seed0"
    (file,) = (suite / "wandb").glob("*/" + "files/" + rows[0]["results/path"])
    assert json.loads(file.read_text())["data"] == [["sst2", 91.3]]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "gpt1_jax.runs.wandb", raising=False)
    with pytest.raises(MissingPackage, match=r"log.wandb=True .*'gpt1_jax\[wandb\]'"):
        find_tracker("wandb")
