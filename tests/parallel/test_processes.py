"""What processes tell each other, which rows are theirs, how a stuck one ends."""

import signal
import time

import jax
import numpy as np
from joined import start_script

from gpt1_jax.parallel import processes
from gpt1_jax.parallel.processes import (
    Watchdog,
    agree,
    gather,
    host_rows,
    is_lost,
    is_main_process,
)


def test_what_the_end_of_another_process_looks_like(monkeypatch):
    gone = ValueError("UNKNOWN: Gloo AllGather failed: connection closed by peer")
    assert not is_lost(gone), "there is no other"
    monkeypatch.setattr(processes, "is_joined", lambda: True)
    assert is_lost(gone)
    assert is_lost(jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out."))
    late = TimeoutError("Timed out while waiting for a barrier.")
    assert not is_lost(late)
    late.__cause__ = gone
    assert is_lost(late)
    assert not is_lost(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert not is_lost(ValueError("config.data.train names no file of gloo/barrier"))


def test_host_rows_split_a_batch_among_the_processes(monkeypatch):
    assert host_rows(12) == slice(0, 12)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    parts = []
    for index in range(3):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        assert is_main_process() == (index == 0)
        parts.extend(np.arange(12)[host_rows(12)])
    assert parts == list(range(12))


def test_agree_is_the_value_of_the_main_process(monkeypatch):
    assert agree(True) is True
    assert agree(False) is False
    assert gather("text") == ["text"]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    heard = []

    def broadcast(value):
        heard.append(bool(value))
        return np.asarray(True)  # what the main process said

    monkeypatch.setattr(processes.multihost_utils, "broadcast_one_to_all", broadcast)
    assert agree(False) is True
    assert heard == [False]


STUCK = """
import time
from gpt1_jax.parallel.processes import Watchdog

def wait_for_ever():
    time.sleep(60)

with Watchdog(0.8, "stuck here.", 75, traces={traces}) as watchdog:
    for _ in range(5):
        watchdog.hear()
        time.sleep(0.2)
    print("alive", flush=True)
    wait_for_ever()
"""


STOPPED = """
import time
from gpt1_jax.parallel.processes import Watchdog

with Watchdog(0.8, "stuck here.", 75) as watchdog:
    print("begun", flush=True)
    for _ in range(4):
        watchdog.hear()
        for _ in range(5):  # a step
            time.sleep(0.1)
print("done", flush=True)
"""


def test_silence_ends_the_process_with_a_line_and_its_code():
    """One of two shows the stack of every thread before.

    Time in which a process is stopped is no silence, as by Ctrl-Z until `fg`.
    """
    started = [start_script(STUCK.format(traces=traces)) for traces in (False, True)]
    stopped = start_script(STOPPED)
    assert stopped.stdout.readline() == "begun\n"
    time.sleep(0.3)
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(2)
    stopped.send_signal(signal.SIGCONT)
    said, traced = (process.communicate(timeout=30)[0] for process in started)
    assert [process.returncode for process in started] == [75, 75]
    assert said == "alive\ngpt1_jax: stuck here.\n"
    assert traced.startswith("alive\n")
    assert "in wait_for_ever" in traced and "in _watch" in traced
    assert traced.endswith("\ngpt1_jax: stuck here.\n")
    assert stopped.communicate(timeout=30)[0] == "done\n"
    assert stopped.returncode == 0


def test_nothing_ends_after_the_block_or_without_a_limit():
    with Watchdog(0.2, "still watching.", 1), Watchdog(0, "watching nothing.", 1):
        pass
    time.sleep(0.4)
