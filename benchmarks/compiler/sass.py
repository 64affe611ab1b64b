"""Reads the machine code of a compiled GPU program: registers, spills, instructions.

XLA writes each kernel as PTX. CUDA's ptxas makes machine code (SASS) of it, as XLA has
it do, and nvdisasm prints that. Loops count as often as they run: one thread of each
warp is followed through the code, with the whole numbers that it computes. What it
loads is not known, nor what depends on it.
"""

import importlib.util
import math
import os
import re
import shutil
import struct
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_MIN_THREADS = 1 << 12  # smaller kernels do not have their instructions counted
_MAX_BLOCKS = 16  # that are followed, along the grid's first axis
_MAX_STEPS = 10**6  # of one thread
# What a multiprocessor of compute capability 9.0 has room for.
_MAX_WARPS, _MAX_RESIDENT_BLOCKS, _REGISTERS = 64, 32, 65536
_SHARED_BYTES, _RESERVED_BYTES = 233472, 1024  # of all blocks; of each for the system
# XLA's own products: on the chip it takes a library's wherever these are faster.
_PRODUCT = "gemm_fusion"

_KERNEL = re.compile(
    r"\s*(?P<thunk>\d+): kCustomKernel .*?(?P<name>\S+) grid: \[(?P<grid>[\d, ]+)\] "
    r"threads: \[(?P<block>[\d, ]+)\]\s+shared_memory: (?P<shared>\d+)"
)
_THUNK = re.compile(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)')
_LINE = re.compile(
    r"\s+/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\w*)([.\w]*)\s*(.*?);"
)
_LABEL = re.compile(r"(\.L_\w+):")


