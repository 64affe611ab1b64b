"""The kernels of an optimized program: bytes they move, products, estimated cycles.

A kernel is what the program's schedule runs at once: a fusion, a product, a copy.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from hlo import Array, Frame, Instruction, Program

# What does nothing on the device or stands for what others do; calls are libtpu's.
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
    """What a device runs at once. All numbers are those of one execution."""

    name: str
    op: str
    results: list[Array]
    times: int  # executions in one run of the program
    bytes: int  # read from and written to the device's main memory
    flops: float  # of its products
    cycles: int | None  # as the compiler estimates; None if it does not
    operations: list[Operation]  # of a transfer, those of the kernel that it serves

    @property
    def is_transfer(self) -> bool:
        """Whether it copies between memories while other kernels run."""
        return self.op.endswith("-start")


def kernels(text: str) -> Iterator[Kernel]:
    """The kernels that one run of a program executes.

    Bytes are those of operands and results, each once. Of an operand that is only
    sliced they are the slices', of a result that is updated in place the update's. What
    lies in memory on the chip counts nothing.

    Args:
      text: optimized HLO, as `compiled.as_text()` gives it.
    """
    program = Program(text)
    for instructions, times in program.runs():
        for instruction in instructions:
            if not _is_free(instruction):
                yield _kernel(program, instruction, times)


def _is_free(instruction: Instruction) -> bool:
    if instruction.op == "custom-call":
        calls = (f'custom_call_target="{name}"' for name in _FREE_CALLS)
        return any(call in instruction.attributes for call in calls)
    return instruction.op in _FREE or instruction.op.endswith("-done")


def _kernel(program: Program, instruction: Instruction, times: int) -> Kernel:
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
    return instruction if _is_free(found) else found


def _passes_on(instruction: Instruction) -> bool:
    """Whether its result is its operand, or part of it."""
    names = instruction.op in ("bitcast", "get-tuple-element", "custom-call")
    return _is_free(instruction) and (names or instruction.op.endswith("-done"))


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
    if user.op == "bitcast":
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
    """Floating-point operations of a matrix product or convolution; 0 of others."""
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
    """2 for each multiplication whose factors are both elements of the operands.

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
