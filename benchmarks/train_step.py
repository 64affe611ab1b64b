"""The pre-training step at the paper's size: this package against PyTorch.

    python benchmarks/train_step.py [--batch=2] [--steps=2] [--rounds=5] [--output=FILE]

One step is forward, backward, clipping to global norm 1 and Adam with weight decay,
with all dropouts at 0.1 (Radford et al. 2018, sec. 4.1). The peer is Hugging Face's
`OpenAIGPTLMHeadModel` with fused AdamW, eager and under `torch.compile`. Parameters
are float32 throughout and all variants see the same batches, Zipf-distributed tokens;
for bfloat16 PyTorch runs under autocast and ours has config.model.dtype="bfloat16".

Each variant lives in a process of its own, which gives its peak memory: resident on a
CPU, allocated on a GPU. The processes take turns, `--steps` steps each, for `--rounds`
rounds, while the others wait, so that a disturbance meets all of them. On a CPU every
step is timed; on an accelerator, which must not idle between steps, a turn is timed as
a whole. Compilation caches start empty. Only the first GPU is used.
"""

import argparse
import functools
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import resource
import runpy
import shlex
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_VOCAB_SIZE = 40478
_ZIPF = 1.0 / np.arange(1, _VOCAB_SIZE + 1)
_ZIPF /= _ZIPF.sum()  # probability of each token id
_PAUSE_SECONDS = 0.5  # lets the threads of the last variant stop spinning
_PEER_PACKAGES = ("torch", "transformers")

_trainer: "Trainer"  # of a variant's own process, set by `warm_up`
_batches: Iterator[np.ndarray]


class Trainer(NamedTuple):
    """A model in training on one device: what a builder returns."""

    put: Callable[[np.ndarray], Any]  # [B, T] ids to the device
    step: Callable[[Any], Any]  # one update; its loss, perhaps still being computed
    wait: Callable[[], object]  # until the device has done all it was given
    device: str
    peak_bytes: Callable[[], int | None]  # of device memory; None on a CPU


class Variant(NamedTuple):
    """What is measured; `build(flags, dtype)` makes a `Trainer`."""

    build: Callable[[argparse.Namespace, str], Trainer]
    dtype: str
    modules: tuple[str, ...]  # imported before the clock starts

    @property
    def is_peer(self) -> bool:
        return "torch" in self.modules


def build_jax(flags: argparse.Namespace, dtype: str) -> Trainer:
    """This package's step, put together as `gpt1_jax.training.pretrain.run` does."""
    import jax

    from gpt1_jax.model import transformer
    from gpt1_jax.parallel import mesh as parallel
    from gpt1_jax.training import optimizer as optimizers
    from gpt1_jax.training.pretrain import make_pretrain_step
    from gpt1_jax.training.state import init_state

    config = pretrain_config(flags, dtype)
    jax.config.update("jax_default_matmul_precision", config.train.matmul_precision)
    model = config.model_config(_VOCAB_SIZE)
    optimizer = optimizers.make_optimizer(config.optimizer, config.train.num_steps)
    schedule = optimizers.make_schedule(config.optimizer, config.train.num_steps)
    mesh = parallel.make_mesh()
    everywhere = parallel.replicated(mesh)
    step = jax.jit(
        make_pretrain_step(model, optimizer, schedule, seed=config.seed),
        in_shardings=(everywhere, parallel.batch_sharding(mesh)),
        out_shardings=everywhere,
        donate_argnums=0,
    )

    def fresh() -> Any:
        params = transformer.init_params(model, jax.random.key(config.seed))
        return init_state(params, optimizer)

    state = jax.jit(fresh, out_shardings=everywhere)()

    def update(tokens: jax.Array) -> jax.Array:
        nonlocal state
        state, metrics = step(state, tokens)
        return metrics["loss"]

    device = jax.devices()[0]
    return Trainer(
        put=lambda tokens: parallel.to_global_batch(tokens, mesh),
        step=update,
        wait=lambda: jax.block_until_ready(state),
        device=device.device_kind,
        peak_bytes=lambda: (device.memory_stats() or {}).get("peak_bytes_in_use"),
    )


