"""The lock on a cache folder: one at a time, and what those who wait are told."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from gpt1_jax.data import locks

HOLD = """
import sys, time
from pathlib import Path
from gpt1_jax.data import locks
with locks.exclusive(Path(sys.argv[1]), print) as doing:
    doing("tokenising 12.0 MB of text")
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_lock_tells_who_holds_it_and_is_free_when_that_process_ends(
    tmp_path, holder, number
):
    said = []

    def say(text):
        said.append(text)
        holder.send_signal(number)

    with locks.exclusive(tmp_path, say):
        holder.wait()
    (line,) = said
    assert f"process {holder.pid} on " in line
    assert ", tokenising 12.0 MB of text; waiting" in line
    assert str(tmp_path) in line


def test_lock_reminds_those_who_wait(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(locks, "_REMIND_SECONDS", 0.5)
    said = []

    def say(text):
        said.append(text)
        if len(said) == 3:
            holder.kill()

    with locks.exclusive(tmp_path, say):
        pass
    assert len(said) >= 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 3}', "null"])
def test_lock_without_a_note_is_still_waited_for(tmp_path, holder, content):
    (tmp_path / locks.NOTE_FILE).write_text(content)
    said = []

    def say(text):
        said.append(text)
        holder.kill()

    with locks.exclusive(tmp_path, say):
        pass
    assert "in use by another process; waiting" in said[0]


def test_lock_lets_one_in_at_a_time(tmp_path):
    inside, most = [], []

    def work():
        with locks.exclusive(tmp_path, lambda _: None) as doing:
            doing("working")
            inside.append(None)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_lock_note_names_this_process_and_is_gone_afterwards(tmp_path):
    with locks.exclusive(tmp_path, print) as doing:
        doing("reading a much longer list of things")
        doing("reading")
        note = json.loads((tmp_path / locks.NOTE_FILE).read_text())
        assert (note["pid"], note["doing"]) == (os.getpid(), "reading")
    assert not (tmp_path / locks.NOTE_FILE).exists()


def test_lock_is_done_without_where_there_are_none(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locks.exclusive(tmp_path, print):
        pass
