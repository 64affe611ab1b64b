"""Reads a program that XLA optimized: instructions, collectives, kernels.

A kernel is what the program's schedule runs at once: a fusion, a product, a copy.
"""

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.compiler.sass import Code

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

CONTROL = ("while", "call", "conditional")  # run other computations

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
    group: int  # devices that exchange with each other

    @property
    def sent(self) -> float:
        """Bytes that each device sends, by the best ways round a ring."""
        if self.kind == "collective-permute":
            return self.bytes
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.bytes * (self.group - 1) / self.group


class Event(NamedTuple):
    """An instruction of a schedule, and the collective that begins or ends there."""

    instruction: "Instruction"
    begins: Collective | None = None
    ends: Collective | None = None  # the same as `begins` if the device only waits
    token: str = ""  # which it is


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
        """The names of the computations that it calls."""
        found = _CALLED.finditer(self.attributes)
        names = ",".join(match[1] or match[2] for match in found)
        return re.findall(r"[\w.\-]+", names)

    @property
    def results(self) -> list[Array]:
        """The arrays that it computes; for a start, those that are there at its end."""
        found, num = arrays(self.type), len(self.operands)
        if self.op == "copy-start":
            return found[:1]
        if self.op.endswith("-start") and len(found) > num:
            return found[num : 2 * num]  # most starts name their operands before
        return found


def collectives(text: str) -> Counter[Collective]:
    """The collective operations of a program, and how often one run executes each.

    A loop counts as often as it runs, and of a conditional the shortest branch.

    Args:
      text: optimized HLO, as `compiled.as_text()` gives it.
    """
    program = Program(text)
    total: Counter[Collective] = Counter()
    for instructions, times in program.runs():
        for event in program.events(instructions):
            if event.ends:
                total[event.ends] += times
    return total


class Program:
    """The computations of a program: instructions in the order they are executed."""

    def __init__(self, text: str, codes: Mapping[str, Code] | None = None):
        self.codes = codes or {}  # of instructions of a program for a GPU
        self.entry = ""
        self.num_devices = 1
        self.computations: dict[str, list[Instruction]] = {}
        self._tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
        current: list[Instruction] = []
        table: dict[int, str] = {}
        for line in text.splitlines():
            if line.startswith("HloModule"):
                counts = re.findall(r"(?:num_partitions|replica_count)=(\d+)", line)
                self.num_devices = math.prod(map(int, counts))
            elif line in _TABLES:
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
        """All instructions, by name."""
        return {i.name: i for found in self.computations.values() for i in found}

    @functools.cached_property
    def users(self) -> dict[str, list[tuple[Instruction, int]]]:
        """The instructions that take each value, by its name, and as which operand."""
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
            if instruction.op in CONTROL:
                for called, trips in self.calls(instruction):
                    yield from self.runs(called, times * trips)
        yield instructions, times

    def calls(self, instruction: Instruction) -> list[tuple[str, int]]:
        """The computations that an instruction runs, and how often.

        Of a conditional the shortest branch counts: ours have others for exceptions
        only.
        """
        if instruction.op == "conditional":
            return [(min(instruction.called, key=self._length), 1)]
        trips = self._trips(instruction) if instruction.op == "while" else 1
        return [(name, trips) for name in instruction.called]

    def _length(self, name: str) -> int:
        """How many instructions a computation executes."""
        return sum(times * len(found) for found, times in self.runs(name))

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

    def events(self, instructions: list[Instruction]) -> Iterator[Event]:
        """The schedule of one computation, with collectives as they begin and end."""
        under_way: dict[str, Collective] = {}
        for instruction in instructions:
            found = self._collective(instruction, instructions)
            token = self._token(instruction)
            if instruction.op in _DONES or self._has(instruction, "CollectiveDone"):
                yield Event(instruction, ends=under_way.pop(token, None), token=token)
            elif instruction.op in _STARTS or self._has(instruction, "CollectiveStart"):
                if found:
                    under_way[token] = found
                yield Event(instruction, begins=found, token=token)
            elif found and token not in under_way:
                yield Event(instruction, found, found, token)
            else:  # nothing, or a kernel that a collective goes on in
                yield Event(instruction)

    def _token(self, instruction: Instruction) -> str:
        """A name that start and end of an asynchronous operation share."""
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
        """The collective in an instruction or in the computation fused into it."""
        if instruction.op in (*CONTROL, *_DONES):
            return None
        if instruction.op.removesuffix("-start") in _KINDS:
            return self._described(instruction, siblings)
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

    def _described(
        self, instruction: Instruction, siblings: list[Instruction]
    ) -> Collective:
        """Describes an instruction that is a collective."""
        types = {sibling.name: sibling.type for sibling in siblings}
        operands = [
            array
            for name in instruction.operands
            for array in arrays(types.get(name, ""))
        ]
        results = instruction.results
        num_bytes = max(sum(a.bytes for a in found) for found in (operands, results))
        shapes = tuple(array.shape for array in results)
        kind = instruction.op.removesuffix("-start")
        return Collective(kind, shapes, num_bytes, self._group(instruction))

    def _group(self, instruction: Instruction) -> int:
        """How many devices a collective joins; all of the program's if it names none.

        XLA writes groups as {{0,1},{2,3}} or as [groups,devices of each]<=[..].
        """
        pattern = r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])"
        if not (match := re.search(pattern, instruction.attributes)):
            return self.num_devices
        return int(match[2]) if match[2] else len(match[1].split(","))

    def _has(self, instruction: Instruction, target: str) -> bool:
        """Whether a custom call to `Async{target}` is fused into an instruction."""
        call = f'custom_call_target="Async{target}"'
        return any(call in inner.attributes for inner in self.inside(instruction))

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs: as XLA says, or by the limit in its condition."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
        instructions = self.computations[condition[1]] if condition else []
        limits = [i.arguments for i in instructions if i.op == "constant"]
        return max((int(n) for n in limits if n.isdigit()), default=1)


