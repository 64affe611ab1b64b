"""What a run records as it goes: metrics, TensorBoard, sessions."""

import json
import math
import shutil
import types

import pytest
from etils import epath
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpt1_jax.errors import UserError
from gpt1_jax.runs import records
from gpt1_jax.runs import records as records_lib
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    TIME_KEYS,
    Records,
    Session,
    Throughput,
    read_metrics,
    read_sessions,
)
from gpt1_jax.runs.wall_time import TRAINING, WallTime

METRICS = {"loss": 2.5, "grad_norm": 1.0, "learning_rate": 1e-3}


FORMS = {"attention": {"form": "blocked", "why": "fused is left out: .."}}


def open_records(tmp_path, first_step=0, mfu_per_rate=None, trackers=()):
    throughput = Throughput("tokens", 100, mfu_per_rate)
    return Records(tmp_path, first_step, 10, throughput, trackers, {}, {})


def test_metrics_are_written_a_line_each(tmp_path):
    records = open_records(tmp_path)
    records.train(1, METRICS)
    records.write({"step": 1, "valid_loss": 2.0, "sample": "the end\n"})
    records.close()
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, **METRICS},
        {"step": 1, "valid_loss": 2.0, "sample": "the end\n"},
    ]


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
    assert first["step_seconds"] == 2.0
    assert first["tokens_per_second"] == 50.0
    assert first["mfu"] == pytest.approx(0.05)
    assert second["step_seconds"] == 3.0
    assert {"step_seconds", "tokens_per_second", "mfu"} == first.keys() & set(TIME_KEYS)


def test_mfu_is_left_out_where_the_peak_is_unknown(tmp_path):
    records = open_records(tmp_path)
    records.step_done(1)
    records.train(2, METRICS)
    records.close()
    assert "mfu" not in read_metrics(tmp_path / METRICS_FILE)[0]


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


def test_a_disk_that_fills_up_within_a_record_is_one_line(tmp_path):
    records = open_records(tmp_path)
    records._file.close()
    records._file = types.SimpleNamespace(write=lambda line: 3, close=lambda: None)
    with pytest.raises(OSError, match=r"metrics.jsonl cannot be written \(No space"):
        records.write({"step": 1})
    records.close()


def test_tensorboard_holds_the_same_numbers(tmp_path):
    records = open_records(tmp_path, trackers=["tensorboard"])
    records.train(1, METRICS)
    records.write({"step": 1, "sample": "the end"})
    records.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Scalars("loss")[0].value == 2.5
    assert events.Scalars("loss")[0].step == 1
    assert any("sample" in tag for tag in events.Tags()["tensors"])


def test_a_tracker_is_a_line_in_the_table_and_a_class(tmp_path, monkeypatch):
    """It gets the records so far, then each new one."""
    (tmp_path / "shown.py").write_text(
        "class Shown(list):\n"
        "    add = list.append\n"
        "    def __init__(self, run_folder, folder):\n"
        "        assert folder == run_folder / 'shown'\n"
        "        self.folder = folder\n"
        "    def close(self):\n"
        "        self.folder.mkdir(exist_ok=True)\n"
        "        steps = [str(each['step']) for each in self]\n"
        "        (self.folder / 'steps').write_text(' '.join(steps))\n"
    )
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


def test_the_session_is_written_as_the_run_goes(tmp_path):
    text = {"tokens": 9, "words": 7}
    records = Records(tmp_path, 2, 10, Throughput("tokens", 100), (), text, FORMS)
    for step in (3, 4):
        records.step_done(step)
    with records.paused():
        pass
    (found,) = read_sessions(tmp_path / SESSIONS_FILE)
    assert (found["first_step"], found["last_step"], found["text"]) == (2, 4, text)
    assert found["forms"] == FORMS
    records.step_done(5)
    records.close()
    (found,) = read_sessions(tmp_path / SESSIONS_FILE)
    assert found["last_step"] == 5


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

    def use():
        records = open_records(folder)
        records.close()

    monkeypatch.setattr(records_lib, failing, fail)
    with pytest.raises(OSError, match="no way to write") as raised:
        use()
    assert raised.traceback, "which keeps the records alive"
    assert not list(local.iterdir())