class Code(NamedTuple):
    """The machine code of a kernel, and how it is launched."""

    blocks: int
    threads: int  # of a block
    registers: int  # of a thread
    spilled_bytes: int  # that a thread stores and loads because registers are too few
    shared_bytes: int  # of a block
    instructions: float | None  # of all warps; None if that is not known

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // 32)

    @property
    def resident_warps(self) -> int:
        """Warps that a multiprocessor has room for."""
        registers = -(-self.registers // 8) * 8 * 32 * self.warps
        blocks = min(
            _MAX_WARPS // self.warps,
            _MAX_RESIDENT_BLOCKS,
            _REGISTERS // max(1, registers),
            _SHARED_BYTES // (self.shared_bytes + _RESERVED_BYTES),
        )
        return max(1, blocks) * self.warps


class _Launch(NamedTuple):
    """A kernel as XLA's list of them describes it; equal ones are one kernel."""

    name: str
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int  # besides those that the kernel itself declares


def read(folder: Path) -> dict[str, Code]:
    """The kernels of the programs that XLA wrote to a folder (`xla_dump_to`).

    Returns:
      The code of each instruction of the optimized program that has some. Products
      have none here.
    """
    files = {
        match[1]: path
        for path in folder.glob("*.ptx")
        for match in re.finditer(r"\.entry (\w+)\(", path.read_text())
    }
    launches = {
        name: launch for name, launch in _launches(folder) if launch.name in files
    }
    why = "" if launches else "XLA does not list its kernels as it used to"
    if not (_tool("ptxas") and _tool("nvdisasm")):
        why = "no ptxas or nvdisasm; pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm"
    if files and why:
        warnings.warn(
            f"instructions are not counted, times too low: {why}", stacklevel=2
        )
        return {}
    different = list(dict.fromkeys(launches.values()))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = pool.map(lambda launch: _code(launch, files[launch.name]), different)
        by_launch = dict(zip(different, codes, strict=True))
    return {name: by_launch[launch] for name, launch in launches.items()}


def _launches(folder: Path) -> Iterator[tuple[str, _Launch]]:
    """The names of instructions, and the kernels that they launch."""
    for path in folder.glob("*.thunk_sequence.txt"):
        kernels = {}
        for match in map(_KERNEL.match, path.read_text().splitlines()):
            if match and not match["name"].startswith(_PRODUCT):
                grid, block = (
                    tuple(map(int, match[sizes].split(",")))
                    for sizes in ("grid", "block")
                )
                kernels[match["thunk"].lstrip("0")] = _Launch(
                    match["name"], grid, math.prod(block), int(match["shared"])
                )
        metadata = path.with_name(path.name.replace("_sequence", "_metadata"))
        for name, thunk in _THUNK.findall(metadata.read_text()):
            if thunk in kernels:
                yield name, kernels[thunk]


def _code(launch: _Launch, path: Path) -> Code:
    """Assembles a kernel, and counts its instructions."""
    [target] = re.findall(r"\.target (\w+)", path.read_text())
    binary = path.with_suffix(".cubin")
    said = _output("ptxas", "-v", f"--gpu-name={target}", path, "-o", binary)
    registers, declared, stores, loads = (
        sum(map(int, re.findall(rf"(\d+) {what}", said)))
        for what in ("registers", "bytes smem", "bytes spill st", "bytes spill lo")
    )
    threads = math.prod(launch.grid) * launch.threads
    issued = None
    if threads >= _MIN_THREADS:
        issued = instructions(_output("nvdisasm", "-c", binary), *launch[1:3])
    return Code(
        math.prod(launch.grid),
        launch.threads,
        registers,
        stores + loads,
        declared + launch.shared_bytes,
        issued,
    )


def _output(name: str, *arguments: str | Path) -> str:
    """What a program of CUDA's toolkit prints."""
    command = [_tool(name), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def _tool(name: str) -> str:
    """The path of a program of CUDA's toolkit; "" if it is not here.

    XLA, too, takes that of the packages first, whose version fits its PTX.
    """
    for package, place in (("nvidia", "*/bin"), ("triton", "backends/nvidia/bin")):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in Path(folder).glob(f"{place}/{name}"):
                return str(path)
    return shutil.which(name) or ""


def instructions(text: str, grid: tuple[int, ...], threads: int) -> float | None:
    """How many instructions all warps of a kernel execute.

    Args:
      text: machine code, as nvdisasm prints it.
      grid: the numbers of blocks along each axis.
      threads: of a block, whose other axes are 1.

    Returns:
      None if the length of a loop depends on what the kernel loads.
    """
    lines, labels = _parsed(text)
    step = -(-grid[0] // _MAX_BLOCKS)
    followed = range((step - 1) // 2, grid[0], step)
    sizes = {f"c[0x0][{4 * i:#x}]": n for i, n in enumerate((threads, 1, 1, *grid))}
    total = 0
    for block in followed:
        for thread in range(0, threads, 32):
            place = {"SR_CTAID.X": block, "SR_TID.X": thread}
            steps = _Thread(lines, labels, {**sizes, **place}).follow()
            if steps is None:
                return None
            total += steps
    return total * math.prod(grid) / len(followed)


_MASK = 0xFFFFFFFF
_PREDICATE = re.compile(r"!?U?P[T\d]$")


class _Operand(NamedTuple):
    """A constant, or a register or predicate as it is or negated."""

    name: str
    sign: str = ""  # "-", "~" or "!"
    number: float | None = None


class _Line(NamedTuple):
    """An instruction, like `@!P0 IADD3.X R4, P1, R3, R5, RZ`."""

    guard: _Operand | None  # where it is not always executed
    op: str
    modifiers: str  # ".X"
    results: list[str]  # registers and predicates that it writes
    operands: list[_Operand]
    label: str  # that it branches to


def _parsed(text: str) -> tuple[list[_Line], dict[str, int]]:
    """The instructions of a kernel, and the places of its labels among them."""
    lines: list[_Line] = []
    labels = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(lines)
        elif match := _LINE.match(line):
            guard, op, modifiers, rest = match.groups()
            parts = [part.strip().removesuffix(".reuse") for part in rest.split(",")]
            if op == "BRA" and modifiers == ".U":
                guard = parts[0]
            results, operands = _divided(op, modifiers, parts)
            target = re.search(r"\.L_\w+", rest)
            lines.append(
                _Line(
                    _operand(guard) if guard else None,
                    op,
                    modifiers,
                    results,
                    [_operand(part) for part in operands],
                    target[0] if target else "",
                )
            )
    return lines, labels


def _divided(op: str, modifiers: str, parts: list[str]) -> tuple[list[str], list[str]]:
    """The registers and predicates that an instruction writes, and its operands."""
    if op in ("FSETP", "ISETP", "PLOP3", "UISETP", "UPLOP3"):
        return [part for part in parts[:2] if not part.endswith("PT")], parts[2:]
    if op in ("LOP3", "ULOP3") and _PREDICATE.match(parts[0]):
        return [parts[0]], parts[2:]
    if not (register := re.match(r"(U?R)(\d+)$", parts[0])):
        return [], parts[1:]
    carries = 1
    while carries < len(parts) and _PREDICATE.match(parts[carries]):
        carries += 1
    width = 2 if op == "CS2R" or re.search(r"\.(64|WIDE)", modifiers) else 1
    width = 4 if ".128" in modifiers else width
    names = [f"{register[1]}{int(register[2]) + i}" for i in range(width)]
    return [*names, *parts[1:carries]], parts[carries:]


def _operand(text: str) -> _Operand:
    if text in ("RZ", "-RZ", "URZ", "SRZ"):
        return _Operand(text, number=0)
    if re.match(r"-?0x", text):
        return _Operand(text, number=int(text, 16) & _MASK)
    if re.match(r"-?\d", text):
        return _Operand(text, number=float(text))
    sign = text[0] if text[:1] in ("-", "~", "!") else ""
    return _Operand(text.removeprefix(sign), sign)


class _Thread:
    """One thread on its way through the code. None stands for what is not known."""

    def __init__(
        self,
        lines: list[_Line],
        labels: Mapping[str, int],
        known: Mapping[str, int],
    ):
        self._lines, self._labels = lines, labels
        self._values: dict[str, float | None] = {"PT": True, "UPT": True, **known}

    def follow(self) -> int | None:
        """How many instructions it meets; None if that is not known.

        A forward branch whose condition is not known is not taken: some thread of the
        warp needs what follows. Calls are passed over; they are for rare numbers.
        """
        place = 0
        for steps in range(1, _MAX_STEPS):
            line = self._lines[place]
            holds = self._value(line.guard) if line.guard else True
            place += 1
            if line.op in ("EXIT", "RET") and holds:
                return steps
            if line.op == "BRA" and line.modifiers != ".DIV":  # threads that part
                target = self._labels[line.label]
                if holds is None and target < place:
                    return None
                place = target if holds else place
            elif line.op == "BRX":  # to a place that it computes
                return None
            elif line.results and (holds or holds is None):
                self._execute(line, bool(holds))
        return None

    def _value(self, operand: _Operand) -> float | None:
        name, sign, number = operand
        value = self._values.get(name) if number is None else number
        if value is None or not sign:
            return value
        if sign == "!":
            return not value
        return (-int(value) if sign == "-" else ~int(value)) & _MASK

    def _execute(self, line: _Line, surely: bool) -> None:
        """Computes what an instruction writes, if that is known."""
        rule = _RULES.get(line.op) if surely else None
        inputs = [self._value(operand) for operand in line.operands] if rule else []
        for name in line.results:
            self._values[name] = None
        if rule and None not in inputs:
            self._values[line.results[0]] = rule(line.modifiers, *inputs)
        if line.op == "CS2R":  # two registers of zeros
            self._values.update(dict.fromkeys(line.results, 0))


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _compare(modifiers: str, left: int, right: int, also: bool) -> int | None:
    """ISETP: compares, and combines the result with a predicate."""
    if ".EX" in modifiers:
        return None
    if ".U32" not in modifiers:
        left, right = _signed(left), _signed(right)
    results = {
        ".EQ": left == right,
        ".NE": left != right,
        ".LT": left < right,
        ".LE": left <= right,
        ".GT": left > right,
        ".GE": left >= right,
    }
    result = results[modifiers[:3]]
    return int(result or also if ".OR" in modifiers else result and also)


def _logic(modifiers: str, *inputs: int) -> int:
    """LOP3: each bit of the result by those of three operands, from a table."""
    del modifiers
    a, b, c, table, *_ = inputs
    result = 0
    for number in range(8):
        if table >> number & 1:
            left, middle, right = (
                x if number & bit else ~x for x, bit in ((a, 4), (b, 2), (c, 1))
            )
            result |= left & middle & right
    return result & _MASK


def _add(modifiers: str, *inputs: int) -> int | None:
    return None if ".X" in modifiers or ".64" in modifiers else sum(inputs) & _MASK


def _multiply_add(modifiers: str, *inputs: int) -> int | None:
    if ".WIDE" in modifiers or ".X" in modifiers:
        return None
    a, b, c, *_ = inputs
    if ".HI" in modifiers:
        return (a * b >> 32) + c & _MASK if ".U32" in modifiers else None
    return a * b + c & _MASK


def _shift(modifiers: str, low: int, amount: int, high: int) -> int | None:
    if ".U64" in modifiers or ".W" in modifiers:
        return None
    amount &= 31
    if modifiers.startswith(".L"):
        return (low << amount) & _MASK if ".HI" not in modifiers else None
    value = _signed(high) if ".S32" in modifiers else high
    return value >> amount & _MASK if ".HI" in modifiers else None


def _scaled_add(modifiers: str, *inputs: int) -> int | None:
    if ".X" in modifiers:
        return None
    a, b, *high, amount = inputs
    if ".HI" in modifiers:
        return ((high[0] << 32 | a) << amount >> 32) + b & _MASK
    return (a << amount) + b & _MASK


def _halves(modifiers: str, left: int, right: int, *added: float) -> int | None:
    """HFMA2 of zeros: a constant, written as two numbers of 16 bits."""
    del modifiers
    if left or right:
        return None
    return int.from_bytes(struct.pack("<ee", *reversed(added)), "little")


def _limit(modifiers: str, left: int, right: int, smaller: bool) -> int:
    value = _signed if ".U32" not in modifiers else int
    return (min if smaller else max)(left, right, key=value)


def _table(modifiers: str, a: bool, b: bool, c: bool, table: int, *_: int) -> int:
    """PLOP3: a predicate by three others, from a table."""
    del modifiers
    return table >> (4 * bool(a) + 2 * bool(b) + bool(c)) & 1


def _first(modifiers: str, value: int, *_: int) -> int | None:
    return None if ".64" in modifiers else value


_RULES: dict[str, Callable[..., int | None]] = {
    "HFMA2": _halves,
    "IADD3": _add,
    "IMAD": _multiply_add,
    "ISETP": _compare,
    "LDC": _first,
    "LEA": _scaled_add,
    "LOP3": _logic,
    "MOV": _first,
    "PLOP3": _table,
    "R2UR": _first,
    "S2R": _first,
    "S2UR": _first,
    "SEL": lambda modifiers, a, b, which: a if which else b,
    "SHF": _shift,
    "UIADD3": _add,
    "UIMAD": _multiply_add,
    "UISETP": _compare,
    "ULDC": _first,
    "ULEA": _scaled_add,
    "ULOP3": _logic,
    "UMOV": _first,
    "USEL": lambda modifiers, a, b, which: a if which else b,
    "USHF": _shift,
    "VIADD": _add,
    "VIMNMX": _limit,
}
