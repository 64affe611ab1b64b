"""Our programs, compiled for accelerators that are not there.

    pip install -e '.[aot]'
    python -m benchmarks.compiler.compiled --target=v5e-16 [--layers=2] [--output=FILE]

The compilers of TPUs and NVIDIA GPUs run on a CPU. They say how much memory a program
needs on a device, what devices exchange and whether they wait for it, how many bytes
each operation moves, and of a GPU's kernels the registers and instructions. Nothing is
run; the only time measured is the compiler's own.
"""

import argparse
import gzip
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.compiler import hlo, kinds, sass, schedule
from benchmarks.compiler.targets import (
    TARGETS,
    Target,
    devices_of,
    in_place_of,
    prepare,
)
from benchmarks.harness import some_of
from benchmarks.paper_model import add_sizes

ALONE = (
    "pretrain-replicated",
    "finetune",
    "finetune-race",
    "decode",
)  # what one chip can run
CASES = (
    "pretrain-replicated",
    "pretrain-full",
    "finetune",
    "finetune-race",  # 8 examples of 4 texts
    "decode",
)


def compile_case(
    name: str, flags: argparse.Namespace, target: Target
) -> dict[str, Any]:
    """Compiles one program and describes the result, or how it failed."""
    import jax

    from benchmarks.compiler.programs import PROGRAMS

    devices = devices_of(target)
    start = time.perf_counter()
    try:
        with in_place_of(target):
            program = PROGRAMS[name](flags, devices)
    except ValueError as error:  # a batch that cannot be split
        sys.exit(f"compiled.py: {error}")
    lowered, lowered_cpu = time.perf_counter(), cpu_seconds()
    result = {
        "device": devices[0].device_kind,
        "devices": program.devices,
        "batch": program.batch,
        "accumulation_steps": program.parts,
        "model_flops_per_device": program.flops / program.devices,
        "lower_seconds": lowered - start,
    }
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder} if target.compiler == "cuda" else None
        try:
            compiled = program.lowered.compile(options)
        except jax.errors.JaxRuntimeError as error:
            message = str(error).partition("\n")[0]
            fits = False if "RESOURCE_EXHAUSTED" in message else None
            result.update(error=message, fits=fits)
        result["compile_seconds"] = time.perf_counter() - lowered
        result["compile_cpu_seconds"] = cpu_seconds() - lowered_cpu
        if "error" not in result:
            codes = sass.read(Path(folder))
            result.update(described(compiled, target, flags.own_kernels / 1e3, codes))
            if flags.hlo:
                path = Path(flags.hlo) / f"{flags.target}_{name}"
                write_hlo(path.with_suffix(".txt.gz"), compiled.as_text())
                if codes:
                    shutil.copytree(folder, path, dirs_exist_ok=True)
    return result


def cpu_seconds() -> float:
    """CPU time so far, child processes included; other jobs hardly lengthen it."""
    return sum(os.times()[:4])


def described(
    compiled: Any,
    target: Target,
    own_seconds: float = 0.0,
    codes: Mapping[str, sass.Code] | None = None,
) -> dict[str, Any]:
    """The memory, collectives and kernels of a compiled program, for each device."""
    stats = compiled.memory_analysis()
    parts = ("argument", "output", "alias", "temp", "generated_code")
    memory = {part: getattr(stats, f"{part}_size_in_bytes") for part in parts}
    total = sum(memory.values()) - 2 * memory["alias"]
    room = target.chip and target.chip.memory_bytes
    text = compiled.as_text()
    found = list(hlo.kernels(text, codes))
    played = target.chip and schedule.play(text, target.chip, own_seconds, codes)
    return {
        "memory_bytes": memory,  # outputs that are aliased take an argument's place
        "total_bytes": total,
        "fits": room and total <= room,
        # A loop's body is counted once here, however often it runs.
        "xla_flops": (compiled.cost_analysis() or {}).get("flops"),
        "collectives": [
            {
                "kind": collective.kind,
                "arrays": len(collective.shapes),
                "bytes": collective.bytes,
                "group": collective.group,
                "times": times,
            }
            for collective, times in hlo.collectives(text).items()
        ],
        "schedule": played and {**played._asdict(), "seconds": played.seconds},
        "kinds": kinds.by_kind(found, target.chip),
        "largest_kernels": kinds.largest(found, target.chip),
    }


