"""Whether the fused kernels are right, their times and, on a GPU, their best tiles.

    python -m benchmarks.on_accelerator.fused_kernels [--batch=64] [--output=FILE]

First it chooses the forms of a run at the paper's sizes, as "auto" in the configuration
does. Then it makes the same checks at other sizes: masks bit for bit, bfloat16 outputs
and gradients beside float32 ones of the formula, whose errors should be about those of
the same functions as XLA compiles them. If one is wrong, the script ends with 1. Last
it times forward and backward at the paper's sizes, our kernels and XLA's code in turns,
and for a GPU's attention changes the tiles of one kernel at a time. A kind of chip on
which ours are faster belongs in `FASTER` of `gpt1_jax/kernels/choice.py`. On a CPU,
where the kernels are interpreted, `--toy` tries the script.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.paper_model import HEAD_DIM, add_sizes, pretrain_config
from benchmarks.peers.pieces import add_calls

# (queries, keys, warps, stages), after those of `attention_gpu.PLAN`
BY_QUERY = (
    (64, 64, 4, 1),
    (64, 64, 4, 3),
    (64, 32, 4, 2),
    (64, 32, 4, 3),
    (64, 64, 8, 2),
    (128, 32, 8, 2),
    (128, 64, 8, 2),
)
BY_KEY = (
    (32, 64, 4, 1),
    (32, 64, 4, 3),
    (16, 64, 4, 2),
    (64, 64, 4, 1),
    (64, 64, 4, 2),
    (32, 128, 8, 2),
    (64, 64, 8, 2),
)
CHECKED = ((2, 1, 2, 64), (2, 100, 3, 64), (3, 130, 4, 32), (2, 512, 12, 64))
CHECKED_NORMS = ((2, 1, 64), (3, 70, 96), (2, 512, 768), (1, 65, 1024))
RATE = 0.1  # of dropout


class Kernels(NamedTuple):
    """Our kernels for one kind of accelerator."""

    attention: ModuleType
    layer_norm: ModuleType | None

    def refusal(self, flags: argparse.Namespace) -> str:
        """Why they cannot run here; empty if they can."""
        shape = flags.batch, flags.seq_len, flags.embed_dim // HEAD_DIM, HEAD_DIM
        refused = self.attention.refusal(shape, flags.dtype)
        if not refused and self.layer_norm:
            refused = self.layer_norm.refusal((flags.embed_dim,), flags.dtype)
        return refused


def kernels_for(backend: str) -> Kernels:
    """Our kernels for a "gpu" or "tpu"."""
    from gpt1_jax.kernels import attention_gpu, attention_tpu, layer_norm_gpu

    if backend == "tpu":
        return Kernels(attention_tpu, None)
    return Kernels(attention_gpu, layer_norm_gpu)


def backend() -> str:
    """The accelerator whose kernels are checked; without one, a GPU."""
    import jax

    return "tpu" if jax.default_backend() == "tpu" else "gpu"


def plans(toy: bool) -> Iterator[tuple[str, Any]]:
    """The package's plan, then plans that differ from it in one kernel."""
    from gpt1_jax.kernels.attention_gpu import PLAN
    from gpt1_jax.kernels.attention_gpu_kernels import Tiles

    yield "as it is", PLAN
    for kernel in PLAN._fields:
        others = BY_KEY if kernel == "key_value_gradient" else BY_QUERY
        for tiles in others[: 1 if toy else None]:
            if tiles != getattr(PLAN, kernel):
                yield f"{kernel} {tiles}", PLAN._replace(**{kernel: Tiles(*tiles)})


def attention_times(kernels: Kernels, flags: argparse.Namespace) -> list[Any]:
    """Times of attention, forward and backward: XLA's; ours, on a GPU by each plan."""
    from benchmarks.peers import jax_pieces
    from gpt1_jax.ops.attention import causal_attention

    module: Any = kernels.attention

    def with_plan(plan: Any) -> harness.Case:
        kept, module.PLAN = module.PLAN, plan
        try:
            return jax_pieces.attention_case(flags, module.attention)
        finally:
            module.PLAN = kept

    make = functools.partial(jax_pieces.attention_case, flags)
    cases = {"attention, XLA's": functools.partial(make, causal_attention)}
    if hasattr(module, "PLAN"):
        for name, plan in plans(flags.toy):
            cases[f"attention, {name}"] = functools.partial(with_plan, plan)
    else:
        cases["attention, fused"] = functools.partial(make, module.attention)
    return in_turns(cases, flags)


