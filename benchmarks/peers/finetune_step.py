"""Fine-tuning at the paper's size: this package against transformers.

    python -m benchmarks.peers.finetune_step --task=sst2|qnli [--batch=32]
    python -m benchmarks.peers.finetune_step --task=race --batch=2

Made-up examples whose lengths are distributed as those of the task in GPT-1's tokens;
with `--whole` each has `--seq_len` tokens, and peers are worth compiling
(`hf_*_compiled`, measured if it is named).
The peer fine-tunes `openai-gpt` with transformers: its classification model, batches
padded to their longest sequence, AdamW; RACE's four choices are four sequences with one
output each. `hf_*` and `jax_*` have the paper's auxiliary language model, `hf_*_no_lm`
and `jax_*_no_lm` train the classifier alone, and each is compared with the peer that
does the same. `jax_*_padded` pads all sequences to 512.

Batches come from a few that repeat, so that each shape is compiled before the clock
starts; each is laid out as suits a run of 375. Turns and processes are
those of `train_step.py`.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from benchmarks.harness import Trainer, Variant, count, some_of
from benchmarks.paper_model import (
    add_sizes,
    load_config,
    pretrain_config,
    token_probabilities,
)
from gpt1_jax.finetuning.steps import Batch
from gpt1_jax.finetuning.unpad import BandShapes
from gpt1_jax.tasks.batches import (
    TOKENS_TO_COMPILE,
    BandSizes,
    choose_layouts,
    lengths_by_group,
    padded_length,
    real_indices,
)

NUM_SPECIALS = 3
_COMPILED = "_compiled"
RUN_STEPS = 375  # whose batches' layouts are chosen together


class Lengths(NamedTuple):
    """The lengths of a task's sequences in tokens, special tokens included."""

    num_seqs: int
    num_outputs: int
    deciles: tuple[int, ...]  # shortest, 10%, .., longest


TASKS = {  # of 1,500 training examples each
    "sst2": Lengths(1, 2, (3, 4, 5, 6, 8, 9, 12, 15, 19, 25, 52)),
    "qnli": Lengths(1, 2, (17, 31, 37, 41, 44, 47, 51, 57, 63, 74, 197)),
    "race": Lengths(4, 4, (84, 201, 261, 305, 338, 363, 386, 411, 440, 489, 512)),
}


def all_variants() -> dict[str, Variant]:
    """Every variant by its name, float32 before bfloat16."""
    variants = {}
    hf = ("torch", "transformers.models.openai.modeling_openai")
    ours, batches = ("gpt1_jax.jobs.finetune",), "peers.finetune_step.draw_examples"
    for short, dtype in (("f32", "float32"), ("bf16", "bfloat16")):
        build = "peers.torch_peers.build_classifier"
        for suffix, weight, mode in (
            ("", 0.5, None),
            ("_no_lm", 0.0, None),
            (_COMPILED, 0.5, "default"),
        ):
            options: dict[str, Any] = {"aux_lm_weight": weight, "mode": mode}
            variants[f"hf_{short}{suffix}"] = Variant(
                build, dtype, options, hf, batches
            )
        build = "peers.finetune_step.build_jax"
        for suffix, weight in (("", 0.5), ("_no_lm", 0.0), ("_padded", 0.5)):
            padded = suffix == "_padded"
            options = {"aux_lm_weight": weight, "padded": padded}
            variants[f"jax_{short}{suffix}"] = Variant(
                build, dtype, options, ours, batches
            )
    return variants


VARIANTS = all_variants()


