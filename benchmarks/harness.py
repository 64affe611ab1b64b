"""Measures and reports: turns, comparison with peers, tables, JSON, flags."""

import argparse
import contextlib
import ctypes
import importlib
import importlib.util
import json
import multiprocessing
import os
import pkgutil
import platform
import resource
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import gpt1_jax
from gpt1_jax import main
from gpt1_jax.data.files import write_whole

PEER_PACKAGES = ("torch", "transformers")
COMPILER_PACKAGES = ("libtpu", "jax_cuda12_plugin")
PAUSE_SECONDS = 0.5  # lets the threads of the last variant stop spinning
_END_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG
PROGRAMS = "BENCHMARK_PROGRAMS"  # environment: a folder that keeps compiled programs

_trainer: "Trainer"  # of a variant's own process, set by `_warm_up`
_batches: Iterator[Any]


class Trainer(NamedTuple):
    """A model in training on one device: what a builder returns."""

    put: Callable[[Any], Any]  # a batch to the device
    step: Callable[[Any], Any]  # one update; its loss, perhaps still being computed
    wait: Callable[[], object]  # until the device has done all it was given
    device: str
    peak_bytes: Callable[[], int | None]  # of device memory; None on a CPU


class Case(NamedTuple):
    """A computation to time in this process."""

    run: Callable[[], Any]  # starts it; its outputs
    wait: Callable[[Any], object]  # until outputs are there
    device: str
    temporary_bytes: int | None  # beside arguments and outputs; None if unknown


class Variant(NamedTuple):
    """A trainer to measure: `build(flags, dtype, **options)` makes a `Trainer`."""

    build: str  # a function of this folder: "peers.train_step.build_jax"
    dtype: str
    options: Mapping[str, Any]
    packages: tuple[str, ...]  # imported before the clock starts
    batches: str = "paper_model.draw_batches"  # of the flags; endless, the same for all

    @property
    def is_peer(self) -> bool:
        return "torch" in self.packages

    def needs_any(self, missing: Sequence[str]) -> bool:
        """Whether it needs one of these top-level packages."""
        return any(package.partition(".")[0] in missing for package in self.packages)


def measure(
    variants: Mapping[str, Variant],
    flags: argparse.Namespace,
    keep: Callable[[dict[str, Any]], object] = lambda results: None,
) -> dict[str, Any]:
    """Trains variants in turns, each in its process; drops those that fail.

    Args:
      variants: by name.
      flags: sizes, and the numbers of steps and rounds.
      keep: called after each turn with the results of all variants timed so far, so
        that they can be written before the next.
    """
    use_first_gpu()
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.environ.get(PROGRAMS, scratch)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        return _take_turns(variants, flags, keep)