def norm_times(kernels: Kernels, flags: argparse.Namespace) -> list[Any]:
    """Times of LayerNorm with dropout and sum, forward and backward, ours and XLA's."""
    from benchmarks.peers import jax_pieces
    from gpt1_jax.ops.layer_norm import residual_layer_norm

    make = functools.partial(jax_pieces.residual_norm_case, flags)
    cases = {"LayerNorm, XLA's": functools.partial(make, residual_layer_norm)}
    if kernels.layer_norm:
        ours = kernels.layer_norm.residual_layer_norm
        cases["LayerNorm, fused"] = functools.partial(make, ours)
    return in_turns(cases, flags)


def in_turns(
    cases: Mapping[str, Callable[[], harness.Case]], flags: argparse.Namespace
) -> list[dict[str, Any]]:
    """The least times of cases that take turns, or why one does not compile."""
    import jax

    from benchmarks.peers import pieces

    rows, made = [], []
    for name, make in cases.items():
        row: dict[str, Any] = {"case": name}
        try:
            case = make()
            case.wait(case.run())
        except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
            row["error"] = str(error).partition("\n")[0]
        else:
            made.append((row, case))
        rows.append(row)
    for _ in range(flags.rounds):
        for row, case in made:
            ms = 1e3 * min(pieces.run_turn(case, flags.calls))
            row["ms"] = min(ms, row.get("ms", ms))
    return rows


def chosen(flags: argparse.Namespace) -> dict[str, Any]:
    """The forms that a pre-training run of these sizes would choose here."""
    from gpt1_jax.runs.forms import choose_forms, say_forms

    model = pretrain_config(flags, flags.dtype).model.with_vocab_size(flags.vocab_size)
    forms = choose_forms(model, flags.seq_len, training=True)[1]
    say_forms(forms)
    return dict(forms)


def checked(kernels: Kernels, toy: bool) -> dict[str, dict[str, Any]]:
    """Checks each kind of kernels: wrong mask elements, errors, the verdict."""
    from gpt1_jax.kernels import check

    few, dtype = slice(3 if toy else None), "bfloat16"
    attention = kernels.attention.attention
    shapes = [
        shape
        for shape in CHECKED[few]
        if toy or not kernels.attention.refusal(shape, dtype)
    ]
    kinds: dict[str, Any] = {"attention": (check.AttentionCheck, attention, shapes)}
    if kernels.layer_norm:
        norm = kernels.layer_norm.residual_layer_norm
        kinds["layer_norm"] = check.LayerNormCheck, norm, CHECKED_NORMS[few]
    found = {}
    for kind, (check_of, form, shapes) in kinds.items():
        masks, errors = {}, {}
        for shape in shapes:
            made = check_of(shape, dtype, RATE, training=True)
            masks[str(shape)] = made.wrong_masks(form)
            errors[str(shape)] = list(made.errors(form).values())
        most = max(x for ratios in errors.values() for x in ratios)
        right = not any(masks.values()) and most < check.MOST_ERROR
        found[kind] = {"masks": masks, "errors": errors, "right": right}
    return found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_sizes(parser)
    add_calls(parser)
    parser.set_defaults(batch=64, calls=20, rounds=3, dtype="bfloat16")
    parser.add_argument("--toy", action="store_true", help="few and small; any machine")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Checks, then times; exits 1 if a check fails."""
    flags = parse(arguments)
    record = harness.describe("on_accelerator.fused_kernels", arguments)
    harness.use_first_gpu()
    kernels = kernels_for(backend())
    if not flags.toy and (why := kernels.refusal(flags)):
        sys.exit(f"fused_kernels.py: not here: {why}")
    forms = chosen(flags)
    results: dict[str, Any] = checked(kernels, flags.toy)
    for kind, found in results.items():
        print(f"{kind}, wrong mask elements: {found['masks']}")
        for shape, ratios in found["errors"].items():
            text = " ".join(f"{x:.2f}" for x in ratios)
            print(f"{kind}, {shape}, errors by those of XLA's: {text}", flush=True)
    wrong = [kind for kind, found in results.items() if not found["right"]]
    times = []
    for row in (*attention_times(kernels, flags), *norm_times(kernels, flags)):
        value = f"{row['ms']:.3f} ms" if "ms" in row else row["error"]
        print(f"{row['case']}: {value}", flush=True)
        times.append(row)
    if flags.output:
        harness.write_json(
            flags.output, record, flags, {"chosen": forms, **results, "times": times}
        )
    if wrong:
        sys.exit(f"fused_kernels.py: {' and '.join(wrong)} compute something else")


if __name__ == "__main__":
    main(sys.argv[1:])
