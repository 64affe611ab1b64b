"""What a run records as it goes: metrics, TensorBoard, sessions."""

import json
import math
import shutil
import types

import pytest
from etils import epath
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpt1_jax.errors import UserError
from gpt1_jax.runs import records as records_lib
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    Records,
    Session,
    Throughput,
    read_metrics,
    read_sessions,
)
from gpt1_jax.runs.wall_time import TRAINING

METRICS = {"loss": 2.5, "grad_norm": 1.0, "learning_rate": 1e-3}


FORMS = {
    "attention": {"form": "blocked", "why": "fused is left out: .."},
    "layer_norm": {"form": "fused", "ms": {"plain": 2.58, "fused": 0.898}},
}


TEXT = {"tokens": 7, "words": 5}


def open_records(tmp_path, first_step=0, mfu_per_rate=None, trackers=()):
    throughput = Throughput("tokens", 100, mfu_per_rate)
    return Records(tmp_path, first_step, 10, throughput, trackers, TEXT, FORMS)


def test_metrics_are_written_a_line_each(tmp_path):
    records = open_records(tmp_path, trackers=["tensorboard"])
    records.train(1, METRICS)
    records.write({"step": 1, "valid_loss": 2.0, "sample": "the end\n"})
    records.close()
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, **METRICS},
        {"step": 1, "valid_loss": 2.0, "sample": "the end\n"},
    ]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (loss,) = events.Scalars("loss")
    assert (loss.step, loss.value) == (1, 2.5)
    assert any("sample" in tag for tag in events.Tags()["tensors"])


def test_a_metric_that_is_not_finite_is_null_and_survives_a_resume(tmp_path):
    path = tmp_path / METRICS_FILE
    earlier = '{"step": 1, "valid_loss": NaN}\n{"step": 2, "valid_loss": null}\n'
    path.write_text(earlier)
    records = open_records(tmp_path, first_step=2, trackers=["tensorboard"])
    records.write({"step": 3, "valid_loss": math.inf})
    records.close()
    records = open_records(tmp_path, first_step=3, trackers=["tensorboard"])
    records.close()
    assert path.read_text() == (
        '{"step": 1, "valid_loss": null, "not_finite": {"valid_loss": "NaN"}}\n'
        '{"step": 2, "valid_loss": null}\n'
        '{"step": 3, "valid_loss": null, "not_finite": {"valid_loss": "Infinity"}}\n'
    )
    values = [record["valid_loss"] for record in read_metrics(path)]
    assert math.isnan(values[0]) and values[1:] == [None, math.inf]


def test_speed_counts_steps_since_the_last_record_but_not_pauses(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    records = open_records(tmp_path, mfu_per_rate=1e-3)
    records.step_done(1)  # compiled: its time is not counted
    now[0] = 4.0
    records.step_done(3)
    records.train(3, METRICS)
    with records.paused():
        now[0] = 100.0
    now[0] = 103.0
    records.step_done(4)
    records.train(4, METRICS)
    records.close()
    first, second = read_metrics(tmp_path / METRICS_FILE)
    speed = {"step_seconds": 2.0, "tokens_per_second": 50.0}
    assert first == {"step": 3, **METRICS, **speed, "mfu": pytest.approx(0.05)}
    assert second["step_seconds"] == 3.0


def test_a_resumed_run_drops_later_and_cut_lines(tmp_path):
    path = tmp_path / METRICS_FILE
    whole = [{"step": n, "loss": 1.0} for n in (2, 4, 6)]
    path.write_text("".join(json.dumps(r) + "\n" for r in whole) + '{"step": 8, "lo')
    records = open_records(tmp_path, first_step=4)
    assert records.scores("loss") == {2: 1.0, 4: 1.0}
    records.train(6, METRICS)
    records.close()
    assert [r["step"] for r in read_metrics(path)] == [2, 4, 6]
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("far", [False, True])
def test_a_kill_leaves_records_that_can_be_read(tmp_path, request, monkeypatch, far):
    """At any moment of sessions that drop records of those before."""
    folder = tmp_path / "run"
    if far:
        folder, _ = request.getfixturevalue("remote")
    folder.mkdir(exist_ok=True)
    (folder / METRICS_FILE).write_text('{"step": 1, "valid_loss": NaN}\n')
    left = []  # copies of the folder, as a kill would leave it

    def train_to(folder, first_step, last_step):
        records = open_records(folder, first_step)
        for step in range(first_step + 1, last_step + 1):
            with records.paused():
                records.train(step, METRICS)
        records.close()

    def copying_before(function):
        def write(*arguments, **keywords):
            left.append(shutil.copytree(folder, tmp_path / f"killed-{len(left)}"))
            return function(*arguments, **keywords)

        return write

    with monkeypatch.context() as patch:
        for name in ("write_whole", "write_json", "format_json", "append_to"):
            patch.setattr(records_lib, name, copying_before(getattr(records_lib, name)))
        for first_step, last_step in ((1, 4), (2, 3), (1, 2)):
            train_to(folder, first_step, last_step)
    assert len(left) > 20
    for each in left:
        train_to(each, 1, 2)
        steps = [record["step"] for record in read_metrics(each / METRICS_FILE)]
        assert steps == [1, 2]
        assert read_sessions(each / SESSIONS_FILE)[-1]["last_step"] == 1


def test_a_disk_that_fills_up_within_a_record_is_one_line(tmp_path, monkeypatch):
    """And within a session it is none: that file is written again."""
    records = open_records(tmp_path)
    records._file.close()
    records._file = types.SimpleNamespace(write=lambda line: 3, close=lambda: None)
    with pytest.raises(OSError, match=r"metrics.jsonl cannot be written \(No space"):
        records.write({"step": 1})
    records.step_done(3)

    def full(path, value):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records_lib, "write_json", full)
        with records.paused():
            pass
    assert read_sessions(tmp_path / SESSIONS_FILE) == []
    with records.paused():
        pass
    (session,) = read_sessions(tmp_path / SESSIONS_FILE)
    assert session["last_step"] == 3
    assert (session["text"], session["forms"]) == (TEXT, FORMS)
    records.close()