def _take_turns(
    variants: Mapping[str, Variant],
    flags: argparse.Namespace,
    keep: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    processes = {
        name: futures.ProcessPoolExecutor(1, context, end_with_parent)
        for name in variants
    }
    loaded = {
        name: process.submit(_load, variants[name].packages)
        for name, process in processes.items()
    }
    futures.wait(loaded.values())  # all at once; it leaves the device alone
    results: dict[str, Any] = {name: {"seconds": []} for name in variants}
    for turn in range(flags.rounds + 1):
        for name in list(results):
            first = (_warm_up, variants[name], flags)
            task = (_train, flags.steps) if turn else first
            time.sleep(PAUSE_SECONDS)
            try:
                loaded[name].result()
                reply = processes[name].submit(*task).result()
            except Exception:  # raised by the variant, or it was killed
                traceback.print_exc()
                print(f"{name} FAILED", file=sys.stderr)
                processes[name].shutdown()
                del results[name]
                continue
            seconds = reply.pop("seconds", [])
            results[name]["seconds"] += seconds
            results[name].update(reply)
            said = f"{min(seconds):.4g} s" if seconds else "ready"
            if not turn:
                said += f", first step after {reply['first_step_seconds']:.1f} s"
            print(f"{name}, turn {turn} of {flags.rounds}: {said}", file=sys.stderr)
            if timed := {each: r for each, r in results.items() if r["seconds"]}:
                keep(timed)
    for process in processes.values():
        process.shutdown()
    return results


def _load(packages: Sequence[str]) -> None:
    """Imports what a variant needs.

    Peers too keep the memory that they free, as the program does: each at its best.
    """
    main.keep_freed_memory()
    for package in packages:
        importlib.import_module(package)


def _warm_up(variant: Variant, flags: argparse.Namespace) -> dict[str, Any]:
    """Builds a variant in this process and trains until all is compiled.

    On an accelerator a timed turn follows: its time, which may be cut off while the
    next variant compiles, is used for one result at least.
    """
    global _trainer, _batches
    build = pkgutil.resolve_name(f"benchmarks.{variant.build}")
    draw = pkgutil.resolve_name(f"benchmarks.{variant.batches}")
    start = time.perf_counter()
    _trainer = build(flags, variant.dtype, **variant.options)
    _batches = draw(flags)
    _train(0)
    first_step = time.perf_counter() - start
    for _ in range(flags.warmup - 1):
        _train(0)
    return {
        "dtype": variant.dtype,
        "device": _trainer.device,
        "first_step_seconds": first_step,
        **({} if _trainer.device == "cpu" else _train(flags.steps)),
    }


def _train(num_steps: int) -> dict[str, Any]:
    """Trains this process's variant further; times, last loss and peak memory so far.

    First it takes one untimed step: after a wait, caches are cold and memory must be
    allocated again, which steps of a long run do not pay for.
    """
    first_batch, *tokens = (_trainer.put(next(_batches)) for _ in range(num_steps + 1))
    loss = _trainer.step(first_batch)
    _trainer.wait()
    at_once = 1 if _trainer.device == "cpu" else max(1, num_steps)
    seconds = []
    for first in range(0, num_steps, at_once):
        start = time.perf_counter()
        for batch in tokens[first : first + at_once]:
            loss = _trainer.step(batch)
        _trainer.wait()
        seconds.append((time.perf_counter() - start) / at_once)
    unit = 1 if sys.platform == "darwin" else 1024
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    peak_bytes = _trainer.peak_bytes() or resident
    return {"seconds": seconds, "loss": float(loss), "peak_bytes": peak_bytes}


def end_with_parent() -> None:
    """Lets Linux end this process as soon as the one that started it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """The same command, which Linux tells to end as soon as this process has ended."""
    if sys.platform != "linux":
        return list(command)
    ask = f"ctypes.CDLL(None).prctl({_END_WITH_PARENT}, {signal.SIGTERM:d})"
    begin = f"import ctypes, os, sys; {ask}; os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", begin, *command]


def use_first_gpu() -> None:
    """Restricts this process and its children to one GPU and new programs.

    Programs that an earlier measurement compiled are used only if the environment's
    `PROGRAMS` names a folder of them. Call it before JAX starts.
    """
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.partition(",")[0]
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if folder := os.environ.get(PROGRAMS):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/jax"
    else:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"


def describe(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The date, machine, versions and command of a measurement."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    packages = ("jax", "jaxlib", "flax", *PEER_PACKAGES, *COMPILER_PACKAGES)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpu": models[0] if models else platform.processor(),
            "cores": os.cpu_count(),
            "load_average_before": os.getloadavg()[0],  # of other jobs, if not near 0
            "gpus": nvidia_gpus(),
        },
        "versions": {
            "python": platform.python_version(),
            "gpt1_jax": gpt1_jax.__version__,
            **{p: metadata.version(p) for p in packages if importlib.util.find_spec(p)},
        },
        "command": shlex.join(["python", "-m", f"benchmarks.{script}", *arguments]),
    }


def nvidia_gpus() -> list[str]:
    """The name, driver and memory of each NVIDIA GPU; none without their driver."""
    if not shutil.which("nvidia-smi"):
        return []
    query = "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
    found = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True)
    return found.stdout.splitlines()


def missing_packages(packages: Iterable[str]) -> list[str]:
    """The packages that are not installed; prints how to get them."""
    missing = [p for p in sorted(set(packages)) if not importlib.util.find_spec(p)]
    if missing:
        names = " ".join(missing)
        print(f"Variants are left out: pip install {names}", file=sys.stderr)
    return missing


def runnable(variants: Mapping[str, Variant], names: Sequence[str]) -> list[str]:
    """The named variants whose peers are installed; exits if there are none."""
    missing = missing_packages(
        package.partition(".")[0]
        for name in names
        if variants[name].is_peer
        for package in variants[name].packages
    )
    found = [name for name in names if not variants[name].needs_any(missing)]
    if not found:
        sys.exit(f"{Path(sys.argv[0]).stem}: none of the variants can run here")
    return found


def finish(
    record: Mapping[str, Any],
    flags: argparse.Namespace,
    names: Sequence[str],
    results: Mapping[str, Any],
    doubts: Sequence[str],
) -> None:
    """Writes the JSON file; exits 1 if there are doubts or a variant failed."""
    for doubt in doubts:
        print(f"WARNING: {doubt}", file=sys.stderr)
    flags.variants = names
    write_json(flags.output, record, flags, results)
    if doubts or len(results) < len(names):
        sys.exit(1)


def write_json(
    path: Path | None,
    record: Mapping[str, Any],
    flags: argparse.Namespace,
    results: Any,
) -> None:
    """The record of `describe`, the flags and the results, as one JSON file, if named.

    It may be written again and again, whenever there are more results.
    """
    if not path:
        return
    settings = {name: value for name, value in vars(flags).items() if name != "output"}
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**record, "settings": settings, "results": results}
    write_whole(path, json.dumps(document, indent=2, default=str) + "\n")


def compare(results: Mapping[str, Any], is_peer: Callable[[str], bool]) -> None:
    """Adds median, least time and speed beside the fastest peer to each result."""
    for result in results.values():
        result["median_seconds"] = statistics.median(result["seconds"])
        result["min_seconds"] = min(result["seconds"])
    peers = [r["median_seconds"] for name, r in results.items() if is_peer(name)]
    best = min(peers, default=None)
    for result in results.values():
        result["speed_vs_best_torch"] = best and best / result["median_seconds"]


def different_devices(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """A complaint if the results come from different kinds of device."""
    devices = {result["device"] for result in results}
    return [f"devices differ: {sorted(devices)}"] if len(devices) > 1 else []


def add_record(path: Path, record: Mapping[str, Any]) -> None:
    """Adds a line of JSON to a file, even if its last one was cut off."""
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        begun = file.read() not in (b"", b"\n")
        file.write(b"\n" * begun + json.dumps(record).encode() + b"\n")


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, a line each, if it is there; not what is damaged."""
    found = []
    lines = path.read_text(errors="replace").splitlines() if path.exists() else ()
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]


def markdown(
    header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1
) -> str:
    """A Markdown table; the first columns are text, the others numbers."""
    rule = ["---"] * text_columns + ["---:"] * (len(header) - text_columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def count(text: str) -> int:
    """A flag's value that counts something: a whole number, at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return int(text)


def some_of(names: Collection[str]) -> Callable[[str], list[str]]:
    """For a flag whose value is a comma-separated list of some of these names."""

    def read(text: str) -> list[str]:
        chosen = list(dict.fromkeys(text.split(",")))
        unknown = sorted(set(chosen) - set(names))
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no {unknown}; choose from {', '.join(names)}"
            )
        return chosen

    return read
