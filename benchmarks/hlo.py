"""Reads what XLA made of a program: what its devices exchange, and when."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_STARTS = ("async-start", *(f"{kind}-start" for kind in _KINDS))
_DONES = ("async-done", *(f"{kind}-done" for kind in _KINDS))
# What keeps a device busy; other operations move arrays, or only name them.
_WORK = {"fusion", "dot", "convolution", "custom-call", "while", "call", "conditional"}

_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%?([\w.\-]+) = (.+?) ([a-z][a-z\-]*)\(([^)]*)\)(.*)"
)
_CALLED = re.compile(
    r"(?:calls|to_apply|body|\w+_computations?)=(?:\{([^}]*)\}|(%?[\w.\-]+))"
)
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Collective(NamedTuple):
    """An operation in which devices exchange data."""

    kind: str  # "all-reduce", "all-gather", ..
    shapes: tuple[tuple[int, ...], ...]  # of the arrays that a device gets
    bytes: int  # of its operands or its results on one device, whichever are larger
    overlaps: bool  # whether the device does other work between its start and its end


class _Instruction(NamedTuple):
    name: str
    type: str
    op: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.arguments)

    @property
    def called(self) -> list[str]:
        """The computations that it consists of."""
        found = _CALLED.finditer(self.attributes)
        names = ",".join(match[1] or match[2] for match in found)
        return re.findall(r"[\w.\-]+", names)


def collectives(text: str) -> Counter[Collective]:
    """The collective operations of a program, and how often one run executes each.

    A loop counts as often as it runs; each branch of a conditional counts once.

    Args:
      text: optimized HLO, as `compiled.as_text()` gives it.
    """
    program = _Program(text)
    total: Counter[Collective] = Counter()
    for collective, times in program.executed(program.entry):
        total[collective] += times
    return total


class _Program:
    """The computations of a program: instructions in the order they are executed."""

    def __init__(self, text: str):
        self.entry = ""
        self._computations: dict[str, list[_Instruction]] = {}
        current: list[_Instruction] = []
        for line in text.splitlines():
            if head := _HEAD.match(line):
                current = self._computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else self.entry
            elif match := _INSTRUCTION.match(line):
                current.append(_Instruction(*match.groups()))

    def executed(self, name: str) -> Iterator[tuple[Collective, int]]:
        """The collectives of a computation, and of those that it runs."""
        instructions = self._computations[name]
        for instruction in instructions:
            if instruction.op in ("while", "call", "conditional"):
                times = self._trips(instruction) if instruction.op == "while" else 1
                for called in instruction.called:
                    for collective, inner in self.executed(called):
                        yield collective, times * inner
        for collective in self._exchanges(instructions):
            yield collective, 1

    def _exchanges(self, instructions: list[_Instruction]) -> Iterator[Collective]:
        """The collectives of one computation, ends joined to their starts."""
        under_way: dict[str, tuple[Collective, int]] = {}  # and the work done before
        work = 0
        for instruction in instructions:
            found = self._collective(instruction, instructions)
            token = self._token(instruction)
            if instruction.op in _DONES or self._has(instruction, "CollectiveDone"):
                collective, before = under_way.pop(token, (None, 0))
                if collective:
                    yield collective._replace(overlaps=work > before)
            elif instruction.op in _STARTS or self._has(instruction, "CollectiveStart"):
                if found:
                    under_way[token] = found, work
            else:
                work += instruction.op in _WORK
                if found and token not in under_way:
                    yield found

    def _token(self, instruction: _Instruction) -> str:
        """What start and end of an asynchronous operation have in common."""
        if instruction.op in _STARTS:
            return instruction.name
        if instruction.op in _DONES:
            return instruction.operands[0]
        inside = self._inside(instruction)
        channels = (re.search(r"channel_id=\d+", i.attributes) for i in inside)
        return next((channel[0] for channel in channels if channel), "")

    def _collective(
        self, instruction: _Instruction, siblings: list[_Instruction]
    ) -> Collective | None:
        """What an instruction, or the computation fused into it, exchanges."""
        if instruction.op in ("while", "call", "conditional", *_DONES):
            return None
        if instruction.op.removesuffix("-start") in _KINDS:
            return _described(instruction, siblings)
        for name in instruction.called:
            fused = self._computations.get(name, [])
            for inner in fused:
                if found := self._collective(inner, fused):
                    if not name.startswith("all-reduce-scatter"):
                        return found
                    # TPU: an all-reduce of which each device keeps a part.
                    shapes = tuple(shape for shape, _ in _arrays(instruction.type))
                    return found._replace(kind="reduce-scatter", shapes=shapes)
        return None

    def _inside(self, instruction: _Instruction) -> Iterator[_Instruction]:
        """An instruction, and those of the computations fused into it."""
        yield instruction
        if instruction.op == "fusion":
            for name in instruction.called:
                for inner in self._computations.get(name, []):
                    yield from self._inside(inner)

    def _has(self, instruction: _Instruction, target: str) -> bool:
        """Whether a custom call to `Async{target}` is fused into an instruction."""
        call = f'custom_call_target="Async{target}"'
        return any(call in inner.attributes for inner in self._inside(instruction))

    def _trips(self, loop: _Instruction) -> int:
        """How often a loop runs: as XLA says, or what its condition compares to."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
        instructions = self._computations[condition[1]] if condition else []
        limits = [i.arguments for i in instructions if i.op == "constant"]
        return max((int(n) for n in limits if n.isdigit()), default=1)


def _described(instruction: _Instruction, siblings: list[_Instruction]) -> Collective:
    """What an instruction of one of the kinds exchanges."""
    kind = instruction.op.removesuffix("-start")
    results = _arrays(instruction.type)
    num = len(instruction.operands)
    if kind != instruction.op and len(results) > num:
        results = results[num : 2 * num]  # most starts name their operands before
    types = {sibling.name: sibling.type for sibling in siblings}
    operands = [
        array for name in instruction.operands for array in _arrays(types.get(name, ""))
    ]
    num_bytes = (sum(size for _, size in arrays) for arrays in (operands, results))
    shapes = tuple(shape for shape, _ in results)
    return Collective(kind, shapes, max(num_bytes), overlaps=False)


def _arrays(type_text: str) -> list[tuple[tuple[int, ...], int]]:
    """Shape and bytes, at least one an element, of an array or each of a tuple."""
    found = []
    for _, bits, sizes in _ARRAY.findall(type_text):
        shape = tuple(int(size) for size in sizes.split(",") if size)
        width = max(8, int(bits or 8)) // 8  # "pred" has no bits
        found.append((shape, width * math.prod(shape)))
    return found
