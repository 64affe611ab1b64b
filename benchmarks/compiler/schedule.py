"""Plays a compiled program's schedule on a clock: how long a device waits for others.

A kernel advances the device's clock. An asynchronous collective queues on the network
when it starts, and where it ends the device waits for what is left of it; a synchronous
one is waited for in full.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.compiler import hlo
from benchmarks.compiler.sass import Code
from benchmarks.compiler.targets import Chip

# Shares of the full rates that kernels reach on an H200, where the compiler gives no
# cycles. A multiprocessor issues four instructions of warps in a cycle.
_BYTES_REACHED = 0.78
_FLOPS_REACHED = 0.76
_ISSUE_REACHED = 0.70
_SCHEDULERS = 4  # of a multiprocessor
_LATENCY = 6.5  # cycles between instructions of a warp, which waits for its own results
_LEAST_SECONDS, _IDLE_SECONDS = 1.4e-6, 2e-6  # of any kernel; from one to the next
_OWN = 'custom_call_target="tpu_custom_call"'  # kernels of ours, which have no cycles


class Schedule(NamedTuple):
    """What one run of a program takes on one device, as estimated."""

    kernel_seconds: float  # by the compiler's cycles, or at the rates above
    own_seconds: float  # of our own kernels for TPUs, as given
    idle_seconds: float  # between kernels of a GPU
    exposed_seconds: dict[str, float]  # waited for others, by kind of collective
    sent_bytes: dict[str, float]  # by a device, by kind of collective
    network_seconds: float  # to send them, hidden or not

    @property
    def seconds(self) -> float:
        exposed = sum(self.exposed_seconds.values())
        return self.kernel_seconds + self.own_seconds + self.idle_seconds + exposed


def play(
    text: str,
    chip: Chip,
    own_seconds: float = 0.0,
    codes: Mapping[str, Code] | None = None,
) -> Schedule:
    """Plays one run of a program on one of its devices.

    Args:
      text: optimized and scheduled HLO, as `compiled.as_text()` gives it.
      chip: the device.
      own_seconds: what all kernels of ours for TPUs take together.
      codes: for a GPU, the machine code of its instructions (`sass.read`).
    """
    program = hlo.Program(text, codes)
    num_own = sum(
        times * (_OWN in instruction.attributes)
        for instructions, times in program.runs()
        for instruction in instructions
    )
    player = _Player(program, chip, own_seconds / max(1, num_own))
    player.play(program.entry)
    return Schedule(
        player.kernel_seconds,
        player.own_seconds,
        player.idle_seconds,
        dict(player.exposed),
        dict(player.sent),
        sum(player.sent.values()) / chip.network_bytes_per_second,
    )


def kernel_seconds(kernel: hlo.Kernel, chip: Chip) -> float | None:
    """What one execution takes; None if a TPU's compiler gives no cycles.

    On a GPU it takes the longest of its bytes, its products and its instructions, each
    at the rate that kernels reach.
    """
    if chip.cycles_per_second:
        return None if kernel.cycles is None else kernel.cycles / chip.cycles_per_second
    times = [
        kernel.bytes / (_BYTES_REACHED * chip.bytes_per_second),
        kernel.flops / (_FLOPS_REACHED * chip.flops_per_second),
    ]
    code = kernel.code
    if code and code.instructions and chip.clock:
        there = code.blocks * code.warps / chip.multiprocessors
        warps = min(there, code.resident_warps) / _SCHEDULERS
        rate = _SCHEDULERS * min(_ISSUE_REACHED, warps / _LATENCY)
        issued = code.instructions / chip.multiprocessors
        times.append(issued / (rate * chip.clock))
    return max(*times, _LEAST_SECONDS)


class _Player:
    """The clocks of a device and of its network."""

    def __init__(self, program: hlo.Program, chip: Chip, seconds_of_own: float):
        self.kernel_seconds = self.own_seconds = self.idle_seconds = 0.0
        self.exposed: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._program, self._chip = program, chip
        self._seconds_of_own = seconds_of_own
        self._now = self._network_free = 0.0
        self._times: dict[str, float] = {}  # of kernels, by name

    def play(self, computation: str) -> None:
        """Plays the schedule of a computation."""
        ends: dict[str, float] = {}  # when collectives under way have arrived
        for event in self._program.events(self._program.computations[computation]):
            if event.begins:
                ends[event.token] = self._send(event.begins)
            if event.ends:
                wait = max(0.0, ends.pop(event.token) - self._now)
                self.exposed[event.ends.kind] += wait
                self._now += wait
            if not (event.begins or event.ends):
                self._run(event.instruction)

    def _send(self, collective: hlo.Collective) -> float:
        """Queues a collective on the network; returns when it will have arrived."""
        self.sent[collective.kind] += collective.sent
        start = max(self._now, self._network_free)
        seconds = collective.sent / self._chip.network_bytes_per_second
        self._network_free = start + seconds
        return self._network_free

    def _run(self, instruction: hlo.Instruction) -> None:
        """Advances the clock by a kernel, or by the computations it calls."""
        if instruction.op in hlo.CONTROL:
            for called, times in self._program.calls(instruction):
                for _ in range(times):
                    self.play(called)
        elif _OWN in instruction.attributes:
            self.own_seconds += self._seconds_of_own
            self._now += self._seconds_of_own
        elif not hlo.is_free(instruction):
            if instruction.name not in self._times:
                kernel = hlo.kernel(self._program, instruction)
                seconds = kernel_seconds(kernel, self._chip) or 0.0
                self._times[instruction.name] = seconds
            seconds = self._times[instruction.name]
            idle = 0.0 if self._chip.cycles_per_second else _IDLE_SECONDS
            self.kernel_seconds += seconds
            self.idle_seconds += idle
            self._now += seconds + idle
