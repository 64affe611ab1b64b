"""The pre-training step at the paper's size: this package against PyTorch.

    python -m benchmarks.peers.train_step [--batch=2] [--steps=2] [--rounds=5]
        [--output=FILE]

One step is forward, backward, clipping to global norm 1 and Adam with weight decay,
with all dropouts at 0.1 (Radford et al. 2018, sec. 4.1). The peers, eager and under
`torch.compile`, with fused AdamW, are a GPT-1 written for speed around PyTorch's
`scaled_dot_product_attention` (`torch_sdpa_*`; on a GPU with no other kernels for it
than flash attention's, `torch_flash_*`) and Hugging Face's `OpenAIGPTLMHeadModel`
(`hf_*`). `*_graphs` are compiled to CUDA graphs, `*_tuned` with products that
PyTorch chooses by trying. Parameters are float32 throughout and all variants see
the same batches, Zipf-distributed tokens; for bfloat16 PyTorch runs under autocast and
ours has config.model.dtype="bfloat16"; `jax_*_scan` loops over the layers. Others are
measured when they are named: our step with another choice, such as `jax_*_no_dropout`;
peers that are for GPUs; and the paper's LSTM (sec. 5), `jax_lstm_*` and `torch_lstm_*`,
around PyTorch's `nn.LSTM`, which are compared with each other.

Each variant lives in a process of its own, which gives its peak memory: resident on a
CPU, allocated on a GPU. The processes take turns, one untimed step and `--steps` timed
ones each, for `--rounds` rounds, while the others wait, so that a disturbance meets all
of them. On a CPU every step is timed; on an accelerator, which must not idle between
steps, a turn is timed as a whole, and each variant has one more turn, as soon as it is
compiled. Compilation caches start empty. Results are written after each turn. Only the
first GPU is used.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Trainer, Variant, count, some_of
from benchmarks.paper_model import add_sizes, pretrain_config, token_probabilities

KINDS = ("transformer", "lstm")
_DTYPES = {"f32": "float32", "bf16": "bfloat16"}
_CHOICES: dict[str, dict[str, Any]] = {  # of the model's configuration
    "scan": {"layer_loop": "scan"},
    "plain_attention": {"attention_form": "plain"},
    "blocked": {"attention_form": "blocked", "layer_norm_form": "plain"},
    "fused_attention": {"attention_form": "fused"},
    "fused": {"attention_form": "fused", "layer_norm_form": "fused"},
    "no_dropout": dict(embed_dropout=0.0, attn_dropout=0.0, resid_dropout=0.0),
    "loss_chunks": {"loss_chunk": 64},
    "remat": {"remat": True},
}
_MODES = {  # of torch.compile
    "eager": None,
    "compiled": "default",
    "graphs": "reduce-overhead",
    "tuned": "max-autotune-no-cudagraphs",
}
_PEERS = {
    "torch_sdpa": ("peers.torch_peers.build_sdpa", ("torch",)),
    "torch_flash": ("peers.torch_peers.build_flash", ("torch",)),
    "hf": (
        "peers.torch_peers.build_transformers",
        ("torch", "transformers.models.openai.modeling_openai"),
    ),
}


def all_variants() -> dict[str, Variant]:
    """Every variant by its name, float32 before bfloat16."""
    variants = {}
    for short, dtype in _DTYPES.items():
        for peer, (build, packages) in _PEERS.items():
            for how, mode in _MODES.items():
                name = f"{peer}_{short}_{how}"
                variants[name] = Variant(build, dtype, {"mode": mode}, packages)
        build, packages = "peers.train_step.build_jax", ("gpt1_jax.jobs.pretrain",)
        variants[f"jax_{short}"] = Variant(build, dtype, {}, packages)
        for choice, options in _CHOICES.items():
            name = f"jax_{short}_{choice}"
            variants[name] = Variant(build, dtype, options, packages)
        variants.update(lstm_variants(short, dtype))
    return variants


def lstm_variants(short: str, dtype: str) -> dict[str, Variant]:
    """The variants of the paper's LSTM."""
    build, packages = "peers.train_step.build_jax", ("gpt1_jax.jobs.pretrain",)
    options: dict[str, Any] = {"kind": "lstm"}
    variants = {f"jax_lstm_{short}": Variant(build, dtype, options, packages)}
    for how in ("eager", "compiled"):
        build, options = "peers.torch_peers.build_lstm", {"mode": _MODES[how]}
        name = f"torch_lstm_{short}_{how}"
        variants[name] = Variant(build, dtype, options, ("torch",))
    return variants


def kind_of(name: str) -> str:
    """The `config.model.kind` of a variant."""
    return "lstm" if "_lstm_" in name else "transformer"


VARIANTS = all_variants()


def is_usual(name: str) -> bool:
    """Whether a variant is measured by default."""
    others = (*(choice for choice in _CHOICES if choice != "scan"), "graphs", "tuned")
    of_all = kind_of(name) == "transformer" and not name.startswith("torch_flash")
    return of_all and not name.endswith(others)


