"""A small program, played on a chip whose numbers are easy."""

import pytest

from benchmarks.compiler.sass import Code
from benchmarks.compiler.schedule import play
from benchmarks.compiler.targets import Chip

# A cycle is a millisecond; the network sends 1 kB a millisecond.
TPU = Chip(10**9, 1e6, 1e6, network_bytes_per_second=1e6, cycles_per_second=1e3)
GPU = TPU._replace(bytes_per_second=1e6 / 0.78, cycles_per_second=None)

# [1000] float32 are gathered from 4 devices: 3 kB sent, 3 ms.
PROGRAM = """
HloModule jit_step, is_scheduled=true, num_partitions=4

%work (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  ROOT %q = f32[1000]{0} tanh(%p)
}

ENTRY %main (x: f32[250], y: f32[1000]) -> f32[1000] {
  %x = f32[250]{0} parameter(0)
  %y = f32[1000]{0} parameter(1)
  %start = (f32[250]{0}, f32[1000]{0}) all-gather-start(%x), replica_groups={}
  BETWEEN
  %done = f32[1000]{0} all-gather-done(%start)
  AFTER
  ROOT %last = f32[1000]{0} bitcast(%done)
}
"""


def kernel(name, cycles):
    costs = f'backend_config={{"estimated_cycles":"{cycles}"}}'
    return f"%{name} = f32[1000]{{0}} fusion(%y), kind=kLoop, calls=%work, {costs}"


PROGRAM_OF_ONE = f"""
%work (p: f32[1000]) -> f32[1000] {{
  ROOT %p = f32[1000]{{0}} parameter(0)
}}

ENTRY %main (y: f32[1000]) -> f32[1000] {{
  %y = f32[1000]{{0}} parameter(0)
  {kernel("a", 0)}
}}
"""
SECOND = "%two = f32[1000]{0} all-reduce(%y), replica_groups=[1,4]<=[4], to_apply=%add"


def played(between="", after="", chip=TPU, own_seconds=0.0):
    text = PROGRAM.replace("BETWEEN", between).replace("AFTER", after)
    found = play(text, chip, own_seconds)
    exposed = {kind: round(1e3 * s, 6) for kind, s in found.exposed_seconds.items()}
    return found, exposed


@pytest.mark.parametrize("cycles, waited", [(1, 2), (7, 0)])
def test_a_device_waits_for_what_its_kernels_do_not_hide(cycles, waited):
    found, exposed = played(kernel("a", cycles))
    assert exposed == {"all-gather": waited}
    assert found.sent_bytes == {"all-gather": 3000}
    assert found.kernel_seconds == pytest.approx(1e-3 * cycles)
    assert found.network_seconds == pytest.approx(3e-3)
    assert found.seconds == pytest.approx(1e-3 * (cycles + waited))


def test_the_network_sends_one_array_after_another():
    """The all-reduce, 6 ms, is waited for in full, and for the gather before it.

    A kernel after the end hides nothing.
    """
    assert played(after=kernel("a", 7))[1] == {"all-gather": 3}
    assert played(between=SECOND)[1] == {"all-reduce": 9, "all-gather": 0}
    assert played(f"{kernel('a', 2)}\n  {SECOND}")[1]["all-reduce"] == 7


def test_a_kernel_without_cycles_takes_as_long_as_its_bytes():
    found, exposed = played(kernel("a", 0), chip=GPU)
    assert found.kernel_seconds == pytest.approx(8e-3), "reads and writes 4 kB"
    assert exposed == {"all-gather": 0}
    assert found.idle_seconds == pytest.approx(2e-6), "until the next one starts"


@pytest.mark.parametrize(
    "blocks, registers, factor",
    [(99, 32, 1 / 0.70), (99, 128, 6.5 / 4), (1, 32, 6.5 * 2)],
    ids=["64 warps", "16", "4 for both"],
)
def test_instructions_take_longer_the_fewer_warps_take_turns(blocks, registers, factor):
    """Two multiprocessors with a cycle a millisecond issue eight instructions in it."""
    chip = GPU._replace(multiprocessors=2, clock=1e3)
    code = Code(blocks, 128, registers, 0, 0, instructions=8 * 100)
    found = play(PROGRAM_OF_ONE, chip, codes={"a": code})
    assert found.kernel_seconds == pytest.approx(0.1 * factor)
    few = code._replace(instructions=4)
    found = play(PROGRAM_OF_ONE, chip, codes={"a": few})
    assert found.kernel_seconds == pytest.approx(8e-3), "its bytes take longer"


def test_a_loop_runs_as_often_as_it_says():
    text = PROGRAM.replace("ENTRY %main", "%body").replace("BETWEEN", kernel("a", 1))
    loop = """
ENTRY %main (z: f32[1000]) -> f32[1000] {
  %z = f32[1000]{0} parameter(0)
  ROOT %w = f32[1000]{0} while(%z), condition=%c, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
}
"""
    found = play(text.replace("AFTER", "") + loop.replace("\\\n", ""), TPU)
    assert found.sent_bytes == {"all-gather": 9000}
    assert found.exposed_seconds["all-gather"] == pytest.approx(6e-3)