def arrays(type_text: str) -> list[Array]:
    """The array that a type describes, or each array of a tuple."""
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


# Instructions that do nothing on the device or stand for others; calls are libtpu's.
_FREE = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",
}
_FREE_CALLS = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast")
_TRANSFERS = ("copy-start", "slice-start")
_SLICES = ("dynamic-slice", "gather", "slice")


class Operation(NamedTuple):
    """One of the operations that a kernel consists of."""

    op: str
    dtype: str  # of its first result; "" if there is none
    elements: int  # of its results; of a reduction, of what it reduces
    flops: float  # if it is a product; a multiply-add counts as 2
    frames: list[Frame]  # where in the source it comes from, the innermost call first
    name: str  # JAX's: "jit(step)/jvp(Transformer)/Block/attn/mul"


class Kernel(NamedTuple):
    """One unit of a program's schedule. All numbers are those of one execution."""

    name: str
    op: str
    results: list[Array]
    times: int  # executions in one run of the program
    bytes: int  # read from and written to the device's main memory
    flops: float  # of its products
    cycles: int | None  # as the compiler estimates; None if it does not
    operations: list[Operation]  # of a transfer, those of the kernel that it serves
    code: Code | None = None  # for a GPU, if it is not a library's

    @property
    def is_transfer(self) -> bool:
        """Whether it copies between memories while other kernels run."""
        return self.op.endswith("-start")


def kernels(text: str, codes: Mapping[str, Code] | None = None) -> Iterator[Kernel]:
    """The kernels that one run of a program executes.

    Bytes are those of operands and results, each once. Of an operand that is only
    sliced, the slices count; of a result that is updated in place, the update. Arrays
    in memory on the chip do not count.

    Args:
      text: optimized HLO, as `compiled.as_text()` gives it.
      codes: for a GPU, the machine code of its instructions (`sass.read`).
    """
    program = Program(text, codes)
    for instructions, times in program.runs():
        for instruction in instructions:
            if not is_free(instruction):
                yield kernel(program, instruction, times)