def pretrain_config(flags: argparse.Namespace, dtype: str) -> Any:
    """`configs/pretrain.py` with the benchmark's sizes and a rate that is never 0."""
    from gpt1_jax.config import from_config_dict

    path = Path(__file__).parent.parent / "configs" / "pretrain.py"
    config = runpy.run_path(str(path))["get_config"]("paper")
    config.model.update(num_layers=flags.layers, max_seq_len=flags.seq_len, dtype=dtype)
    config.tokenizer.vocab_size = _VOCAB_SIZE
    config.train.batch_size = flags.batch
    config.train.update(num_epochs=0.0, num_steps=1_000_000)
    config.optimizer.update(schedule="constant", warmup_steps=0)
    return from_config_dict(config.to_dict())


def build_transformers(
    flags: argparse.Namespace, dtype: str, *, compiled: bool
) -> Trainer:
    """`OpenAIGPTLMHeadModel` with the same sizes, dropouts and optimizer settings."""
    import torch
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    torch.manual_seed(0)
    sizes = OpenAIGPTConfig(
        vocab_size=_VOCAB_SIZE, n_positions=flags.seq_len, n_layer=flags.layers
    )
    return _torch_trainer(OpenAIGPTLMHeadModel(sizes), flags, dtype, compiled)


def _torch_trainer(
    model: Any, flags: argparse.Namespace, dtype: str, compiled: bool
) -> Trainer:
    """A training step for a model that computes its loss from `labels`."""
    import torch

    on_gpu = torch.cuda.is_available()
    kind = "cuda" if on_gpu else "cpu"
    if on_gpu:
        torch.set_float32_matmul_precision("high")  # TF32, which is JAX's default
    model = model.to(kind).train()
    settings = pretrain_config(flags, dtype).optimizer
    groups = [  # as in this package, vectors do not decay
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.b1, settings.b2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    call = torch.compile(model) if compiled else model

    def update(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        return loss.detach()

    return Trainer(
        put=lambda tokens: torch.from_numpy(tokens).long().to(kind),
        step=update,
        wait=torch.cuda.synchronize if on_gpu else lambda: None,
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        peak_bytes=torch.cuda.max_memory_allocated if on_gpu else lambda: None,
    )


_eager = functools.partial(build_transformers, compiled=False)
_compiled = functools.partial(build_transformers, compiled=True)
_HF = ("torch", "transformers.models.openai.modeling_openai")
_OURS = ("gpt1_jax.training.pretrain",)

VARIANTS = {
    "torch_f32_eager": Variant(_eager, "float32", _HF),
    "torch_f32_compiled": Variant(_compiled, "float32", _HF),
    "jax_f32": Variant(build_jax, "float32", _OURS),
    "torch_bf16_eager": Variant(_eager, "bfloat16", _HF),
    "torch_bf16_compiled": Variant(_compiled, "bfloat16", _HF),
    "jax_bf16": Variant(build_jax, "bfloat16", _OURS),
}


def warm_up(name: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Builds a variant in this process and trains until all is compiled."""
    global _trainer, _batches
    for module in VARIANTS[name].modules:
        importlib.import_module(module)
    start = time.perf_counter()
    _trainer = VARIANTS[name].build(flags, VARIANTS[name].dtype)
    _batches = draw_batches(flags)
    train(1)
    first_step = time.perf_counter() - start
    for _ in range(flags.warmup - 1):
        train(1)
    return {
        "dtype": VARIANTS[name].dtype,
        "device": _trainer.device,
        "first_step_seconds": first_step,
    }


def draw_batches(flags: argparse.Namespace) -> Iterator[np.ndarray]:
    """Endless [B, T] token ids, the same for every variant."""
    generator, shape = np.random.default_rng(0), (flags.batch, flags.seq_len)
    while True:
        yield generator.choice(_VOCAB_SIZE, shape, p=_ZIPF).astype(np.int32)


def train(num_steps: int) -> dict[str, Any]:
    """Trains this process's variant on; times, last loss and peak memory so far."""
    tokens = [_trainer.put(next(_batches)) for _ in range(num_steps)]
    _trainer.wait()
    at_once = 1 if _trainer.device == "cpu" else num_steps
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
    return {"step_seconds": seconds, "loss": float(loss), "peak_bytes": peak_bytes}


def measure(names: Sequence[str], flags: argparse.Namespace) -> dict[str, Any]:
    """Runs variants in turns, each in its process; drops those that fail."""
    context = multiprocessing.get_context("spawn")
    processes = {name: ProcessPoolExecutor(1, context) for name in names}
    results: dict[str, Any] = {name: {"step_seconds": []} for name in names}
    for turn in range(flags.rounds + 1):
        for name in list(results):
            task = (train, flags.steps) if turn else (warm_up, name, flags)
            time.sleep(_PAUSE_SECONDS)
            try:
                reply = processes[name].submit(*task).result()
            except Exception:  # raised by the variant, or it was killed
                traceback.print_exc()
                print(f"{name} FAILED", file=sys.stderr)
                processes[name].shutdown()
                del results[name]
                continue
            results[name]["step_seconds"] += reply.pop("step_seconds", [])
            results[name].update(reply)
    for process in processes.values():
        process.shutdown()
    return results


def measure_groups(names: Sequence[str], flags: argparse.Namespace) -> dict[str, Any]:
    """`measure`, one dtype after another unless told otherwise, with empty caches."""
    groups = [names]
    if flags.group_by_dtype:
        dtypes = dict.fromkeys(VARIANTS[name].dtype for name in names)
        groups = [[n for n in names if VARIANTS[n].dtype == d] for d in dtypes]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.partition(",")[0]
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the device is shared
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    results: dict[str, Any] = {}
    for group in groups:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/inductor"
            os.environ["TRITON_CACHE_DIR"] = f"{cache}/triton"
            results.update(measure(group, flags))
    return results


def summarise(results: dict[str, Any], flags: argparse.Namespace) -> None:
    """Adds to each result its rates and how it compares to the fastest PyTorch."""
    from gpt1_jax.model import transformer
    from gpt1_jax.parallel import mesh

    model = pretrain_config(flags, "float32").model_config(_VOCAB_SIZE)
    flops = transformer.train_flops_per_token(model, flags.seq_len)
    peak = flags.device_peak or mesh.peak_flops()
    for result in results.values():
        result["median_seconds"] = statistics.median(result["step_seconds"])
        result["min_seconds"] = min(result["step_seconds"])
        rate = flags.batch * flags.seq_len / result["median_seconds"]
        result["tokens_per_second"] = rate
        result["mfu"] = flops * rate / peak if peak else None
    for result in results.values():
        peers = [
            other["median_seconds"]
            for name, other in results.items()
            if VARIANTS[name].is_peer and other["dtype"] == result["dtype"]
        ]
        best = min(peers, default=None)
        result["speed_vs_best_torch"] = best and best / result["median_seconds"]


def markdown_table(results: dict[str, Any]) -> str:
    """One line for each variant."""
    lines = [
        "variant | s/step (median) | min | tokens/s | speed vs best PyTorch "
        "| first step, s | peak, GiB | loss | MFU",
        "--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---:",
    ]
    for name, r in results.items():
        ratio, mfu = r["speed_vs_best_torch"], r["mfu"]
        lines.append(
            f"{name} | {r['median_seconds']:.4g} | {r['min_seconds']:.4g} "
            f"| {r['tokens_per_second']:,.0f} | {f'{ratio:.2f}' if ratio else '-'} "
            f"| {r['first_step_seconds']:.1f} | {r['peak_bytes'] / 2**30:.2f} "
            f"| {r['loss']:.2f} | {f'{mfu:.1%}' if mfu else '-'}"
        )
    return "\n".join(f"| {line} |" for line in lines)


def suspicions(results: dict[str, Any]) -> list[str]:
    """What makes the results doubtful: impossible losses, unequal devices."""
    entropy = -float(_ZIPF @ np.log(_ZIPF))  # nats, the loss of a perfect model
    low, high = entropy - 1, math.log(_VOCAB_SIZE) + 1
    found = [
        f"the loss of {name} is {result['loss']}, outside ({low:.1f}, {high:.1f})"
        for name, result in results.items()
        if not low < result["loss"] < high
    ]
    devices = {result["device"] for result in results.values()}
    return found + ([f"devices differ: {sorted(devices)}"] if len(devices) > 1 else [])


def describe(arguments: Sequence[str]) -> dict[str, Any]:
    """When, where and with what the results are obtained."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    packages = ("gpt1_jax", "jax", "jaxlib", "flax", *_PEER_PACKAGES)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpu": models[0] if models else platform.processor(),
            "cores": os.cpu_count(),
            "load_average_before": os.getloadavg()[0],  # of other jobs, if not near 0
        },
        "versions": {
            "python": platform.python_version(),
            **{p: metadata.version(p) for p in packages if importlib.util.find_spec(p)},
        },
        "command": shlex.join(["python", "benchmarks/train_step.py", *arguments]),
    }


def installed(names: Sequence[str]) -> list[str]:
    """The variants that can run here; says how to get the others."""
    missing = [p for p in _PEER_PACKAGES if importlib.util.find_spec(p) is None]
    if not missing:
        return list(names)
    print(f"No PyTorch variants: pip install {' '.join(missing)}", file=sys.stderr)
    return [name for name in names if not VARIANTS[name].is_peer]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads and checks the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    count = functools.partial(parser.add_argument, type=int)
    counts = [
        count("--batch", default=2, help="sequences a step"),
        count("--seq_len", default=512, help="tokens a sequence"),
        count("--layers", default=12),
        count("--steps", default=2, help="timed steps a turn"),
        count("--rounds", default=5, help="turns of each variant"),
        count("--warmup", default=2, help="untimed steps before"),
    ]
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma list")
    parser.add_argument("--device_peak", type=float, help="FLOP/s, for the MFU")
    yes_no = argparse.BooleanOptionalAction
    text = "float32 first, then bfloat16: half the memory of all at once"
    parser.add_argument("--group_by_dtype", action=yes_no, default=True, help=text)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    flags = parser.parse_args(arguments)
    flags.variants = list(dict.fromkeys(flags.variants.split(",")))
    unknown = sorted(set(flags.variants) - set(VARIANTS))
    if unknown:
        parser.error(f"--variants: no {unknown}; choose from {', '.join(VARIANTS)}")
    if min(getattr(flags, each.dest) for each in counts) < 1:
        parser.error(f"{', '.join(f'--{c.dest}' for c in counts)} must be at least 1")
    return flags


def main(arguments: Sequence[str]) -> None:
    """Measures, prints the table, writes the JSON file."""
    flags = parse(arguments)
    record = describe(arguments)
    names = installed(flags.variants)
    if not names:
        sys.exit("train_step: none of the variants can run here")
    results = measure_groups(names, flags)
    summarise(results, flags)
    print(markdown_table(results))
    doubts = suspicions(results)
    for doubt in doubts:
        print(f"WARNING: {doubt}", file=sys.stderr)
    if flags.output:
        settings = {**vars(flags), "variants": names}
        settings.pop("output")
        record.update(settings=settings, results=results)
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        flags.output.write_text(json.dumps(record, indent=2) + "\n")
    if doubts or len(results) < len(names):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