def build_jax(
    flags: argparse.Namespace, dtype: str, *, kind: str = "transformer", **choices: Any
) -> Trainer:
    """This package's step, put together as `gpt1_jax.jobs.pretrain.run` does.

    Args:
      flags: sizes.
      dtype: of the operands of products.
      kind: `config.model.kind`.
      choices: other values of `config.model`.
    """
    import jax
    import jax.numpy as jnp

    from gpt1_jax.model import language_model
    from gpt1_jax.parallel import devices
    from gpt1_jax.parallel.mesh import make_mesh, state_sharding, to_global_batch
    from gpt1_jax.runs.forms import choose_forms
    from gpt1_jax.training.optimizer import make_optimizer
    from gpt1_jax.training.state import init_state
    from gpt1_jax.training.steps import jit_step, make_pretrain_step

    config = pretrain_config(flags, dtype, kind)
    cache = jax.config.jax_compilation_cache_dir or ""
    devices.configure(config.train.matmul_precision, cache)
    model = config.model.with_vocab_size(flags.vocab_size)
    model = dataclasses.replace(model, **choices)
    mesh, seed = make_mesh(), jnp.uint32(config.seed)
    model, _ = choose_forms(model, flags.seq_len, training=True)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)

    def fresh() -> Any:
        params = language_model.init_params(model, jax.random.key(config.seed))
        return init_state(params, optimizer)

    shapes = jax.eval_shape(fresh)
    state = jax.jit(fresh, out_shardings=state_sharding(mesh, shapes))()
    step = jit_step(make_pretrain_step(model, optimizer, mesh=mesh), mesh, shapes)

    def update(tokens: jax.Array) -> jax.Array:
        nonlocal state
        state, metrics = step(state, tokens, seed)
        return metrics["loss"]

    device = jax.devices()[0]
    return Trainer(
        put=lambda tokens: to_global_batch(tokens, mesh),
        step=update,
        wait=lambda: jax.block_until_ready(state),
        device=device.device_kind,
        peak_bytes=lambda: (device.memory_stats() or {}).get("peak_bytes_in_use"),
    )


def measure_groups(
    names: Sequence[str],
    flags: argparse.Namespace,
    keep: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """Measures the variants in turns, by default one dtype after another.

    After each turn, `keep` is called with all results so far.
    """
    groups = [names]
    if flags.group_by_dtype:
        groups = [
            [name for name in names if VARIANTS[name].dtype == dtype]
            for dtype in _DTYPES.values()
        ]
    results: dict[str, Any] = {}

    def keep_all(found: dict[str, Any]) -> None:
        keep(results | found)

    for group in groups:
        variants = {name: VARIANTS[name] for name in group}
        results |= harness.measure(variants, flags, keep_all)
    return results


def summarise(results: dict[str, Any], flags: argparse.Namespace) -> None:
    """Adds rates and the speed beside the fastest PyTorch to each result."""
    from gpt1_jax.model import costs
    from gpt1_jax.parallel import devices

    peak = flags.device_peak or devices.peak_flops()
    for dtype, kind in itertools.product(_DTYPES.values(), KINDS):
        group = {
            name: r
            for name, r in results.items()
            if r["dtype"] == dtype and kind_of(name) == kind
        }
        harness.compare(group, lambda name: VARIANTS[name].is_peer)
    for name, result in results.items():
        config = pretrain_config(flags, "float32", kind_of(name))
        model = config.model.with_vocab_size(flags.vocab_size)
        flops = costs.train_flops_per_token(model, flags.seq_len)
        rate = flags.batch * flags.seq_len / result["median_seconds"]
        result["tokens_per_second"] = rate
        result["mfu"] = flops * rate / peak if peak else None


def table(results: Mapping[str, Any]) -> str:
    """One line for each variant."""
    header = (
        "variant",
        "s/step (median)",
        "min",
        "tokens/s",
        "speed vs best PyTorch",
        "first step, s",
        "peak, GiB",
        "loss",
        "MFU",
    )

    def cells(name: str, r: Mapping[str, Any]) -> list[str]:
        ratio, mfu = r["speed_vs_best_torch"], r["mfu"]
        return [
            name,
            f"{r['median_seconds']:.4g}",
            f"{r['min_seconds']:.4g}",
            f"{r['tokens_per_second']:,.0f}",
            f"{ratio:.2f}" if ratio else "-",
            f"{r['first_step_seconds']:.1f}",
            f"{r['peak_bytes'] / 2**30:.2f}",
            f"{r['loss']:.2f}",
            f"{mfu:.1%}" if mfu else "-",
        ]

    return harness.markdown(header, [cells(*item) for item in results.items()])


def suspicions(results: Mapping[str, Any], vocab_size: int) -> list[str]:
    """Reasons to doubt the results: impossible losses, unequal devices."""
    zipf = token_probabilities(vocab_size)
    entropy = -float(zipf @ np.log(zipf))  # nats, the loss of a perfect model
    low, high = entropy - 1, math.log(vocab_size) + 1
    found = [
        f"the loss of {name} is {result['loss']}, outside ({low:.1f}, {high:.1f})"
        for name, result in results.items()
        if not low < result["loss"] < high
    ]
    return found + harness.different_devices(results.values())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_sizes(parser)
    parser.add_argument("--steps", type=count, default=2, help="timed steps a turn")
    parser.add_argument("--rounds", type=count, default=5, help="turns of each variant")
    parser.add_argument("--warmup", type=count, default=2, help="untimed steps before")
    names = some_of(VARIANTS)
    usual = ",".join(name for name in VARIANTS if is_usual(name))
    parser.add_argument("--variants", type=names, default=usual, help="comma list")
    parser.add_argument("--device_peak", type=float, help="FLOP/s, for the MFU")
    yes_no = argparse.BooleanOptionalAction
    text = "float32 first, then bfloat16: half the memory of all at once"
    parser.add_argument("--group_by_dtype", action=yes_no, default=True, help=text)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measures, prints the table, writes the JSON file."""
    flags = parse(arguments)
    record = harness.describe("peers.train_step", arguments)
    names = harness.runnable(VARIANTS, flags.variants)

    def keep(results: dict[str, Any]) -> None:
        summarise(results, flags)
        harness.write_json(flags.output, record, flags, results)

    results = measure_groups(names, flags, keep)
    summarise(results, flags)
    print(table(results))
    doubts = suspicions(results, flags.vocab_size)
    harness.finish(record, flags, names, results, doubts)


if __name__ == "__main__":
    main(sys.argv[1:])
