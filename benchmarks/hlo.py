"""Reads what XLA made of a program: its instructions, and what its devices exchange."""

import functools
import math
import re
from collections import Counter, defaultdict
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

_CONTROL = ("while", "call", "conditional")  # run other computations

_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"\s+(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][a-z\-]*)\(([^)]*)\)(.*)"
)
_CALLED = re.compile(
    r"(?:calls|to_apply|body|\w+_computations?)=(?:\{([^}]*)\}|(%?[\w.\-]+))"
)
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')


class Frame(NamedTuple):
    """A place in the source that an operation comes from."""

    file: str
    function: str  # qualified; "" where the compiler does not say
    line: int


class Array(NamedTuple):
    """An array, as an instruction's type describes it."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int  # at least one an element
    memory: int  # 0 is the device's main memory; others are on the chip or the host


class Collective(NamedTuple):
    """An operation in which devices exchange data."""

    kind: str  # "all-reduce", "all-gather", ..
    shapes: tuple[tuple[int, ...], ...]  # of the arrays that a device gets
    bytes: int  # of its operands or its results on one device, whichever are larger
    overlaps: bool  # whether the device does other work between its start and its end


class Instruction(NamedTuple):
    """A line of a program; names are unique in the program."""

    is_root: bool
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

    @property
    def results(self) -> list[Array]:
        """What it computes; of a start, what will be there at its end."""
        found, num = arrays(self.type), len(self.operands)
        if self.op == "copy-start":
            return found[:1]
        if self.op.endswith("-start") and len(found) > num:
            return found[num : 2 * num]  # most starts name their operands before
        return found


def collectives(text: str) -> Counter[Collective]:
    """The collective operations of a program, and how often one run executes each.

    A loop counts as often as it runs; each branch of a conditional counts once.

    Args:
      text: optimized HLO, as `compiled.as_text()` gives it.
    """
    program = Program(text)
    total: Counter[Collective] = Counter()
    for instructions, times in program.runs():
        for collective in program.exchanges(instructions):
            total[collective] += times
    return total


class Program:
    """The computations of a program: instructions in the order they are executed."""

    def __init__(self, text: str):
        self.entry = ""
        self.computations: dict[str, list[Instruction]] = {}
        self._tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
        current: list[Instruction] = []
        table: dict[int, str] = {}
        for line in text.splitlines():
            if line in _TABLES:
                table = self._tables[line]
            elif row := re.match(r"(\d+) (.*)", line):
                table[int(row[1])] = row[2]
            elif head := _HEAD.match(line):
                current = self.computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else self.entry
            elif match := _INSTRUCTION.match(line):
                current.append(Instruction(bool(match[1]), *match.groups()[1:]))

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        """All of them, by name."""
        return {i.name: i for found in self.computations.values() for i in found}

    @functools.cached_property
    def users(self) -> dict[str, list[tuple[Instruction, int]]]:
        """Of a name, the instructions that take it, and as which operand."""
        found = defaultdict(list)
        for instruction in self.instructions.values():
            for number, operand in enumerate(instruction.operands):
                found[operand].append((instruction, number))
        return found

    def runs(
        self, name: str = "", times: int = 1
    ) -> Iterator[tuple[list[Instruction], int]]:
        """The instructions of each computation that runs, and how often it does.

        A computation that is fused into one instruction is not among them.
        """
        instructions = self.computations[name or self.entry]
        for instruction in instructions:
            if instruction.op in _CONTROL:
                trips = self._trips(instruction) if instruction.op == "while" else 1
                for called in instruction.called:
                    yield from self.runs(called, times * trips)
        yield instructions, times

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """An instruction, and those of the computations fused into it."""
        yield instruction
        if instruction.op == "fusion":
            for name in instruction.called:
                for inner in self.computations.get(name, []):
                    yield from self.inside(inner)

    def frames(self, instruction: Instruction) -> list[Frame]:
        """Where in the source an instruction comes from, the innermost call first."""
        if written := _SOURCE.search(instruction.attributes):
            return [Frame(written[1], "", int(written[2]))]
        first = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
        return self._stacks.get(int(first[1]), []) if first else []

    @functools.cached_property
    def _stacks(self) -> dict[int, list[Frame]]:
        """Each stack frame and those around it, by its number in the program."""
        files, functions, locations, frames = (self._tables[name] for name in _TABLES)
        stacks: dict[int, list[Frame]] = {}
        for number, text in sorted(frames.items()):
            frame = _numbers(text)
            location = _numbers(locations[frame["file_location_id"]])
            file = files[location["file_name_id"]].strip('"')
            function = functions[location["function_name_id"]].strip('"')
            # XLA writes the parent's number plus 1; a frame has its parent before it.
            outer = stacks.get(frame["parent_frame_id"] - 1, [])
            stacks[number] = [Frame(file, function, location["line"]), *outer]
        return stacks

    def exchanges(self, instructions: list[Instruction]) -> Iterator[Collective]:
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

    def _token(self, instruction: Instruction) -> str:
        """What start and end of an asynchronous operation have in common."""
        if instruction.op in _STARTS:
            return instruction.name
        if instruction.op in _DONES:
            return instruction.operands[0]
        inside = self.inside(instruction)
        channels = (re.search(r"channel_id=\d+", i.attributes) for i in inside)
        return next((channel[0] for channel in channels if channel), "")

    def _collective(
        self, instruction: Instruction, siblings: list[Instruction]
    ) -> Collective | None:
        """What an instruction, or the computation fused into it, exchanges."""
        if instruction.op in (*_CONTROL, *_DONES):
            return None
        if instruction.op.removesuffix("-start") in _KINDS:
            return _described(instruction, siblings)
        for name in instruction.called:
            fused = self.computations.get(name, [])
            for inner in fused:
                if found := self._collective(inner, fused):
                    if not name.startswith("all-reduce-scatter"):
                        return found
                    # TPU: an all-reduce of which each device keeps a part.
                    shapes = tuple(array.shape for array in arrays(instruction.type))
                    return found._replace(kind="reduce-scatter", shapes=shapes)
        return None

    def _has(self, instruction: Instruction, target: str) -> bool:
        """Whether a custom call to `Async{target}` is fused into an instruction."""
        call = f'custom_call_target="Async{target}"'
        return any(call in inner.attributes for inner in self.inside(instruction))

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs: as XLA says, or what its condition compares to."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
        instructions = self.computations[condition[1]] if condition else []
        limits = [i.arguments for i in instructions if i.op == "constant"]
        return max((int(n) for n in limits if n.isdigit()), default=1)


def _described(instruction: Instruction, siblings: list[Instruction]) -> Collective:
    """What an instruction of one of the kinds exchanges."""
    types = {sibling.name: sibling.type for sibling in siblings}
    operands = [
        array for name in instruction.operands for array in arrays(types.get(name, ""))
    ]
    results = instruction.results
    num_bytes = max(sum(a.bytes for a in found) for found in (operands, results))
    shapes = tuple(array.shape for array in results)
    kind = instruction.op.removesuffix("-start")
    return Collective(kind, shapes, num_bytes, overlaps=False)


def arrays(type_text: str) -> list[Array]:
    """The array of a type, or each of a tuple."""
    found = []
    for match in _ARRAY.finditer(type_text):
        shape = tuple(int(size) for size in match[3].split(",") if size)
        width = max(8, int(match[2] or 8)) // 8  # "pred" has no bits
        memory = re.search(r"S\((\d+)\)", match[4] or "")
        size = width * math.prod(shape)
        found.append(Array(match[1], shape, size, int(memory[1]) if memory else 0))
    return found


def _numbers(text: str) -> dict[str, int]:
    """{"a": 1, "b": 2} of "{a=1 b=2}"."""
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text)}
