"""The pieces of a training step, one by one: this package against alternatives.

    python -m benchmarks.peers.pieces [--pieces=loss,dense] [--dtype=bfloat16]
        [--output=FILE]

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
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Case, count, some_of
from benchmarks.paper_model import HEAD_DIM, MLP_RATIO, add_sizes, draw_batches

GRADIENT = 1e-4  # of every parameter; its norm is 1.08 at the paper's size
PIECES: dict[str, tuple[str, tuple[str, ...]]] = {  # function and its arguments
    "dropout": ("dropout_cases", ("hidden",)),
    "dropout_probs": ("dropout_cases", ("probs",)),
    "attention": ("attention_cases", ()),
    "loss": ("loss_cases", ()),
    "dense": ("dense_cases", ()),
    "optimizer": ("optimizer_cases", ()),
}


# --- arrays that the variants of one piece share: float32, the same at every call ---


def dropout_arrays(flags: argparse.Namespace, name: str) -> list[np.ndarray]:
    """The input and the output's gradient: "hidden" [N, T, D], "probs" [N, H, T, T]."""
    n, t = flags.batch, flags.seq_len
    heads = flags.embed_dim // HEAD_DIM
    shape = (n, t, flags.embed_dim) if name == "hidden" else (n, heads, t, t)
    return _normal(shape, shape)


def attention_arrays(flags: argparse.Namespace) -> list[np.ndarray]:
    """Query, key, value and the output's gradient, [N, T, H, K]."""
    heads = flags.embed_dim // HEAD_DIM
    shape = (flags.batch, flags.seq_len, heads, HEAD_DIM)
    return _normal(*[shape] * 4)


def loss_arrays(flags: argparse.Namespace) -> list[np.ndarray]:
    """Hidden states [N, T, D], softmax rows [V, D] and int32 tokens [N, T]."""
    d = flags.embed_dim
    hidden, rows = _normal((flags.batch, flags.seq_len, d), (flags.vocab_size, d))
    return [hidden, rows / np.float32(math.sqrt(d)), next(draw_batches(flags))]


def dense_arrays(flags: argparse.Namespace) -> list[np.ndarray]:
    """States [N, T, D], kernel [D, F] and the output's gradient [N, T, F]."""
    rows, d = (flags.batch, flags.seq_len), flags.embed_dim
    x, kernel, gradient = _normal(
        (*rows, d), (d, MLP_RATIO * d), (*rows, MLP_RATIO * d)
    )
    return [x, kernel / np.float32(math.sqrt(d)), gradient]


def _normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape, np.float32) for shape in shapes]


# --- measuring ---


def make_cases(
    piece: str, flags: argparse.Namespace, modules: Sequence[str]
) -> dict[str, Case]:
    """The variants of a piece in these modules, compiled."""
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
    """Seconds of each call on a CPU; on an accelerator, the mean of all calls."""
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


def add_calls(parser: argparse.ArgumentParser) -> None:
    """Adds --calls, --rounds, --dtype and --dropout."""
    parser.add_argument("--calls", type=count, default=3, help="timed calls a turn")
    parser.add_argument("--rounds", type=count, default=5, help="turns of each variant")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--dropout", type=float, default=0.1, help="its rate")


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
    record = harness.describe("peers.pieces", arguments)
    harness.use_first_gpu()
    modules = ["benchmarks.peers.jax_pieces"]
    if not harness.missing_packages(["torch"]):
        modules.append("benchmarks.peers.torch_pieces")
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
