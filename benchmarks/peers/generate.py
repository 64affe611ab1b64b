"""Generation at the paper's size: this package against transformers.

    python -m benchmarks.peers.generate [--batch=1] [--new_tokens=256] [--output=FILE]

Greedy continuations of random prompts, all of the same length. The peers, eager, are
transformers' generate for its GPT-1, which has no cache, and for a GPT-2 small of
random weights, which has one and 7% more parameters. Variants take turns as in
`train_step.py`: a few untimed tokens, then all tokens timed, reading the prompt
included. The first call draws all tokens too, so that everything is compiled. The share
of bandwidth is the rate of reading all weights once for each token, divided by the rate
at which all cores find the maximum of a large array.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Trainer, Variant, count, some_of
from benchmarks.paper_model import add_sizes, pretrain_config

_DTYPES = {"f32": "float32", "bf16": "bfloat16"}
_UNTIMED_TOKENS = 8
_PEERS = ("openai_gpt", "gpt2")


def all_variants() -> dict[str, Variant]:
    """Every variant by its name, float32 before bfloat16."""
    variants = {}
    batches = "peers.generate.draw_prompts"
    for short, dtype in _DTYPES.items():
        for peer in _PEERS:
            packages = ("torch", "transformers")
            build, options = "peers.torch_peers.build_generator", {"architecture": peer}
            name = f"{peer}_{short}"
            variants[name] = Variant(build, dtype, options, packages, batches)
        packages = ("gpt1_jax.inference.decoding",)
        ours = Variant("peers.generate.build_jax", dtype, {}, packages, batches)
        variants[f"jax_{short}"] = ours
    return variants


VARIANTS = all_variants()


def draw_prompts(flags: argparse.Namespace) -> Iterator[tuple[np.ndarray, int]]:
    """Prompts [B, tokens] and the number of tokens to add, which is small if untimed.

    The harness draws one to warm up, then in each turn an untimed and a timed one.
    """
    rng = np.random.default_rng(0)
    for number in itertools.count():
        whole = number % 2 == 0
        shape = (flags.batch, flags.prompt_tokens)
        prompts = rng.integers(0, flags.vocab_size, shape, dtype=np.int32)
        yield prompts, flags.new_tokens if whole else _UNTIMED_TOKENS


def build_jax(flags: argparse.Namespace, dtype: str) -> Trainer:
    """This package's decoder; a "step" is one batch of continuations."""
    import jax

    from gpt1_jax.config.sections import DEFAULT_SAMPLING
    from gpt1_jax.inference import decoding
    from gpt1_jax.model import language_model

    model = pretrain_config(flags, dtype).model.with_vocab_size(flags.vocab_size)
    key = jax.random.key(0)
    params = decoding.prepare(model, language_model.init_params(model, key))
    greedy = dataclasses.replace(DEFAULT_SAMPLING, max_new_tokens=flags.new_tokens)
    decode = decoding.Decoder(model, flags.vocab_size, greedy, flags.batch)

    def step(batch: tuple[np.ndarray, int]) -> float:
        prompts, number = batch
        drawn = [decoding.Continuation("", ids, seed=0) for ids in prompts.tolist()]
        for _ in decode(params, drawn):
            if len(drawn[-1].tokens) >= number:
                break
        return float(drawn[-1].tokens[-1])

    device = jax.devices()[0]
    return Trainer(
        put=lambda batch: batch,
        step=step,
        wait=lambda: None,
        device=device.device_kind,
        peak_bytes=lambda: (device.memory_stats() or {}).get("peak_bytes_in_use"),
    )


@functools.cache
def memory_bandwidth() -> float:
    """Bytes per second that all cores read from memory together; the best of five."""
    cores = os.cpu_count() or 1
    parts = [np.ones(2**28 // 4 // cores, np.float32) for _ in range(cores)]

    def seconds() -> float:
        start = time.perf_counter()
        list(pool.map(np.max, parts))
        return time.perf_counter() - start

    with ThreadPoolExecutor(cores) as pool:
        return sum(part.nbytes for part in parts) / min(seconds() for _ in range(5))


def summarise(results: dict[str, Any], flags: argparse.Namespace) -> None:
    """Adds rates and the speed beside the peers of the same dtype."""
    from gpt1_jax.model import costs

    bandwidth = memory_bandwidth()  # of the host; a GPU's weights are in its own
    model = pretrain_config(flags, "float32").model.with_vocab_size(flags.vocab_size)
    for short, dtype in _DTYPES.items():
        group = {name: r for name, r in results.items() if r["dtype"] == dtype}
        harness.compare(group, lambda name: VARIANTS[name].is_peer)
        weights = costs.num_params(model) * (4 if short == "f32" else 2)
        for result in group.values():
            per_token = result["median_seconds"] / flags.new_tokens
            result["milliseconds_per_token"] = 1e3 * per_token
            result["tokens_per_second"] = flags.batch / per_token
            on_host = result["device"] == "cpu"
            result["bandwidth_share"] = on_host and weights / per_token / bandwidth
            for peer in _PEERS:
                other = group.get(f"{peer}_{short}")
                result[f"speed_vs_{peer}"] = (
                    other and other["median_seconds"] / result["median_seconds"]
                )


def table(results: Mapping[str, Any]) -> str:
    """One line for each variant."""
    header = (
        "variant",
        "ms/token",
        "tokens/s",
        "speed vs openai-gpt",
        "speed vs GPT-2",
        "share of bandwidth",
        "first call, s",
        "peak, GiB",
    )

    def cells(name: str, r: Mapping[str, Any]) -> list[str]:
        ratios = (r["speed_vs_openai_gpt"], r["speed_vs_gpt2"])
        return [
            name,
            f"{r['milliseconds_per_token']:.1f}",
            f"{r['tokens_per_second']:,.1f}",
            *(f"{ratio:.2f}" if ratio else "-" for ratio in ratios),
            f"{share:.0%}" if (share := r["bandwidth_share"]) else "-",
            f"{r['first_step_seconds']:.1f}",
            f"{r['peak_bytes'] / 2**30:.2f}",
        ]

    return harness.markdown(header, [cells(*item) for item in results.items()])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_sizes(parser)
    parser.set_defaults(batch=1)
    parser.add_argument("--prompt_tokens", type=count, default=32)
    parser.add_argument("--new_tokens", type=count, default=256)
    parser.add_argument("--rounds", type=count, default=2, help="turns of each variant")
    names, all_names = some_of(VARIANTS), ",".join(VARIANTS)
    parser.add_argument("--variants", type=names, default=all_names, help="comma list")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments, argparse.Namespace(steps=1, warmup=1))


def main(arguments: Sequence[str]) -> None:
    """Measures, prints the table, writes the JSON file."""
    flags = parse(arguments)
    record = harness.describe("peers.generate", arguments)
    names = harness.runnable(VARIANTS, flags.variants)

    def keep(results: dict[str, Any]) -> None:
        summarise(results, flags)
        harness.write_json(flags.output, record, flags, results)

    results = harness.measure({name: VARIANTS[name] for name in names}, flags, keep)
    summarise(results, flags)
    print(table(results))
    doubts = harness.different_devices(results.values())
    harness.finish(record, flags, names, results, doubts)


if __name__ == "__main__":
    main(sys.argv[1:])