@pytest.fixture
def program(monkeypatch):
    """The time of a program, as a list of laps to come."""
    laps = []

    class Program(WallTime):
        def lap(self):
            return laps.pop(0)

    monkeypatch.setattr(records, "PROGRAM", Program())
    return laps


def test_a_session_says_what_it_did_and_on_what(tmp_path, program):
    program += [{TRAINING: 3.0, "the rest": 1.0}, {TRAINING: 2.0, "evaluation": 4.0}]
    session = Session(tmp_path / SESSIONS_FILE, 4, {"tokens": 7, "words": 5}, {})
    session.last_step = 6
    session.write()
    session.last_step = 8
    session.write()
    (found,) = read_sessions(tmp_path / SESSIONS_FILE)
    assert (found["first_step"], found["last_step"]) == (4, 8)
    assert found["seconds"] == {TRAINING: 5.0, "the rest": 1.0, "evaluation": 4.0}
    assert found["devices"] == "8 x cpu" and found["processes"] == 1
    assert found["host"].endswith("cores") and found["began"].endswith("+00:00")
    assert found["text"] == {"tokens": 7, "words": 5}
    assert found["versions"] == records.package_versions()
    assert found["versions"].keys() >= {"gpt1_jax", "python", "jax"}


def test_a_session_joins_those_before_it(tmp_path, program):
    program += [{TRAINING: 1.0}, {TRAINING: 2.0}]
    for first_step in (0, 4):
        Session(tmp_path / SESSIONS_FILE, first_step, {}, {}).write()
    found = read_sessions(tmp_path / SESSIONS_FILE)
    assert [each["first_step"] for each in found] == [0, 4]
    assert [each["seconds"] for each in found] == [{TRAINING: 1.0}, {TRAINING: 2.0}]


def test_a_folder_without_the_file_has_no_sessions(tmp_path):
    assert read_sessions(tmp_path / SESSIONS_FILE) == []


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "{}",
        '{"sessions": [3]}',
        '{"sessions": [{"began": "a"}]}',
        "long",
        -1.0,
        math.inf,
        math.nan,
        10**400,
    ],
)
def test_a_damaged_file_is_named(tmp_path, program, damage):
    program.append({TRAINING: 1.0})
    path = tmp_path / SESSIONS_FILE
    Session(path, 0, {}, {}).write()
    whole = path.read_text()
    if not str(damage).startswith("{"):  # seconds
        content = json.loads(whole)
        content["sessions"][0]["seconds"] = {TRAINING: damage}
        damage = json.dumps(content)
    path.write_text(damage)
    with pytest.raises(ValueError, match=r"sessions\.json"):
        read_sessions(path)


@pytest.mark.parametrize(
    "forms",
    [
        3,
        {"x": {"form": "blocked"}},
        {"attention": "blocked"},
        {"attention": {"form": 1}},
        {"attention": {"form": "blocked", "why": 3}},
    ],
)
def test_damaged_forms_are_named(tmp_path, program, forms):
    program.append({TRAINING: 1.0})
    session = Session(tmp_path / SESSIONS_FILE, 0, {}, {})
    session._known["forms"] = forms
    session.write()
    with pytest.raises(ValueError, match=r"sessions\.json"):
        read_sessions(tmp_path / SESSIONS_FILE)


def test_forms_with_times_are_read(tmp_path, program):
    """Version 1.0 timed kernels, and wrote the times."""
    program.append({TRAINING: 1.0})
    times = {"blocked": 2.58, "fused": 0.898}
    forms = {"attention": {"form": "fused", "ms": times}}
    Session(tmp_path / SESSIONS_FILE, 0, {}, forms).write()
    (found,) = read_sessions(tmp_path / SESSIONS_FILE)
    assert found["forms"] == forms


def test_a_disk_without_room_does_not_end_the_run(tmp_path, program, monkeypatch):
    program += [{TRAINING: 1.0}, {TRAINING: 2.0}]
    session = Session(tmp_path / SESSIONS_FILE, 0, {}, {})

    def full(path, value):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records, "write_json", full)
        session.write()
    session.write()
    (found,) = read_sessions(tmp_path / SESSIONS_FILE)
    assert found["seconds"] == {TRAINING: 3.0}
