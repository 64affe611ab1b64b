import json
import os
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


def test_the_owner_is_named_and_the_lock_goes_with_it(folder):
    with lock.owned(folder):
        held = json.loads((folder / lock.LOCK_FILE).read_text())
        assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
    assert not (folder / lock.LOCK_FILE).exists()


def test_a_second_owner_is_refused_and_told_the_way_out(folder):
    with lock.owned(folder):
        with pytest.raises(lock.FolderInUse) as error, lock.owned(folder):
            pass
        for part in ("by this same process, in another job", "--workdir"):
            assert part in str(error.value)
        assert (folder / lock.LOCK_FILE).exists()


HOLD = """
import sys
from etils import epath
from gpt1_jax.data import owner
from gpt1_jax.errors import UserError
from gpt1_jax.runs import lock
owner.machine_id = lambda: sys.argv[2]
with lock.owned(epath.Path(sys.argv[1])):
    print("owner", flush=True)
    input()
"""


@pytest.fixture
def another(folder):
    """`another(machine)`: a process that owns the folder, as if on a machine."""
    started = []

    def start(machine=None):
        arguments = [sys.executable, "-c", HOLD, folder, machine or owner.machine_id()]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(arguments, **pipes, text=True)
        started.append(process)
        assert process.stdout.readline() == "owner\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_lock_of_a_process_at_work_is_respected(folder, another):
    """Whatever its process number means here: containers have their own."""
    process = another()
    with (
        pytest.raises(lock.FolderInUse, match=str(process.pid)),
        lock.owned(folder),
    ):
        pass
    process.send_signal(signal.SIGSTOP)  # and has not counted for long
    with pytest.raises(lock.FolderInUse), lock.owned(folder):
        pass


def test_a_lock_is_free_when_its_process_is_killed(folder, another, capsys):
    """At once, and although nobody has waited for the killed process."""
    process = another()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with lock.owned(folder):
        pass
    assert "waiting" not in capsys.readouterr().out


def test_a_process_number_that_is_unknown_here_proves_nothing(
    folder, impatient, capsys
):
    """Two containers on one network have one host name, and their own numbers."""
    write_lock(folder, pid=2**22 + 1, machine="another")
    with lock.owned(folder):
        pass
    assert "to see whether it still runs" in capsys.readouterr().out


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


def test_a_lock_that_another_machine_left_is_taken_over(folder, impatient, capsys):
    write_lock(folder, host="elsewhere", pid=1)
    with lock.owned(folder):
        held = json.loads((folder / lock.LOCK_FILE).read_text())
        assert held["host"] == socket.gethostname()
    assert "elsewhere" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"host": 3, "pid": "x"}'])
def test_a_damaged_lock_is_no_obstacle(folder, impatient, text):
    folder.mkdir(parents=True)
    (folder / lock.LOCK_FILE).write_text(text)
    with lock.owned(folder):
        pass


def test_the_owner_counts_up_while_it_works(folder, impatient):
    with lock.owned(folder):
        deadline = time.monotonic() + 10
        while json.loads((folder / lock.LOCK_FILE).read_text())["count"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_of_many_that_start_at_once_one_owns_the_folder(tmp_path):
    code = (
        "import sys, time\n"
        "from etils import epath\n"
        "from gpt1_jax.runs import lock\n"
        "try:\n"
        "    with lock.owned(epath.Path(sys.argv[1])):\n"
        "        print('owner', flush=True)\n"
        "        input()\n"
        "except lock.FolderInUse:\n"
        "    print('refused', flush=True)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    first = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate("\n")
    assert sorted(first) == ["owner", "refused", "refused"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    folder = epath.Path(tmp_path) / "file" / "run"
    with pytest.raises(PermissionError, match=r"--workdir=DIR"), lock.owned(folder):
        pass


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
        ("unmounted/run", "link to unmounted/run, and nothing is there; mount"),
        ("checkpoints", "link to checkpoints, and nothing is there"),  # itself
        ("/dev/zero", "is a device or a pipe"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused(tmp_path, target, problem):
    """A run would otherwise begin anew beside what is on a disk of its own."""
    (tmp_path / "checkpoints").symlink_to(target)
    (tmp_path / "of the user").symlink_to(target)
    with (
        pytest.raises(UserError, match=f"checkpoints is a.*{problem}|{problem}"),
        lock.owned(epath.Path(tmp_path)),
    ):
        pass


def test_a_folder_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    with lock.owned(epath.Path(tmp_path / "home" / "run")):
        assert (tmp_path / "disk/run/run.lock").exists()
