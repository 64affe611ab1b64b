import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from etils import epath

from gpt1_jax.data import owner
from gpt1_jax.errors import UserError
from gpt1_jax.runs import lock


@pytest.fixture
def folder(tmp_path):
    return epath.Path(tmp_path) / "run"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(owner, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.02)


def write_lock(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    record = {"owner": "other", "host": socket.gethostname(), "count": 0, **values}
    (folder / lock.LOCK_FILE).write_text(json.dumps(record))


def test_the_owner_counts_up_and_a_second_one_is_told_the_way_out(folder, impatient):
    with lock.owned(folder):
        deadline = time.monotonic() + 10
        while (held := json.loads((folder / lock.LOCK_FILE).read_text()))["count"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
        ours = "by this same process, in another job .* name another --workdir"
        with pytest.raises(lock.FolderInUse, match=ours), lock.owned(folder):
            pass
        assert (folder / lock.LOCK_FILE).exists()
    assert not (folder / lock.LOCK_FILE).exists()


HOLD = """
import sys
from etils import epath
from gpt1_jax.data import owner
with owner.own(epath.Path(sys.argv[1]), sys.argv[2], print):
    print("owner", flush=True)
    input()
"""


def test_a_lock_is_respected_until_its_process_is_killed(folder, capsys):
    """Whatever its process number means here: containers have their own."""

    def refused(match):
        with pytest.raises(lock.FolderInUse, match=match), lock.owned(folder):
            pass

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", HOLD, folder, lock.LOCK_FILE]
    folder.mkdir()
    with subprocess.Popen(command, **pipes, text=True) as process:
        try:
            assert process.stdout.readline() == "owner\n"
            refused(str(process.pid))
            process.send_signal(signal.SIGSTOP)  # and has not counted for long
            refused("in use")
            capsys.readouterr()
        finally:
            process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie
        with lock.owned(folder):
            pass
    assert "waiting" not in capsys.readouterr().out


LEFT = {"owner": "other", "count": 0}


@pytest.mark.parametrize(
    ("text", "watched"),
    [
        (json.dumps({**LEFT, "host": "elsewhere", "pid": 1}), "1 on elsewhere; wait"),
        # Two containers on one network have one host name, and their own numbers.
        (json.dumps({**LEFT, "host": "h", "pid": 9, "machine": "x"}), "on h; waiting"),
        *((text, "") for text in ("", "[]", '{"host": 3, "pid": "x"}')),
    ],
)
def test_a_lock_nobody_counts_is_taken_over(folder, impatient, capsys, text, watched):
    folder.mkdir()
    (folder / lock.LOCK_FILE).write_text(text)
    with lock.owned(folder):
        held = json.loads((folder / lock.LOCK_FILE).read_text())
        assert held["host"] == socket.gethostname()
    assert re.search(watched, capsys.readouterr().out)


def test_an_owner_that_lost_its_folder_stops(folder, impatient):
    with lock.owned(folder):
        lock.check_owned()
        write_lock(folder, host="elsewhere", pid=7, machine="another")
        time.sleep(owner.PATIENCE_SECONDS)
        with pytest.raises(lock.FolderInUse, match="7 on elsewhere has taken over"):
            lock.check_owned()
    assert json.loads((folder / lock.LOCK_FILE).read_text())["host"] == "elsewhere"
    lock.check_owned()  # it owns nothing any more


def test_another_machine_at_work_is_respected(folder, monkeypatch):
    monkeypatch.setattr(owner, "PATIENCE_SECONDS", 20.0)  # ends with the first count
    write_lock(folder, host="elsewhere", pid=1)
    stop = threading.Event()

    def work():
        for count in range(1000):
            if stop.wait(0.02):
                return
            write_lock(folder, host="elsewhere", pid=1, count=count)

    other = threading.Thread(target=work)
    other.start()
    try:
        with pytest.raises(lock.FolderInUse, match="elsewhere"), lock.owned(folder):
            pass
    finally:
        stop.set()
        other.join()


@pytest.mark.parametrize("name", ["run.lock", ".lock"])
def test_nothing_is_written_through_a_link_in_a_folder(tmp_path, name):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    for _ in range(2):
        with lock.owned(epath.Path(folder)):
            pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("unmounted/run", "is a link to unmounted/run, and nothing is there; mount"),
        ("/dev/zero", "is a device or a pipe"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused(tmp_path, target, problem):
    """A run would otherwise begin anew beside what is on a disk of its own."""
    (tmp_path / "checkpoints").symlink_to(target)
    (tmp_path / "of the user").symlink_to(target)
    refused = pytest.raises(UserError, match=f"/checkpoints {problem}")
    with refused, lock.owned(epath.Path(tmp_path)):
        pass


def test_a_folder_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    with lock.owned(epath.Path(tmp_path / "home" / "run")):
        assert (tmp_path / "disk/run/run.lock").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(PermissionError, match="--workdir=DIR")
    with refused, lock.owned(epath.Path(tmp_path) / "file" / "run"):
        pass
