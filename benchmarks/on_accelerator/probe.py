"""A device's highest rates, and whether it computes the same as a CPU.

    python -m benchmarks.on_accelerator.probe [--size=8192] [--megabytes=2048]
        [--output=FILE]

  copy      a bfloat16 array of so many megabytes plus 1, bytes read and written
  hash      the random bits of dropout masks, for as many elements
  product   random bfloat16 matrices: `--size` cubed, and the kernels of the training
            step at the paper's size, forward and for both gradients
  update    a tiny model's first update, on the device and on the CPU: how far apart
            loss, norm of the gradients and parameters end up

Rates are the medians of turns of several calls that are awaited together.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.harness import count
from benchmarks.paper_model import VOCAB_SIZE, pretrain_config
from gpt1_jax.model import language_model
from gpt1_jax.ops.dropout import keep_mask
from gpt1_jax.training.optimizer import make_optimizer
from gpt1_jax.training.state import init_state
from gpt1_jax.training.steps import make_pretrain_step

_TOKENS = 64 * 512  # of the paper's batch
_KERNELS = {  # [in, out]
    "attention, in": (768, 2304),
    "attention, out": (768, 768),
    "MLP, in": (768, 3072),
    "MLP, out": (3072, 768),
    "logits": (768, VOCAB_SIZE),
    "logits, padded": (768, 40_576),
}
_TINY = argparse.Namespace(
    layers=2, embed_dim=128, seq_len=64, batch=8, vocab_size=1000
)
# How far apart, relative to the CPU's, what two devices compute may be.
_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
_CALLS, _TURNS = 10, 5


def seconds_of(function: Callable[..., jax.Array], *arguments: jax.Array) -> float:
    """Median seconds of a call."""
    compiled = jax.jit(function)
    compiled(*arguments).block_until_ready()
    turns = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        for _ in range(_CALLS):
            result = compiled(*arguments)  # memory for few of them may be there
        jax.block_until_ready(result)
        turns.append((time.perf_counter() - start) / _CALLS)
    return statistics.median(turns)


def memory_rates(megabytes: int) -> dict[str, float]:
    """Rates of copying in TB/s and of mask elements in 1e9/s."""
    num_elements = megabytes * 10**6 // 2
    x = jnp.zeros(num_elements, jnp.bfloat16)
    copying = seconds_of(lambda x: x + 1, x)
    rows, width = jnp.arange(num_elements // 512, dtype=jnp.uint32), (512,)
    words = jnp.array([1, 2], jnp.uint32)
    hashing = seconds_of(lambda w, r: keep_mask(w, r, width, 0.1), words, rows)
    return {
        "copy, TB/s": 2 * x.nbytes / copying / 1e12,
        "hash, 1e9 elements/s": len(rows) * 512 / hashing / 1e9,
    }


def product_rates(size: int, num_tokens: int) -> dict[str, float]:
    """TFLOP/s of products with bfloat16 operands, the large one and the step's."""
    rates = {f"product, {size} cubed": _product_rate("mk,kn->mn", size, size, size)}
    for name, (inputs, outputs) in _KERNELS.items():
        shape = num_tokens, inputs, outputs
        for what, equation in (
            ("forward", "mk,kn->mn"),
            ("input's gradient", "mn,kn->mk"),
            ("kernel's gradient", "mk,mn->kn"),
        ):
            rates[f"{name}, {what}"] = _product_rate(equation, *shape)
    return rates


def _product_rate(equation: str, m: int, k: int, n: int) -> float:
    sizes = {"m": m, "k": k, "n": n}
    operands, result = equation.split("->")
    dtype = jnp.float32 if result == "kn" else jnp.bfloat16  # as in the step
    keys = jax.random.split(jax.random.key(0), 2)
    arrays = [
        jax.random.normal(key, [sizes[axis] for axis in axes], jnp.bfloat16)
        for key, axes in zip(keys, operands.split(","), strict=True)
    ]

    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(equation, left, right, preferred_element_type=dtype)

    return 2 * m * k * n / seconds_of(product, *arrays) / 1e12


def disagreement(dtype: str) -> dict[str, float]:
    """The relative differences between an update on the device and on the CPU."""
    config = pretrain_config(_TINY, dtype)
    model = config.model.with_vocab_size(_TINY.vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu), jax.default_matmul_precision("highest"):
        params = language_model.init_params(model, jax.random.key(0))
        state = init_state(params, optimizer)
        shape = _TINY.batch, _TINY.seq_len
        tokens = jax.random.randint(jax.random.key(1), shape, 0, _TINY.vocab_size)
    results = []
    for device in (cpu, jax.devices()[0]):
        given = jax.device_put((state, tokens, jnp.uint32(0)), device)
        with jax.default_matmul_precision("highest"):
            step = jax.jit(make_pretrain_step(model, optimizer))
            results.append(jax.device_get(step(*given)))
    (expected, their_metrics), (found, our_metrics) = results
    moved = _distance(expected.params, state.params)
    return {
        **{
            name: float(abs(our_metrics[name] / their_metrics[name] - 1))
            for name in ("loss", "grad_norm")
        },
        "parameters": _distance(found.params, expected.params) / moved,
    }


def _distance(left: Any, right: Any) -> float:
    squares = jax.tree.map(
        lambda x, y: float(np.sum(np.square(np.asarray(x) - np.asarray(y)))),
        left,
        right,
    )
    return float(np.sqrt(sum(jax.tree.leaves(squares))))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=count, default=8192, help="of the large one")
    parser.add_argument("--tokens", type=count, default=_TOKENS, help="of the others")
    parser.add_argument("--megabytes", type=count, default=2048)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measures, prints the tables, writes the JSON file; exits 1 if results differ."""
    flags = parse(arguments)
    record = harness.describe("on_accelerator.probe", arguments)
    rates = memory_rates(flags.megabytes) | product_rates(flags.size, flags.tokens)
    updates = {dtype: disagreement(dtype) for dtype in _TOLERANCES}
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}\n")
    rows = [[name, f"{rate:.4g}"] for name, rate in rates.items()]
    print(harness.markdown(("rate", "TFLOP/s, or as named"), rows))
    names = list(updates["float32"])
    rows = [
        [dtype, *(f"{parts[name]:.1e}" for name in names)]
        for dtype, parts in updates.items()
    ]
    print("\nAn update here and on the CPU, relative difference:\n")
    print(harness.markdown(("operands", *names), rows))
    results = {"device": device, "rates": rates, "update": updates}
    if flags.output:
        harness.write_json(flags.output, record, flags, results)
    doubts = [
        f"{name} in {dtype}: {off:.1e} apart, more than {_TOLERANCES[dtype]:.0e}"
        for dtype, parts in updates.items()
        for name, off in parts.items()
        if not off <= _TOLERANCES[dtype]
    ]
    if doubts:
        sys.exit("probe.py: " + "; ".join(doubts))


if __name__ == "__main__":
    main(sys.argv[1:])
