"""The machine code of GPU kernels: what a warp executes, and what a kernel needs."""

import pytest

from benchmarks.compiler import sass
from benchmarks.compiler.sass import Code, instructions, read


def listing(*lines):
    """Code as nvdisasm prints it; labels are lines that end with a colon."""
    return "\n".join(
        line if line.endswith(":") else f"        /*{16 * i:04x}*/   {line} ;"
        for i, line in enumerate(lines)
    )


# Block b runs the three lines of the loop b + 1 times.
LOOP = (
    "S2R R0, SR_CTAID.X",
    "HFMA2.MMA R1, -RZ, RZ, 0, 0",
    ".L_x_0:",
    "IADD3 R1, R1.reuse, 0x1, RZ",
    "ISETP.GT.U32.AND P0, PT, R1, R0, PT",
    "@!P0 BRA `(.L_x_0)",
    "EXIT",
)


def test_a_loop_counts_as_often_as_each_block_runs_it():
    """Of many blocks some stand for all."""
    rows, warps = 2, 2
    in_a_row = sum(3 + 3 * (block + 1) for block in range(4))
    assert instructions(listing(*LOOP), (4, rows, 1), 64) == rows * warps * in_a_row
    exact = pytest.approx(3 * 64 + 3 * sum(range(1, 65)), rel=0.03)
    assert instructions(listing(*LOOP), (64, 1, 1), 32) == exact


LOADED = "LDG.E R0, desc[UR4][R2.64]"


@pytest.mark.parametrize(
    "before",
    [
        ["MOV R0, 0x3", f"@P2 {LOADED}"],
        ["MOV R5, 0x3", "LDG.E.64 R4, desc[UR4][R2.64]", "MOV R0, R5"],
    ],
)
def test_what_depends_on_loaded_values_is_not_guessed(before):
    assert instructions(listing(*before, *LOOP[1:]), (4, 1, 1), 32) is None


@pytest.mark.parametrize(
    "code, value",
    [
        ("UMOV UR4, 0x7; R2UR UR5, UR4; IMAD.U32 R2, RZ, RZ, UR5", 7),
        ("HFMA2.MMA R2, -RZ, RZ, 0, 5.9604644775390625e-08", 1),
        ("MOV R3, 0x3; IADD3 R2, P1, -R3, 0x9, RZ", 6),
        ("MOV R3, 0x3; IMAD R2, R3.reuse, 0x2, R3", 9),
        ("MOV R3, 0x18; IMAD.HI.U32 R2, R3, 0x2aaaaaab, RZ", 4),
        ("MOV R3, 0x3; LEA R2, R3, 0x2, 0x1", 8),
        ("MOV R3, -0x8; SHF.R.S32.HI R3, RZ, 0x1, R3; IADD3 R2, -R3, RZ, RZ", 4),
        ("MOV R3, 0x8; LOP3.LUT R2, R3, 0x3, 0x4, 0xfe, !PT", 15),
        ("MOV R3, -0x5; VIMNMX R2, R3, 0x4, !PT", 4),
        ("MOV R3, 0x5; ISETP.GE.AND P1, PT, R3, 0x5, PT; SEL R2, R3, 0x2, P1", 5),
    ],
)
def test_whole_numbers_are_computed_as_the_hardware_does(code, value):
    before = [line.strip() for line in code.split(";")]
    loop = ("IADD3 R1, R1, 0x1, RZ", "ISETP.NE.U32.AND P0, PT, R1, R2, PT")
    lines = "CS2R R0, SRZ", *before, ".L_x_0:", *loop, "@P0 BRA `(.L_x_0)", "EXIT"
    executed = instructions(listing(*lines), (5, 1, 1), 32)
    assert executed == 5 * (1 + len(before) + 3 * value + 1)


LAUNCH = "grid: [{}, 1, 1] threads: [64, 1, 1]  shared_memory: {} bytes"
SEQUENCE = f"""
001: kCopy [source] kCopy
002: kCustomKernel [prev=001 (1)  | next=004 (2) ] add_1 {LAUNCH.format(2048, 768)}
003: kWhile [source] kWhile
    004: kCustomKernel [prev=002 (2)] add_1 {LAUNCH.format(2, 0)}
005: kCustomKernel [source] gemm_fusion_2 {LAUNCH.format(2, 0)}
"""
ASSEMBLED = """\
ptxas info : 0 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info : Used 40 registers, used 1 barriers, 256 bytes smem
"""


@pytest.fixture
def dump(tmp_path, monkeypatch):
    """A folder as XLA writes it, with tools that say the same of each kernel."""
    (tmp_path / "m.thunk_sequence.txt").write_text(SEQUENCE)
    thunks = {"copy.1": 1, "add.1": 2, "add.2": 2, "add.3": 4, "gemm_fusion.2": 5}
    metadata = (
        f'thunk_info {{\n profile_annotation: "{name}"\n thunk_id: {number}\n}}\n'
        for name, number in thunks.items()
    )
    (tmp_path / "m.thunk_metadata.txt").write_text("".join(metadata))
    ptx = ".target sm_90a\n.visible .entry NAME(\n"
    for name in ("add_1", "gemm_fusion_2"):
        (tmp_path / f"m.{name}.ptx").write_text(ptx.replace("NAME", name))
    output = {"ptxas": ASSEMBLED, "nvdisasm": listing(*LOOP[-1:])}
    for name, text in output.items():
        (tmp_path / f"{name}.txt").write_text(text)
        script = f"#!/bin/sh\ncat {tmp_path}/{name}.txt\n"
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sass, "_tool", lambda name: str(tmp_path / name))
    return tmp_path


def test_instructions_of_the_program_have_the_code_of_their_kernels(dump):
    codes = read(dump)
    large = Code(2048, 64, 40, 4 + 12, 256 + 768, instructions=2048 * 2)
    small = Code(2, 64, 40, 4 + 12, 256, instructions=None)
    assert codes == {"add.1": large, "add.2": large, "add.3": small}
