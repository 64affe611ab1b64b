"""Which processes join, and which rows and decisions are theirs."""

import jax
import numpy as np
import pytest

from gpt1_jax.parallel import processes
from gpt1_jax.parallel.processes import (
    agree,
    host_rows,
    initialize_processes,
    is_main_process,
)

VARIABLES = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
    "MEGASCALE_COORDINATOR_ADDRESS",
)


@pytest.fixture
def joined(monkeypatch):
    """The arguments of each call of `jax.distributed.initialize`, which joins none."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a: calls.append(a))
    return calls


@pytest.mark.parametrize(
    ("variables", "joins"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "host-0,host-1"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "host-0"}, True),
    ],
    ids=str,
)
def test_auto_joins_where_a_launcher_started_several(
    joined, monkeypatch, variables, joins
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    initialize_processes("auto")
    assert joined == [()] * joins


def test_off_never_joins_and_on_always_does(joined, monkeypatch):
    initialize_processes("on")
    assert joined == [()]
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    initialize_processes("off")
    assert joined == [()]


def test_our_own_variables_name_coordinator_count_and_process(joined, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host-0:1234")
    initialize_processes("auto")
    assert joined == [()], "JAX reads the address itself"
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "2")
    initialize_processes("auto")
    assert joined[1:] == [("host-0:1234", 4, 2)]


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
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    heard = []

    def broadcast(value):
        heard.append(bool(value))
        return np.asarray(True)  # what the main process said

    monkeypatch.setattr(processes.multihost_utils, "broadcast_one_to_all", broadcast)
    assert agree(False) is True
    assert heard == [False]
