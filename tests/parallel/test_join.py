"""Which processes join, and what they say when they cannot."""

import contextlib
import os
import socket

import jax
import pytest
from joined import LAUNCHERS, OURS, addresses, free_port, start_script

from gpt1_jax.errors import UserError
from gpt1_jax.parallel import join
from gpt1_jax.parallel.join import Waits, count_processes, initialize_processes
from gpt1_jax.parallel.processes import EXIT_AGAIN

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-4]",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}


@pytest.fixture
def joined(monkeypatch):
    """The arguments of each call of `jax.distributed.initialize`, which joins none."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    calls = []

    def initialize(
        coordinator_address=None, num_processes=None, process_id=None, **waits
    ):
        calls.append((coordinator_address, num_processes, process_id))

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    return calls


def ours(address, count, index):
    """Our own variables, those that are set."""
    values = zip(OURS, (address, count, index), strict=True)
    return {name: value for name, value in values if value}


@pytest.mark.parametrize(
    ("variables", "joins"),
    [
        ({}, None),
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
        ({**SLURM, "SLURM_NTASKS": "4"}, (None, None, None)),
        (
            {"OMPI_MCA_orte_hnp_uri": "0;tcp://h:1", "OMPI_COMM_WORLD_SIZE": "2"},
            (None, None, None),
        ),
        (ours("[::1]:1234", "2", "1"), ("[::1]:1234", 2, 1)),
        (ours("host-0:1234", "1", "0"), None),
    ],
    ids=str,
)
def test_auto_joins_where_several_are_started(joined, monkeypatch, variables, joins):
    """By a launcher, or as our own variables have it."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for mode in ("auto", "off"):
        initialize_processes(mode, Waits())
        assert joined == ([joins] if joins else [])


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        (ours("host-0:1234", "", ""), "set without JAX_NUM_PROCESSES and JAX_PROCESS"),
        (ours("host-0:1234", "two", "0"), "JAX_NUM_PROCESSES='two'"),
        (ours("host-0", "4", "2"), "as HOST:PORT of process 0"),
        (ours("host-0:1234", "4", "4"), "counted from 0"),
        ({**SLURM, "SLURM_NTASKS": "many"}, "a launcher, but not its .*: .*'many'"),
    ],
    ids=str,
)
def test_variables_that_name_no_process_are_refused(
    joined, monkeypatch, variables, problem
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"{problem}.*--distributed=off"):
        initialize_processes("auto", Waits())
    assert joined == []
    assert count_processes("off") == 1


def test_on_joins_without_asking(joined, monkeypatch):
    monkeypatch.setattr(join, "_count_in_cluster", lambda: 1)
    initialize_processes("on", Waits())
    assert len(joined) == 1


def test_on_fails_where_nobody_says_whom_to_join(joined, monkeypatch):
    monkeypatch.setattr(join, "Watchdog", lambda *_: contextlib.nullcontext())

    def initialize(**_):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(ValueError, match=r"address should be.*set JAX_COORD.*=off"):
        initialize_processes("on", Waits())


# Joins, as the program does, and tells what it sees.
JOIN = """
import os, sys
import jax
os.environ.pop("TPU_SKIP_MDS_QUERY", None)  # JAX sets it where it sees no TPU chips
from gpt1_jax.parallel import join
try:
    waits = join.Waits(initialization=int(sys.argv[1]))
    join.initialize_processes("auto", waits)
except ValueError as error:
    sys.exit(str(error))
print("process", jax.process_index(), "of", jax.process_count())
"""


def test_a_machine_with_tpu_chips_and_without_a_metadata_server_runs_alone():
    nobody = f"localhost:{free_port()}"
    tpu = {"GCE_METADATA_IP": nobody, "JAX_FORCE_TPU_INIT": "1"}
    started = start_script(JOIN, 1, **tpu)
    output = started.communicate(timeout=60)[0]
    assert started.returncode == 0 and "process 0 of 1" in output, output
    assert "Running alone: no metadata server" in output


def test_processes_that_do_not_come_end_the_wait_with_one_line():
    """Process 0 of two that is alone, and process 1 without it."""
    started = [start_script(JOIN, 2, **addresses()[index]) for index in range(2)]
    for process in started:
        output = process.communicate(timeout=60)[0]
        assert process.returncode == EXIT_AGAIN, output
        assert output.startswith("gpt1_jax: the other processes did not all join at lo")
        assert "initialization_seconds=2" in output and output.count("\n") == 1


def test_a_port_in_use_is_refused(joined, monkeypatch):
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        for name, value in ours(address, "2", "0").items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=rf"{address}.*in use.*another port"):
            initialize_processes("auto", Waits())
    assert joined == []
