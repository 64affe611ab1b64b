"""Where the time of a training step goes on a device, kernel by kernel.

    python -m benchmarks.on_accelerator.top_kernels --batch=64 [--variant=jax_bf16]
        [--steps=5] [--top=40] [--trace=DIR] [--output=FILE]

Trains the benchmarks' model of the paper's size, or another variant of
`peers.train_step`, for a few steps under JAX's profiler and adds up the time of each
kernel on the device; on a CPU, of each operation on its threads. On a GPU, whose
kernels run one after another, it says how long each kind takes and how long the device
waits between them. `--trace` keeps the trace, for XProf or Perfetto.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import harness
from benchmarks.harness import count
from benchmarks.paper_model import add_sizes, draw_batches
from benchmarks.peers.train_step import VARIANTS, build_jax

# On a GPU, what the names of the kernels of each kind begin with.
PARTS = {
    "products": ("nvjet", "cublas", "cutlass", "sm90", "sm80", "gemm_fusion"),
    "attention kernels": ("attention_",),
    "LayerNorm kernels": ("layer_norm",),
}
_OURS = [name for name, variant in VARIANTS.items() if not variant.is_peer]


def record_trace(flags: argparse.Namespace, folder: str) -> str:
    """Traces `--steps` steps after two untraced ones; returns the kind of device."""
    variant, batches = VARIANTS[flags.variant], draw_batches(flags)
    trainer = build_jax(flags, variant.dtype, **variant.options)
    for _ in range(2):
        trainer.step(trainer.put(next(batches)))
    tokens = [trainer.put(next(batches)) for _ in range(flags.steps)]
    trainer.wait()
    with jax.profiler.trace(folder):
        for batch in tokens:
            trainer.step(batch)
        trainer.wait()
    return trainer.device


class Kernel(NamedTuple):
    """A kernel that ran on the device during the trace, in seconds."""

    name: str
    seconds: float
    start: float


def kernels(folder: str) -> Iterator[Kernel]:
    """Each kernel that ran on the device during the trace."""
    for path in Path(folder).rglob("*.xplane.pb"):
        data = jax.profiler.ProfileData.from_file(str(path))
        for plane in data.planes:
            for line in plane.lines:
                if not _holds_kernels(plane.name, line.name):
                    continue
                for event in line.events:
                    if ":" not in event.name:  # the CPU's thread pool: "end: add.1"
                        seconds, start = event.duration_ns / 1e9, event.start_ns / 1e9
                        yield Kernel(event.name, seconds, start)


def _holds_kernels(plane: str, line: str) -> bool:
    """Whether a line of a trace holds operations of XLA, each of them once."""
    if plane.startswith("/device:TPU:0"):  # all devices do the same
        return line == "XLA Ops"
    if plane.startswith("/device:GPU:0"):
        return line.startswith("Stream")
    return plane == "/host:CPU" and line.startswith("tf_XLA")


def parts(ran: Sequence[Kernel], steps: int) -> dict[str, float]:
    """Seconds a step of each kind of a GPU's kernels, and between kernels."""
    found = dict.fromkeys((*PARTS, "the rest"), 0.0)
    for kernel in ran:
        kinds = (kind for kind, names in PARTS.items() if kernel.name.startswith(names))
        found[next(kinds, "the rest")] += kernel.seconds / steps
    begun = min(kernel.start for kernel in ran)
    whole = max(kernel.start + kernel.seconds for kernel in ran) - begun
    return found | {"between kernels": whole / steps - sum(found.values())}


def table(seconds: Counter[str], calls: Counter[str], flags: argparse.Namespace) -> str:
    """The kernels that take the most time, a line each."""
    whole = seconds.total()
    rows = [
        [
            f"{total / flags.steps * 1e3:.3f}",
            f"{total / whole:.1%}",
            f"{calls[name] / flags.steps:.0f}",
            name[:90],
        ]
        for name, total in seconds.most_common(flags.top)
    ]
    header = "ms a step", "of all", "calls a step", "kernel"
    return harness.markdown(header, rows)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_sizes(parser)
    text = f"one of {', '.join(_OURS)}"
    parser.add_argument("--variant", choices=_OURS, default="jax_bf16", help=text)
    parser.add_argument("--steps", type=count, default=5, help="traced steps")
    parser.add_argument("--top", type=count, default=40, help="kernels to show")
    parser.add_argument("--trace", type=Path, help="folder to keep the trace in")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Traces, prints the table, writes the JSON file."""
    flags = parse(arguments)
    record = harness.describe("on_accelerator.top_kernels", arguments)
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(flags.trace or scratch)
        device = record_trace(flags, folder)
        ran = list(kernels(folder))
    for kernel in ran:
        seconds[kernel.name] += kernel.seconds
        calls[kernel.name] += 1
    if not ran:
        sys.exit(f"top_kernels.py: the trace of {device} holds no kernels")
    print(f"{device}: {seconds.total() / flags.steps * 1e3:.2f} ms a step in kernels\n")
    print(table(seconds, calls, flags))
    results: dict[str, Any] = {
        name: {"seconds": total / flags.steps, "calls": calls[name] / flags.steps}
        for name, total in seconds.most_common()
    }
    found = {"device": device, "parts": {}, "kernels": results}
    if jax.default_backend() == "gpu":
        found["parts"] = parts(ran, flags.steps)
        rows = [[name, f"{1e3 * each:.2f}"] for name, each in found["parts"].items()]
        print("\n" + harness.markdown(("part", "ms a step"), rows))
    harness.write_json(flags.output, record, flags, found)


if __name__ == "__main__":
    main(sys.argv[1:])
