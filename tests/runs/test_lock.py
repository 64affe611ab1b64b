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
from gpt1_jax.runs import lock
try:
    with lock.owned(epath.Path(sys.argv[1])):
        print("owner", flush=True)
        input()
except lock.FolderInUse:
    print("refused", flush=True)
"""


@pytest.fixture
def start(folder):
    """`start()`: a process that owns the folder, if it can."""
    started = []

    def start():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", HOLD, folder]
        started.append(subprocess.Popen(command, **pipes, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_lock_is_respected_until_its_process_is_killed(folder, start, capsys):
    """Whatever its process number means here: containers have their own."""
    process = start()
    assert process.stdout.readline() == "owner\n"
    with pytest.raises(lock.FolderInUse, match=str(process.pid)), lock.owned(folder):
        pass
    process.send_signal(signal.SIGSTOP)  # and has not counted for long
    with pytest.raises(lock.FolderInUse), lock.owned(folder):
        pass
    capsys.readouterr()
    process.kill()  # and nobody has waited for it
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with lock.owned(folder):
        pass
    assert "waiting" not in capsys.readouterr().out


LEFT = {"owner": "other", "count": 0}


@pytest.mark.parametrize(
    ("text", "watched"),
    [
        (json.dumps({**LEFT, "host": "elsewhere", "pid": 1}), "1 on elsewhere; wait"),
        # Two containers on one network have one host name, and their own numbers.
        (
            json.dumps({**LEFT, "host": "h", "pid": 2**22 + 1, "machine": "another"}),
            "on h; waiting up to .* to see whether it still runs",
        ),
        *((text, "") for text in ("", "[]", "null", "{", '{"host": 3, "pid": "x"}')),
    ],
)
def test_a_lock_that_nobody_counts_is_taken_over(
    folder, impatient, capsys, text, watched
):
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


def test_of_two_that_start_at_once_one_owns_the_folder(start):
    processes = [start() for _ in range(2)]
    said = [process.stdout.readline() for process in processes]
    assert sorted(said) == ["owner\n", "refused\n"]


@pytest.mark.parametrize("name", ["run.lock", ".lock", "latest", "a/b/deep"])
def test_nothing_is_written_through_a_link_in_a_folder(tmp_path, name):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(victim)
    for _ in range(2):
        with lock.owned(epath.Path(folder)):
            pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("unmounted/run", "is a link to unmounted/run, and nothing is there; mount"),
        ("checkpoints", "is a link to checkpoints, and nothing is there"),  # itself
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


def test_a_folder_may_be_reached_through_a_link_but_must_be_made(tmp_path):
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    with lock.owned(epath.Path(tmp_path / "home" / "run")):
        assert (tmp_path / "disk/run/run.lock").exists()
    (tmp_path / "file").touch()
    refused = pytest.raises(PermissionError, match="--workdir=DIR")
    with refused, lock.owned(epath.Path(tmp_path) / "file" / "run"):
        pass
