"""All processes of a command have one configuration and one run folder."""

import dataclasses
import platform
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from tiny_run import job_config

from gpt1_jax.parallel import processes
from gpt1_jax.runs.agreement import check_processes


@pytest.fixture
def asked(monkeypatch):
    """`asked(configs, folders)`: what two processes are told; here they are threads."""
    here, given = threading.local(), [None, None]
    barrier = threading.Barrier(2, timeout=60)

    def gather(value):
        given[here.index] = value
        barrier.wait()
        everyones = np.stack(given)
        barrier.wait()
        return everyones

    def ask(index, config, folder):
        here.index = index
        try:
            check_processes(config, str(folder))
            return "agreed"
        except (ValueError, OSError) as error:
            return str(error)

    def both(configs, folders):
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(ask, range(2), configs, folders))

    across = processes.multihost_utils
    monkeypatch.setattr(across, "process_allgather", gather)
    monkeypatch.setattr(across, "broadcast_one_to_all", lambda value: gather(value)[0])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: getattr(here, "index", 0))
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 0.1)
    return both


def test_processes_that_differ_all_say_in_what(asked, tmp_path, monkeypatch):
    config, run = job_config("pretrain", "quickstart"), tmp_path / "run"
    data = dataclasses.replace(config.data, cache_dir="mine", num_workers=2)
    elsewhere = dataclasses.replace(config, data=data)  # of one machine alone
    assert asked([config, elsewhere], [run, run]) == ["agreed", "agreed"]
    other = dataclasses.replace(config, seed=config.seed + 1)
    for said in asked([other, config], [run, run]):
        assert "config.seed is 0 on process 1, 1 on process 0" in said
        assert "the same installation" in said
    for said in asked([config, config], [tmp_path / "a", tmp_path / "b"]):
        assert f"folder of process 1, {tmp_path}/b on " in said and "gs://" in said
    for said in asked([config, config], ["/proc/run", "/proc/run"]):
        assert "Process 0 cannot write to the run folder /proc/run" in said
    monkeypatch.setattr(platform, "python_version", lambda: jax.process_index())
    for said in asked([config, config], [run, run]):
        assert "version of python is 1 on process 1, 0 on process 0" in said
    assert not list(run.iterdir())