def draw_examples(flags: argparse.Namespace) -> Iterator[Batch]:
    """Endless unpadded batches: `flags.distinct` different ones, which then repeat."""
    generator, task = np.random.default_rng(0), TASKS[flags.task]
    zipf = token_probabilities(flags.vocab_size)
    batches = []
    for _ in range(flags.distinct):
        lengths = draw_lengths(generator, task, flags)
        shape = (*lengths.shape, int(lengths.max()))
        tokens = generator.choice(flags.vocab_size, shape, p=zipf).astype(np.int32)
        place = np.arange(shape[-1])
        tokens = np.where(place < lengths[..., None], tokens, 0)
        last = place == lengths[..., None] - 1
        tokens[last] = flags.vocab_size + NUM_SPECIALS - 1
        labels = generator.integers(task.num_outputs, size=flags.batch)
        targets = np.eye(task.num_outputs, dtype=np.float32)[labels]
        batches.append(Batch(tokens, lengths, targets))
    return itertools.cycle(batches)


def draw_lengths(
    generator: np.random.Generator, task: Lengths, flags: argparse.Namespace
) -> np.ndarray:
    """[B, C] lengths of the sequences of a batch."""
    deciles = np.linspace(0, 1, len(task.deciles))
    lengths = np.interp(generator.random(flags.batch), deciles, task.deciles)
    if flags.whole:
        lengths = np.full(flags.batch, flags.seq_len)
    return np.repeat(lengths.astype(np.int32)[:, None], task.num_seqs, axis=1)


def run_layouts(
    flags: argparse.Namespace,
    seq_lens: Sequence[int],
    devices: int,
    tokens_to_compile: int,
) -> dict[int, dict[int, BandSizes]]:
    """The batches' layouts in a run of `RUN_STEPS` such steps, the timed ones first."""
    generator = np.random.default_rng(1)
    timed = itertools.islice(draw_examples(flags), flags.distinct)
    batches = [batch.lengths for batch in timed]
    batches += [
        draw_lengths(generator, TASKS[flags.task], flags)
        for _ in range(RUN_STEPS - len(batches))
    ]
    return choose_layouts(
        np.array([padded_length(each.max(), seq_lens) for each in batches]),
        lengths_by_group(np.stack(batches), devices, parts=1),
        load_config("finetune", flags.task).data.unpadded_sizes,
        tokens_to_compile,
    )


def build_jax(
    flags: argparse.Namespace, dtype: str, *, aux_lm_weight: float, padded: bool
) -> Trainer:
    """This package's step, put together as `gpt1_jax.jobs.finetune` does."""
    import jax
    import jax.numpy as jnp

    from gpt1_jax.finetuning import heads
    from gpt1_jax.finetuning.heads import Head
    from gpt1_jax.finetuning.steps import make_finetune_step
    from gpt1_jax.parallel import devices
    from gpt1_jax.parallel.mesh import make_mesh, state_sharding, to_global_batch
    from gpt1_jax.runs.forms import choose_forms
    from gpt1_jax.training.optimizer import make_optimizer
    from gpt1_jax.training.state import init_state
    from gpt1_jax.training.steps import jit_step

    task, config = TASKS[flags.task], pretrain_config(flags, dtype)
    cache = jax.config.jax_compilation_cache_dir or ""
    devices.configure(config.train.matmul_precision, cache)
    model = config.model.with_vocab_size(flags.vocab_size + NUM_SPECIALS)
    head = Head(
        task.num_outputs,
        per_choice=task.num_seqs > 1,
        dropout=0.1,
        extract_token=model.vocab_size - 1,
    )
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)
    mesh = make_mesh()
    model, _ = choose_forms(model, flags.seq_len, training=True)
    step = make_finetune_step(model, head, optimizer, aux_lm_weight, mesh=mesh)

    def fresh() -> Any:
        params = heads.init_params(model, head, jax.random.key(config.seed))
        return init_state(params, optimizer)

    shapes = jax.eval_shape(fresh)
    state = jax.jit(fresh, out_shardings=state_sharding(mesh, shapes))()
    step = jit_step(step, mesh, shapes)
    seed = jnp.uint32(0)
    data = load_config("finetune", flags.task).data
    buckets = () if padded else data.seq_len_buckets
    seq_lens = (*(size for size in buckets if size < flags.seq_len), flags.seq_len)
    sharing = mesh.size
    tokens_to_compile = TOKENS_TO_COMPILE[jax.default_backend()]
    layouts = run_layouts(flags, seq_lens, sharing, tokens_to_compile)

    def put(batch: Batch) -> Batch:
        longest = batch.tokens.shape[-1]
        seq_len = padded_length(longest, seq_lens)
        tokens = np.pad(batch.tokens, ((0, 0), (0, 0), (0, seq_len - longest)))
        batch = batch._replace(tokens=tokens)
        if not padded:
            lengths = lengths_by_group(batch.lengths, sharing, parts=1)
            size = padded_length(lengths.sum(-1).max(), tuple(layouts[seq_len]))
            indices = real_indices(lengths, seq_len, size)
            bands = BandShapes(layouts[seq_len][size])
            batch = batch._replace(real_indices=indices, bands=bands)
        return to_global_batch(batch, mesh)

    def update(batch: Batch) -> jax.Array:
        nonlocal state
        state, metrics = step(state, batch, seed)
        return metrics["loss"]

    device = jax.devices()[0]
    return Trainer(
        put=put,
        step=update,
        wait=lambda: jax.block_until_ready(state),
        device=device.device_kind,
        peak_bytes=lambda: (device.memory_stats() or {}).get("peak_bytes_in_use"),
    )


