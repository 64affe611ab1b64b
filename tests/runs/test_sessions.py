"""Who worked on a run, and for how long."""

import json
import math

import pytest

from gpt1_jax.runs import records
from gpt1_jax.runs.records import SESSIONS_FILE, Session, read_sessions
from gpt1_jax.runs.wall_time import TRAINING, WallTime


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
    session = Session(tmp_path / SESSIONS_FILE, 4, {"tokens": 7, "words": 5})
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
    assert found["versions"] == records.versions()
    assert found["versions"].keys() >= {"gpt1_jax", "python", "jax"}


def test_a_session_joins_those_before_it(tmp_path, program):
    program += [{TRAINING: 1.0}, {TRAINING: 2.0}]
    for first_step in (0, 4):
        Session(tmp_path / SESSIONS_FILE, first_step, {}).write()
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
    Session(path, 0, {}).write()
    whole = path.read_text()
    if not str(damage).startswith("{"):  # seconds
        content = json.loads(whole)
        content["sessions"][0]["seconds"] = {TRAINING: damage}
        damage = json.dumps(content)
    path.write_text(damage)
    with pytest.raises(ValueError, match=r"sessions\.json"):
        read_sessions(path)


def test_a_disk_without_room_does_not_end_the_run(tmp_path, program, monkeypatch):
    program += [{TRAINING: 1.0}, {TRAINING: 2.0}]
    session = Session(tmp_path / SESSIONS_FILE, 0, {})

    def full(path, value):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records, "write_json", full)
        session.write()
    session.write()
    (found,) = read_sessions(tmp_path / SESSIONS_FILE)
    assert found["seconds"] == {TRAINING: 3.0}