def is_free(instruction: Instruction) -> bool:
    """Whether an instruction is no kernel."""
    if instruction.op == "custom-call":
        calls = (f'custom_call_target="{name}"' for name in _FREE_CALLS)
        return any(call in instruction.attributes for call in calls)
    return instruction.op in _FREE or instruction.op.endswith("-done")


def kernel(program: Program, instruction: Instruction, times: int = 1) -> Kernel:
    """Describes an instruction that is a kernel."""
    cycles = re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes)
    served = _served(program, instruction)
    operations = [_operation(program, inner) for inner in program.inside(served)]
    return Kernel(
        instruction.name,
        instruction.op,
        instruction.results,
        times,
        _bytes_moved(program, instruction),
        sum(o.flops for o in operations) if served is instruction else 0.0,
        int(cycles[1]) if cycles else None,
        operations,
        program.codes.get(instruction.name),
    )


def _served(program: Program, instruction: Instruction) -> Instruction:
    """The kernel for which a transfer fetches an operand or takes away a result.

    Other instructions serve themselves.
    """
    if instruction.op not in _TRANSFERS:
        return instruction
    onto_chip = any(array.memory for array in instruction.results)
    found = instruction
    while found is instruction or _passes_on(found):
        users = [user.name for user, _ in program.users.get(found.name, [])]
        names = users if onto_chip else found.operands
        if not names:
            return instruction
        found = program.instructions[names[0]]
    return instruction if is_free(found) else found


def _passes_on(instruction: Instruction) -> bool:
    """Whether its result is its operand, or part of it."""
    names = instruction.op in ("bitcast", "get-tuple-element", "custom-call")
    return is_free(instruction) and (names or instruction.op.endswith("-done"))


def _operation(program: Program, instruction: Instruction) -> Operation:
    results, counted = instruction.results, instruction.results
    if instruction.op.startswith("reduce"):
        counted = _operand(program, instruction, 0)
    name = re.search(r'op_name="([^"]*)"', instruction.attributes)
    return Operation(
        instruction.op,
        results[0].dtype if results else "",
        sum(math.prod(array.shape) for array in counted),
        product_flops(program, instruction),
        program.frames(instruction),
        name[1] if name else "",
    )


def _bytes_moved(program: Program, instruction: Instruction) -> int:
    """Bytes of the device's main memory that it reads and writes.

    A Pallas kernel of ours for a GPU says it, for it may leave parts of arrays alone.
    """
    said = re.search(r"bytes_accessed\\22: \\22(\d+)", instruction.attributes)
    if said and instruction.op == "custom-call":
        return int(said[1])
    return _bytes_read(program, instruction) + _bytes_written(program, instruction)


def _bytes_read(program: Program, instruction: Instruction) -> int:
    """Bytes of operands that a kernel reads from the device's main memory."""
    total = 0
    for number in range(len(instruction.operands)):
        found = _operand(program, instruction, number)
        size = sum(array.bytes for array in found if array.memory == 0)
        part = _part_read(program, instruction, number)
        total += size if part is None else min(size, part)
    return total


def _operand(program: Program, instruction: Instruction, number: int) -> list[Array]:
    """The arrays of an operand; none if it is not an instruction of the program."""
    operand = program.instructions.get(instruction.operands[number])
    return operand.results if operand else []


def _part_read(program: Program, user: Instruction, number: int) -> int | None:
    """Bytes that an instruction reads of an operand; None if it may read all."""
    first = number == 0
    if user.op.removesuffix("-start") in _SLICES and first:
        return sum(array.bytes for array in user.results)
    if user.op == "dynamic-update-slice" and first and user.is_root:
        return 0  # updated in place
    if user.op in ("bitcast", "convert"):
        return _parts_read(program, user.name)
    if user.op == "fusion":
        inside = program.computations[user.called[0]]
        parameters = (i for i in inside if i.op == "parameter")
        for parameter in parameters:
            if parameter.arguments == str(number):
                return _parts_read(program, parameter.name)
    return None