def compare(results: Mapping[str, Any]) -> None:
    """Compares each variant with the peer of the same objective."""
    weights = {name: VARIANTS[name].options["aux_lm_weight"] for name in results}
    for weight in set(weights.values()):
        group = {name: r for name, r in results.items() if weights[name] == weight}
        harness.compare(group, lambda name: VARIANTS[name].is_peer)


def table(results: Mapping[str, Any], batch: int) -> str:
    """One line for each variant."""
    header = (
        "variant",
        "s/step (median)",
        "min",
        "examples/s",
        "speed vs transformers",
        "first step, s",
        "peak, GiB",
    )
    rows = []
    for name, r in results.items():
        ratio = r["speed_vs_best_torch"]
        rows.append(
            [
                name,
                f"{r['median_seconds']:.4g}",
                f"{r['min_seconds']:.4g}",
                f"{batch / r['median_seconds']:.3g}",
                f"{ratio:.2f}" if ratio else "-",
                f"{r['first_step_seconds']:.1f}",
                f"{r['peak_bytes'] / 2**30:.2f}",
            ]
        )
    return harness.markdown(header, rows)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", choices=list(TASKS), default="sst2")
    add_sizes(parser)
    parser.add_argument("--distinct", type=count, default=4, help="different batches")
    parser.add_argument("--steps", type=count, default=3, help="timed steps a turn")
    parser.add_argument("--rounds", type=count, default=2, help="turns of each variant")
    whole = "texts of --seq_len tokens"
    parser.add_argument("--whole", action="store_true", help=whole)
    usual = ",".join(name for name in VARIANTS if not name.endswith(_COMPILED))
    names = some_of(VARIANTS)
    parser.add_argument("--variants", type=names, default=usual, help="comma list")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    flags = parser.parse_args(arguments)
    flags.warmup = flags.distinct  # all shapes
    return flags


def main(arguments: Sequence[str]) -> None:
    """Measures one dtype after the other, prints the table, writes the JSON file."""
    flags = parse(arguments)
    record = harness.describe("peers.finetune_step", arguments)
    names = harness.runnable(VARIANTS, flags.variants)
    results: dict[str, Any] = {}

    def keep(found: dict[str, Any]) -> None:
        compare(found)
        harness.write_json(flags.output, record, flags, results | found)

    for dtype in ("float32", "bfloat16"):
        group = {n: VARIANTS[n] for n in names if VARIANTS[n].dtype == dtype}
        measured = harness.measure(group, flags, keep)
        compare(measured)
        results |= measured
    print(table(results, flags.batch))
    harness.finish(record, flags, names, results, doubts=())


if __name__ == "__main__":
    main(sys.argv[1:])
