"""The parts of a training step, one by one: this package against alternatives.

    python benchmarks/pieces.py [--pieces=loss,dense] [--dtype=bfloat16] [--output=FILE]

  dropout        of hidden states [N, T, D]
  dropout_probs  of attention probabilities [N, H, T, T]
  attention      causal, with dropout, [N, T, H, K]
  loss           tied softmax and mean cross entropy, [N, T, D] and [V, D]
  dense          the product [N, T, D] x [D, 4 D] of the MLP
  optimizer      clipping to a global norm and Adam with weight decay, all parameters

at the paper's sizes by default, H = D / 64. Times are of forward and backward, or of
one update. The variants of a piece take turns in this process, `--calls` calls each,
for `--rounds` rounds; PyTorch's are eager. On a CPU every call is awaited, on an
accelerator those of a turn together. "temporary" is the memory that XLA's compiled
program takes beside its arguments and results. Only the first GPU is used.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from command_line import add_calls, add_sizes, some_of
from harness import Case

PIECES: dict[str, tuple[str, tuple[str, ...]]] = {  # function and its arguments
    "dropout": ("dropout_cases", ("hidden",)),
    "dropout_probs": ("dropout_cases", ("probs",)),
    "attention": ("attention_cases", ()),
    "loss": ("loss_cases", ()),
    "dense": ("dense_cases", ()),
    "optimizer": ("optimizer_cases", ()),
}


def make_cases(
    piece: str, flags: argparse.Namespace, modules: Sequence[str]
) -> dict[str, Case]:
    """The variants of a piece that are in these modules, compiled."""
    function, arguments = PIECES[piece]
    cases: dict[str, Case] = {}
    for name in modules:
        make = getattr(importlib.import_module(name), function)
        cases.update(make(flags, *arguments))
    return cases


def measure(cases: Mapping[str, Case], flags: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a call, by variant; the first call of each is not timed."""
    results: dict[str, Any] = {
        name: {
            "seconds": [],
            "device": case.device,
            "temporary_bytes": case.temporary_bytes,
        }
        for name, case in cases.items()
    }
    for turn in range(flags.rounds + 1):
        for name, case in cases.items():
            if turn == 0:
                case.wait(case.run())
                continue
            time.sleep(harness.PAUSE_SECONDS)
            results[name]["seconds"] += run_turn(case, flags.calls)
    harness.compare(results, lambda name: name.startswith("torch"))
    return results


def run_turn(case: Case, calls: int) -> list[float]:
    """Seconds of each call, or of all as a mean where the device must not idle."""
    at_once = 1 if case.device == "cpu" else calls
    seconds = []
    for _ in range(0, calls, at_once):
        start = time.perf_counter()
        for _ in range(at_once):
            outputs = case.run()
        case.wait(outputs)
        seconds.append((time.perf_counter() - start) / at_once)
    return seconds


def table(results: Mapping[str, Any]) -> str:
    """One line for each variant of each piece."""
    header = (
        "piece",
        "variant",
        "ms (median)",
        "min",
        "speed vs best PyTorch",
        "temporary, MiB",
    )

    def cells(piece: str, name: str, r: Mapping[str, Any]) -> list[str]:
        ratio, memory = r["speed_vs_best_torch"], r["temporary_bytes"]
        return [
            piece,
            name,
            f"{1e3 * r['median_seconds']:.4g}",
            f"{1e3 * r['min_seconds']:.4g}",
            f"{ratio:.2f}" if ratio else "-",
            "-" if memory is None else f"{memory / 2**20:.1f}",
        ]

    rows = [
        cells(piece, name, result)
        for piece, variants in results.items()
        for name, result in variants.items()
    ]
    return harness.markdown(header, rows, text_columns=2)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_sizes(parser)
    add_calls(parser)
    names = some_of(PIECES)
    everything = ",".join(PIECES)
    parser.add_argument("--pieces", type=names, default=everything, help="comma list")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measures piece after piece, prints the table, writes the JSON file."""
    flags = parse(arguments)
    record = harness.describe("pieces.py", arguments)
    harness.use_first_gpu()
    modules = ["jax_pieces"]
    if not harness.missing_packages(["torch"]):
        modules.append("torch_pieces")
    results = {}
    for piece in flags.pieces:
        results[piece] = measure(make_cases(piece, flags, modules), flags)
    print(table(results))
    doubts = harness.different_devices(r for p in results.values() for r in p.values())
    for doubt in doubts:
        print(f"WARNING: {doubt}", file=sys.stderr)
    if flags.output:
        harness.write_json(flags.output, record, flags, results)
    if doubts:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