def _parts_read(program: Program, name: str) -> int | None:
    """Bytes that all instructions that take a value read of it; None for all."""
    users = program.users.get(name, [])
    parts = [_part_read(program, *user) for user in users]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _bytes_written(program: Program, instruction: Instruction) -> int:
    """Bytes of results that a kernel writes to the device's main memory."""
    results = instruction.results
    if _is_gemm(instruction):
        results = results[:1]  # the others are room to work in
    total = sum(array.bytes for array in results if array.memory == 0)
    last = instruction
    while last.op == "fusion":
        last = next(i for i in program.computations[last.called[0]] if i.is_root)
    if last.op == "dynamic-update-slice":
        update = _operand(program, last, 1)
        return min(total, sum(array.bytes for array in update))
    return total


def product_flops(program: Program, instruction: Instruction) -> float:
    """Floating-point operations of a matrix product or convolution; 0 for others."""
    if instruction.op == "dot":
        summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        return _dot_flops(program, instruction, summed[1] if summed else "")
    if instruction.op == "convolution":
        return _convolution_flops(program, instruction)
    if _is_gemm(instruction):
        pattern = r'"lhs_contracting_dimensions":\[([^\]]*)\]'
        summed = re.search(pattern, instruction.attributes)
        return _dot_flops(program, instruction, summed[1] if summed else "")
    if instruction.op == "custom-call":  # a kernel of ours that says what it costs
        cost = re.search(r'"flops":"?(\d+)', instruction.attributes)
        return float(cost[1]) if cost else 0.0
    return 0.0


def _is_gemm(instruction: Instruction) -> bool:
    """Whether it is a call of a library's matrix product, as XLA makes for GPUs."""
    return (
        instruction.op == "custom-call"
        and '"dot_dimension_numbers"' in instruction.attributes
    )


def _dot_flops(program: Program, product: Instruction, summed: str) -> float:
    """2 for each element of the result and of the dimensions summed over."""
    left = _operand(program, product, 0)[0].shape
    lengths = (left[int(dim)] for dim in re.findall(r"\d+", summed))
    return 2.0 * math.prod(product.results[0].shape) * math.prod(lengths)


def _convolution_flops(program: Program, product: Instruction) -> float:
    """2 for each multiplication of two elements of the operands.

    A TPU's matrix products are convolutions. Batch dimensions are among them as windows
    that are dilated or padded, so that most of their places meet no element.
    """
    left, right = (_operand(program, product, n)[0].shape for n in (0, 1))
    output = product.results[0].shape
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", product.attributes)
    assert labels, product.attributes
    window = re.search(r"window=\{([^}]*)\}", product.attributes)
    settings = dict(re.findall(r"(\w+)=([\d_x\-]+)", window[1] if window else ""))
    pairs = 1
    for number, size in enumerate(settings.get("size", "").split("x")):
        if size:
            spatial = {k: v.split("x")[number] for k, v in settings.items()}
            lengths = (
                shape[dims.index(str(number))]
                for shape, dims in ((left, labels[1]), (output, labels[3]))
            )
            pairs *= _pairs(spatial, *lengths)
    batch, features = (output[labels[3].index(letter)] for letter in "bf")
    return 2.0 * batch * features * right[labels[2].index("i")] * pairs


def _pairs(window: dict[str, str], num_inputs: int, num_outputs: int) -> int:
    """Pairs of a place in the output and one in the window that meet an input."""
    stride, spread, dilation = (
        int(window.get(key, 1)) for key in ("stride", "lhs_dilate", "rhs_dilate")
    )
    before = int(window.get("pad", "0_0").partition("_")[0])
    outputs, places = np.arange(num_outputs), np.arange(int(window["size"]))
    reached = outputs[:, None] * stride + places * dilation - before
    inside = (reached >= 0) & (reached <= (num_inputs - 1) * spread)
    return int(np.sum(inside & (reached % spread == 0)))