def write_hlo(path: Path, text: str) -> None:
    """Writes an optimized program to a compressed file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def table(results: Mapping[str, Any]) -> str:
    """One line for each program."""
    header = (
        "program",
        "batch",
        "compiles in, s",
        "CPU s",
        "arguments, GB",
        "other outputs",
        "temporary",
        "code",
        "total",
        "fits",
        "model TFLOP",
        "collectives a device takes part in",
    )

    def cells(name: str, r: Mapping[str, Any]) -> list[str]:
        parts = r["accumulation_steps"]
        seconds = f"{r['compile_seconds']:.0f}", f"{r['compile_cpu_seconds']:.0f}"
        fits = {True: "yes", False: "**no**", None: "-"}[r["fits"]]
        batch = f"{r['batch']}" + (f" in {parts} parts" if parts > 1 else "")
        if "error" in r:
            return [name, batch, *seconds, *["-"] * 5, fits, "-", r["error"]]
        memory = r["memory_bytes"]
        sizes = (
            memory["argument"],
            memory["output"] - memory["alias"],
            memory["temp"],
            memory["generated_code"],
            r["total_bytes"],
        )
        return [
            name,
            batch,
            *seconds,
            *(f"{size / 1e9:.2f}" for size in sizes),
            fits,
            f"{r['model_flops_per_device'] / 1e12:.3g}",
            summary(r["collectives"]),
        ]

    return harness.markdown(header, [cells(*item) for item in results.items()])


def summary(collectives: Sequence[Mapping[str, Any]]) -> str:
    """The number and size of each kind of collective."""
    by_kind: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for collective in collectives:
        sums = by_kind[collective["kind"]]
        sums[0] += collective["times"]
        sums[1] += collective["times"] * collective["bytes"]
    found = [
        f"{times} {kind}: {size / 1e6:.1f} MB"
        for kind, (times, size) in sorted(by_kind.items())
    ]
    return "; ".join(found) or "none"


def account(result: Mapping[str, Any]) -> str:
    """A step's time on a device, as `schedule.play` estimates it."""
    played = result["schedule"]
    exposed, sent = (
        sum(played[name].values()) for name in ("exposed_seconds", "sent_bytes")
    )
    parts = {
        "kernels": played["kernel_seconds"],
        "our own kernels": played["own_seconds"],
        "between kernels": played["idle_seconds"],
        "exposed exchange": exposed,
    }
    terms = " + ".join(f"{value * 1e3:.2f} ms {name}" for name, value in parts.items())
    return (
        f"{terms} = {played['seconds'] * 1e3:.2f} ms; a device sends "
        f"{sent / 1e6:.0f} MB in {played['network_seconds'] * 1e3:.2f} ms"
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="targets:\n"
        + "\n".join(f"  {name:9} {t.meaning}" for name, t in TARGETS.items()),
    )
    parser.add_argument("--target", choices=list(TARGETS), required=True)
    text = f"comma list of {', '.join(CASES)}; default: what the target can run"
    parser.add_argument("--cases", type=some_of(CASES), help=text)
    add_sizes(parser)
    parser.set_defaults(batch=None)  # each case has its own
    parser.add_argument(
        "--layer_loop", choices=("unrolled", "scan"), default="unrolled"
    )
    parser.add_argument(
        "--attention_form",
        choices=("auto", "blocked", "fused", "plain"),
        default="auto",
        help="auto: our kernels, where the target has any",
    )
    parser.add_argument(
        "--layer_norm_form", choices=("auto", "fused", "plain"), default="auto"
    )
    text = "ms that all kernels of ours for a TPU take; its compiler does not say"
    parser.add_argument("--own_kernels", type=float, default=0.0, help=text)
    text = "folder for the optimized programs, and for a GPU the code of their kernels"
    parser.add_argument("--hlo", help=text)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    flags = parser.parse_args(arguments)
    several = TARGETS[flags.target].num_chips > 1
    flags.cases = flags.cases or list(CASES if several else ALONE)
    return flags


def main(arguments: Sequence[str]) -> None:
    """Compiles case after case, prints the table, writes the JSON file."""
    flags = parse(arguments)
    target = TARGETS[flags.target]
    prepare(target)
    record = harness.describe("compiler.compiled", arguments)
    results = {}
    for name in flags.cases:
        print(f"{name} for {target.meaning} ..", file=sys.stderr)
        results[name] = compile_case(name, flags, target)
        if flags.output:  # each time: a compiler takes minutes, and may crash
            harness.write_json(flags.output, record, flags, results)
    print(table(results))
    for name, result in results.items():
        if result.get("schedule"):
            print(f"\n{name}: {account(result)}")
        if "kinds" in result:
            print(f"\n{name}: {kinds.tables(result, target.chip)}")
    if any("error" in result for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