SHOWN = """
class Shown(list):
    add = list.append
    def __init__(self, run_folder, folder):
        assert folder == run_folder / "shown"
        self.folder = folder
    def close(self):
        self.folder.mkdir(exist_ok=True)
        (self.folder / "steps").write_text(" ".join(str(x["step"]) for x in self))
"""


def test_a_tracker_is_a_line_in_the_table_and_a_class(write, tmp_path, monkeypatch):
    """It gets the records so far, then each new one."""
    write("shown.py", SHOWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(records_lib.TRACKERS, "shown", "shown:Shown")
    monkeypatch.setitem(records_lib.TRACKERS, "gone", "not_there.gone:Gone")
    for first_step, steps in ((0, (1, 2)), (1, (3,))):
        records = open_records(tmp_path, first_step, trackers=["shown"])
        for step in steps:
            records.write({"step": step})
        records.close()
    assert (tmp_path / "shown" / "steps").read_text() == "1 3"
    with pytest.raises(UserError, match=r"log.gone=True needs not_there, .*gone=False"):
        open_records(tmp_path, trackers=["gone"])


def test_processes_that_do_not_write_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(records_lib, "is_main_process", lambda: False)
    records = open_records(tmp_path)
    records.step_done(1)
    records.train(2, METRICS)
    records.close()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A run folder that counts as gs://, and the folder for temporary ones."""
    remote, local = tmp_path / "remote", tmp_path / "local"
    remote.mkdir()
    local.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(local))
    monkeypatch.setattr(records_lib, "is_remote", lambda path: path == remote)
    return epath.Path(remote), local


def test_a_remote_run_folder_gets_copies(remote):
    folder, local = remote
    (folder / METRICS_FILE).write_text('{"step": 1, "loss": 9.0}\n')
    records = open_records(folder, first_step=1, trackers=["tensorboard"])
    records.train(2, METRICS)
    assert [r["step"] for r in read_metrics(folder / METRICS_FILE)] == [1]
    with records.paused():
        pass
    assert [r["step"] for r in read_metrics(folder / METRICS_FILE)] == [1, 2]
    assert list(local.iterdir())
    records.close()
    assert not list(local.iterdir())
    open_records(folder, first_step=2).close()  # on another machine
    found = read_sessions(folder / SESSIONS_FILE)
    assert [each["first_step"] for each in found] == [1, 2]
    assert list((folder / "tensorboard").iterdir())
    assert not list(local.iterdir())


@pytest.mark.parametrize("failing", ["check_room", "write_whole"])
def test_local_copies_of_a_remote_run_folder_never_stay(remote, monkeypatch, failing):
    """Neither if the records cannot be opened, nor if they cannot be copied."""
    folder, local = remote

    def fail(*arguments):
        assert list(local.iterdir())
        raise OSError("There is no way to write.")

    monkeypatch.setattr(records_lib, failing, fail)
    with pytest.raises(OSError, match="no way to write") as raised:
        open_records(folder).close()
    assert raised.traceback, "which keeps the records alive"
    assert not list(local.iterdir())


def test_a_session_says_what_it_did_and_on_what(tmp_path, monkeypatch):
    """Version 1.0 timed kernels, and wrote the times."""
    laps = [{TRAINING: 3.0, "the rest": 1.0}, {TRAINING: 2.0, "evaluation": 4.0}]
    laps.append({TRAINING: 2.0})
    monkeypatch.setattr(records_lib.PROGRAM, "lap", lambda: laps.pop(0))
    path = tmp_path / SESSIONS_FILE
    assert read_sessions(path) == []
    session = Session(path, 4, TEXT, FORMS)
    for session.last_step in (6, 8):
        session.write()
    (found,) = read_sessions(path)
    assert (found["first_step"], found["last_step"]) == (4, 8)
    assert found["seconds"] == {TRAINING: 5.0, "the rest": 1.0, "evaluation": 4.0}
    assert found["devices"] == "8 x cpu" and found["processes"] == 1
    assert found["host"].endswith("cores") and found["began"].endswith("+00:00")
    assert (found["text"], found["forms"]) == (TEXT, FORMS)
    assert found["versions"] == records_lib.package_versions()
    assert found["versions"].keys() >= {"gpt1_jax", "python", "jax"}
    Session(path, 8, {}, {}).write()
    before, second = read_sessions(path)
    assert before == found
    assert (second["first_step"], second["seconds"]) == (8, {TRAINING: 2.0})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("began", None),
        *(("seconds", {TRAINING: x}) for x in ("long", -1.0, math.inf, 10**400)),
        ("forms", {"x": {"form": "blocked"}}),
        ("forms", {"attention": {"form": 1}}),
        ("forms", {"attention": {"form": "blocked", "why": 3}}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_session_of_other_values_is_named(tmp_path, key, value):
    path = tmp_path / SESSIONS_FILE
    Session(path, 0, {}, {}).write()
    (session,) = read_sessions(path)
    for damaged in ("{", "{}", json.dumps({"sessions": [session | {key: value}]})):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"sessions\.json"):
            read_sessions(path)
