"""Whether the fused kernels are right, their times and, on a GPU, their best tiles.

    python -m benchmarks.on_accelerator.fused_kernels [--batch=64]
        [--parts=checks,times,plans] [--output=FILE]

  checks  chooses the forms of a run at the paper's sizes, as "auto" in the
          configuration does. Then it makes the same checks, there and at other sizes:
          masks bit for bit, bfloat16 outputs and gradients beside float32 ones of the
          formula, whose errors should be about those of the same functions as XLA
          compiles them. If one is wrong, the script ends with 1.
  times   forward and backward at the paper's sizes, our kernels and XLA's code in
          turns. A kind of chip on which ours are faster belongs in `FASTER` of
          `gpt1_jax/kernels/choice.py`.
  plans   a GPU's attention again, with other tiles for one kernel at a time, and its
          LayerNorm with the work divided otherwise.

Results are written as they come. On a CPU, where the kernels are interpreted, `--toy`
tries the script.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

from benchmarks import harness
from benchmarks.harness import some_of
from benchmarks.paper_model import HEAD_DIM, add_sizes, pretrain_config
from benchmarks.peers.pieces import add_calls

# (queries, keys, warps, stages), after those of `attention_gpu.PLAN`
BY_QUERY = (
    (64, 64, 4, 1),
    (64, 64, 4, 3),
    (64, 64, 8, 2),
    (64, 128, 4, 2),
    (128, 64, 8, 2),
    (128, 128, 8, 2),
)
BY_KEY = (
    (32, 64, 4, 1),
    (32, 64, 4, 3),
    (16, 64, 4, 2),
    (64, 64, 4, 1),
    (64, 64, 4, 2),
    (32, 128, 8, 2),
    (64, 64, 8, 2),
    (64, 128, 8, 2),
)
NORMS: tuple[dict[str, int], ...] = (  # constants of `layer_norm_gpu`
    {},
    {"TILE": 1024},
    {"TILE": 4096},
    {"TILE": 4096, "NUM_WARPS": 8},
    {"TILE": 1024, "NUM_WARPS": 2},
    {"FORWARD_VECTORS": 8},
    {"FORWARD_VECTORS": 32},
    {"BACKWARD_VECTORS": 32},
)
CHECKED = ((2, 512, 12, 64), (2, 1, 2, 64), (2, 100, 3, 64), (3, 130, 4, 32))
CHECKED_NORMS = ((2, 512, 768), (2, 1, 64), (3, 70, 96), (1, 65, 1024))
PARTS = ("checks", "times", "plans")
Made = Callable[[], harness.Case]
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


def time_cases(
    kernels: Kernels, flags: argparse.Namespace
) -> Iterator[dict[str, Made]]:
    """Attention, then LayerNorm with dropout and sum: XLA's and ours."""
    from benchmarks.peers import jax_pieces
    from gpt1_jax.ops.attention import causal_attention
    from gpt1_jax.ops.layer_norm import residual_layer_norm

    make: Any = functools.partial(jax_pieces.attention_case, flags)
    yield {
        "attention, XLA's": functools.partial(make, causal_attention),
        "attention, fused": functools.partial(make, kernels.attention.attention),
    }
    make = functools.partial(jax_pieces.residual_norm_case, flags)
    if kernels.layer_norm:
        ours = kernels.layer_norm.residual_layer_norm
        yield {
            "LayerNorm, XLA's": functools.partial(make, residual_layer_norm),
            "LayerNorm, fused": functools.partial(make, ours),
        }


def plan_cases(
    kernels: Kernels, flags: argparse.Namespace
) -> Iterator[dict[str, Made]]:
    """A GPU's attention by each plan, and its LayerNorm by each division of work."""
    from benchmarks.peers import jax_pieces

    attention, norm = kernels.attention, kernels.layer_norm

    def with_plan(plan: Any) -> harness.Case:
        with mock.patch.multiple(attention, PLAN=plan):
            return jax_pieces.attention_case(flags, attention.attention)

    def with_division(division: dict[str, int]) -> harness.Case:
        with mock.patch.multiple(norm, **{"TILE": norm.TILE, **division}):
            return jax_pieces.residual_norm_case(flags, norm.residual_layer_norm)

    if hasattr(attention, "PLAN"):
        yield {
            f"attention, {name}": functools.partial(with_plan, plan)
            for name, plan in plans(flags.toy)
        }
    if norm:
        yield {
            f"LayerNorm, {division or 'as it is'}": functools.partial(
                with_division, division
            )
            for division in NORMS[: 2 if flags.toy else None]
        }


