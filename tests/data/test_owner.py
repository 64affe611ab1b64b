"""The owner of a folder: one at a time, and what those who wait are told."""

import concurrent.futures
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from gpt1_jax.data import owner
from gpt1_jax.data.files import read_record

HOLD = """
import sys, time
from pathlib import Path
from gpt1_jax.data import owner
with owner.exclusive(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_lock_tells_who_holds_it_and_is_free_when_that_process_ends(tmp_path, number):
    command, said = [sys.executable, "-c", HOLD, str(tmp_path)], []

    def say(text):
        said.append(text)
        holder.send_signal(number)

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with owner.exclusive(tmp_path, say):
            holder.wait()
    (line,) = said
    assert line.startswith(f"{tmp_path} is in use by process {holder.pid} on ")
    assert "; waiting (" in line


def test_lock_lets_one_in_at_a_time_whose_lease_names_it(tmp_path):
    inside, most = [], []

    def work():
        with owner.exclusive(tmp_path, lambda _: None):
            inside.append(None)
            most.append(len(inside))
            lease = json.loads((tmp_path / owner.LEASE_FILE).read_text())
            most.append((lease["pid"], lease["host"]))
            time.sleep(0.02)
            inside.pop()

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            pool.submit(work)
    assert most == [1, (os.getpid(), socket.gethostname())] * 3
    assert not (tmp_path / owner.LEASE_FILE).exists()


@pytest.fixture
def without_locks(tmp_path, monkeypatch, request):
    """A folder without the system's locks, where owners are watched for a moment."""
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(owner, "PATIENCE_SECONDS", 0.3)
    if not (code := getattr(request, "param", None)):
        monkeypatch.setattr(owner, "is_remote", lambda path: True)  # a bucket

    def refuse(*_):
        raise OSError(code, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    return tmp_path


@pytest.mark.parametrize(
    "without_locks", [None, errno.ENOTSUP, errno.ENOSYS], indirect=True
)
def test_where_there_are_no_locks_a_lease_is_taken_from_the_dead(without_locks):
    """Even of this machine: there, nothing tells at once."""
    lease = without_locks / owner.LEASE_FILE
    killed = {"owner": "x", "host": "host-7", "pid": 12, "count": 3}
    lease.write_text(json.dumps({**killed, "machine": owner.machine_id()}))
    said = []
    with owner.exclusive(without_locks, said.append):
        while read_record(lease).get("count", 0) < 2:
            time.sleep(0.01)
        assert read_record(lease)["pid"] == os.getpid()
    (line,) = said
    assert line.startswith(f"{without_locks} is in use by process 12 on host-7; wait")
    assert not lease.exists()


def test_of_two_that_see_no_lease_the_last_to_write_has_it(without_locks, monkeypatch):
    write, written = owner.write_json, []

    def write_then_another(path, record):
        write(path, record)
        if not written:
            written.append(path)
            write(path, {**record, "owner": "another"})

    monkeypatch.setattr(owner, "write_json", write_then_another)
    with pytest.raises(owner.Held), owner.own(without_locks, "lease", lambda _: None):
        pass
    assert json.loads((without_locks / "lease").read_text())["owner"] == "another"