def in_turns(
    cases: dict[str, Made], flags: argparse.Namespace, add: Callable[[Any], None]
) -> None:
    """Adds a row for each case: its least time, or why it does not compile.

    A case is timed as soon as it is compiled, and then all of them in turns.
    """
    from benchmarks.peers import pieces

    made = []
    for name, make in cases.items():
        row: dict[str, Any] = {"case": name}
        try:
            case = make()
            case.wait(case.run())
            row["ms"] = 1e3 * min(pieces.run_turn(case, flags.calls))
        except Exception as error:  # compilers may raise anything
            row["error"] = f"{type(error).__name__}: {error}".partition("\n")[0]
        else:
            made.append((row, case))
        add(row)
    for _ in range(flags.rounds):
        for row, case in made:
            row["ms"] = min(
                row["ms"], *(1e3 * x for x in pieces.run_turn(case, flags.calls))
            )


def chosen(flags: argparse.Namespace) -> dict[str, Any]:
    """The forms that a pre-training run of these sizes would choose here."""
    from gpt1_jax.runs.forms import choose_forms, say_forms

    model = pretrain_config(flags, flags.dtype).model.with_vocab_size(flags.vocab_size)
    forms = choose_forms(model, flags.seq_len, training=True)[1]
    say_forms(forms)
    return dict(forms)


def checked(kernels: Kernels, toy: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Wrong mask elements, errors and the verdict by kind, again after each check."""
    from gpt1_jax.kernels import check

    few, dtype = slice(1 if toy else 0, None), "bfloat16"
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
    for kind, (check_of, form, shapes) in kinds.items():
        masks, errors = {}, {}
        for shape in shapes:
            made = check_of(shape, dtype, RATE, training=True)
            masks[str(shape)] = made.wrong_masks(form)
            errors[str(shape)] = list(made.errors(form).values())
            ratios = " ".join(f"{x:.2f}" for x in errors[str(shape)])
            print(
                f"{kind}, {shape}: {masks[str(shape)]} wrong mask elements, "
                f"errors by those of XLA's: {ratios}",
                flush=True,
            )
            close = all(x < check.MOST_ERROR for each in errors.values() for x in each)
            right = close and not any(masks.values())
            yield kind, {"masks": masks, "errors": errors, "right": right}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_sizes(parser)
    add_calls(parser)
    parser.set_defaults(batch=64, calls=20, rounds=3, dtype="bfloat16")
    names = some_of(PARTS)
    parser.add_argument("--parts", type=names, default=list(PARTS), help="comma list")
    parser.add_argument("--toy", action="store_true", help="few and small; any machine")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Checks, then times, writing each result; exits 1 if a check fails."""
    flags = parse(arguments)
    record = harness.describe("on_accelerator.fused_kernels", arguments)
    harness.use_first_gpu()
    kernels = kernels_for(backend())
    if not flags.toy and (why := kernels.refusal(flags)):
        sys.exit(f"fused_kernels.py: not here: {why}")
    results: dict[str, Any] = {}
    if "checks" in flags.parts:
        results["chosen"] = chosen(flags)
        for kind, found in checked(kernels, flags.toy):
            results[kind] = found
            harness.write_json(flags.output, record, flags, results)
    times: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        times.append(row)
        harness.write_json(flags.output, record, flags, {**results, "times": times})

    for part, cases_of in (("times", time_cases), ("plans", plan_cases)):
        for cases in cases_of(kernels, flags) if part in flags.parts else ():
            in_turns(cases, flags, add)
    for row in times:
        value = f"{row['ms']:.3f} ms" if "ms" in row else row["error"]
        print(f"{row['case']}: {value}")
    harness.write_json(flags.output, record, flags, {**results, "times": times})
    if wrong := [kind for kind, found in results.items() if not found.get("right", 1)]:
        sys.exit(f"fused_kernels.py: {' and '.join(wrong)} compute something else")


if __name__ == "__main__":
    main(sys.argv[1:])
