"""Whether the fused kernels are right, their times and, on a GPU, their best tiles.

    python -m benchmarks.on_accelerator.fused_kernels [--batch=64] [--output=FILE]

First it compares masks bit for bit, and bfloat16 outputs and gradients with float32
ones of the formula: their errors should be about those of the same functions as XLA
compiles them. If one is wrong, the script ends with 1. Then it times forward and
backward at the paper's sizes, and for a GPU's attention changes the tiles of one kernel
at a time. On a CPU, where the kernels are interpreted, `--toy` tries the script.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.paper_model import HEAD_DIM, add_sizes
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
MOST_ERROR = 1.3  # that of what XLA makes is 1


Form = Callable[..., Any]  # of noise, rate and arrays


class Kernels(NamedTuple):
    """Our kernels for one kind of accelerator."""

    attention: ModuleType
    layer_norm: ModuleType | None

    def refusal(self, flags: argparse.Namespace) -> str:
        """Why they cannot run here; empty if they can."""
        shape = flags.batch, flags.seq_len, flags.embed_dim // HEAD_DIM, HEAD_DIM
        refused = self.attention.refusal(shape, flags.dtype)
        if not refused and self.layer_norm:
            refused = self.layer_norm.refusal(flags.embed_dim)
        return refused


def kernels_for(backend: str) -> Kernels:
    """Our kernels for a "gpu" or "tpu"."""
    from gpt1_jax.ops import attention_gpu, attention_tpu, layer_norm_gpu

    if backend == "tpu":
        return Kernels(attention_tpu, None)
    return Kernels(attention_gpu, layer_norm_gpu)


def backend() -> str:
    """The accelerator whose kernels are checked; without one, a GPU."""
    import jax

    return "tpu" if jax.default_backend() == "tpu" else "gpu"


def attention_form(attend: Callable[..., Any]) -> Form:
    return lambda noise, rate, *parts: attend(*parts, rate, noise, 1)


def norm_form(norm: Callable[..., Any]) -> Form:
    from gpt1_jax.ops.layer_norm import Branch

    def compute(noise: Any, rate: float, *arrays: Any) -> Any:
        x, output, branch_bias, *vectors = arrays
        return norm(x, Branch(output, branch_bias, rate, noise, 1, None), *vectors)

    return compute


def wrong_attention_masks(form: Form, num_heads: int) -> int:
    """How many mask elements are wrong, forward and backward together."""
    import jax.numpy as jnp
    import numpy as np

    from gpt1_jax.ops.dropout import Noise, keep_mask, site_words, step_noise

    size, rate = 64, 0.1
    rows = jnp.array([0, 5, 2**22 + 1], jnp.uint32)  # the last on a further page
    noise = Noise(step_noise(0, jnp.int32(1), 1).key, rows)
    shape = len(rows), size, num_heads, size
    units = jnp.broadcast_to(jnp.eye(size, dtype=jnp.bfloat16)[:, None], shape)
    zeros = jnp.zeros_like(units)
    output, _, _, d_value = run(form, (zeros, zeros, units), noise, units, rate)
    probs_shape = num_heads, size, size
    words = site_words(noise, 1)
    keep = np.tril(np.asarray(keep_mask(words, rows, probs_shape, rate, None, 3)))
    found = output.transpose(0, 2, 1, 3), d_value.transpose(0, 2, 3, 1)
    return sum(int(((np.asarray(x) != 0) != keep).sum()) for x in found)


def wrong_norm_masks(form: Form, dim: int) -> int:
    """Like `wrong_attention_masks`, for the branch that LayerNorm adds."""
    import jax.numpy as jnp
    import numpy as np

    from gpt1_jax.ops.dropout import Noise, keep_mask, site_words, step_noise

    rows = jnp.array([0, 5, 2**27 + 1], jnp.uint32)  # the last on a further page
    noise = Noise(step_noise(0, jnp.int32(1), 1).key, rows)
    shape = len(rows), 70, dim
    ones, gain = jnp.ones(shape, jnp.bfloat16), jnp.ones(dim)
    arrays = 0 * ones, ones, 0 * gain, gain, 0 * gain
    weights = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.bfloat16)
    output, _, d_branch, *_ = run(form, arrays, noise, weights, 0.5)
    keep = np.asarray(keep_mask(site_words(noise, 1), rows, shape[1:], 0.5))
    found = output > 0, d_branch != 0  # what is kept lies above its vector's mean
    return sum(int((np.asarray(x) != keep).sum()) for x in found)


def relative_errors(
    fused: Form, shapes: Sequence[Sequence[int]], peer: Form, formula: Form
) -> list[float]:
    """Mean error of the output and each gradient in bfloat16, divided by a peer's.

    Infinite if a second run gives other bits.

    Args:
      fused: the form that uses the kernels.
      shapes: of its arguments; the result has the first.
      peer: the form that XLA compiles.
      formula: the form that gives the right result, in float32.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from gpt1_jax.ops.dropout import step_noise

    rng = np.random.default_rng(0)
    shapes = *shapes, shapes[0]
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
    noise = step_noise(0, jnp.int32(1), shapes[0][0])

    def results(form: Form, dtype: str) -> list[np.ndarray]:
        *parts, weights = (x.astype(dtype) for x in arrays)
        found = run(form, parts, noise, weights, 0.1)
        return [np.asarray(x, np.float32) for x in found]

    with jax.default_matmul_precision("highest"):
        exact = results(formula, "float32")
    errors = []
    for form in (fused, peer):
        pairs = zip(results(form, "bfloat16"), exact, strict=True)
        errors.append([float(np.abs(x - y).mean()) for x, y in pairs])
    once, again = (results(fused, "bfloat16") for _ in range(2))
    if not all(map(np.array_equal, once, again)):
        return [float("inf")]
    pairs = zip(*errors, strict=True)
    return [ours / theirs if theirs else 1.0 + ours for ours, theirs in pairs]


def run(form: Form, parts: Any, noise: Any, weights: Any, rate: float) -> Any:
    """The output of a form, and the gradients of its weighted sum."""
    import jax

    def both(parts: Any, noise: Any, weights: Any) -> Any:
        output, pull = jax.vjp(functools.partial(form, noise, rate), *parts)
        return output, *pull(weights)

    return jax.jit(both)(tuple(parts), noise, weights)


def plans(toy: bool) -> Iterator[tuple[str, Any]]:
    """The package's plan, then plans that differ from it in one kernel."""
    from gpt1_jax.ops.attention_gpu import PLAN
    from gpt1_jax.ops.attention_gpu_kernels import Tiles

    yield "as it is", PLAN
    for kernel in PLAN._fields:
        others = BY_KEY if kernel == "key_value_gradient" else BY_QUERY
        for tiles in others[: 1 if toy else None]:
            if tiles != getattr(PLAN, kernel):
                yield f"{kernel} {tiles}", PLAN._replace(**{kernel: Tiles(*tiles)})


def attention_times(
    kernels: Kernels, flags: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Times of attention, forward and backward; on a GPU with each plan."""
    from benchmarks.peers import jax_pieces

    module = kernels.attention
    make = functools.partial(jax_pieces.attention_case, flags, module.attention)
    if not hasattr(module, "PLAN"):
        yield timed("attention", make, flags)
        return
    for name, plan in plans(flags.toy):
        kept, module.PLAN = module.PLAN, plan
        try:
            yield timed(f"attention, {name}", make, flags)
        finally:
            module.PLAN = kept


def norm_times(kernels: Kernels, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times of LayerNorm with dropout and sum, forward and backward, ours and XLA's."""
    from benchmarks.peers import jax_pieces

    forms = {"XLA's": jax_pieces.residual_layer_norm}
    if kernels.layer_norm:
        forms["fused"] = kernels.layer_norm.residual_layer_norm
    for name, form in forms.items():
        make = functools.partial(jax_pieces.residual_norm_case, flags, form)
        yield timed(f"LayerNorm, {name}", make, flags)


def timed(
    name: str, make: Callable[[], harness.Case], flags: argparse.Namespace
) -> dict[str, Any]:
    """The time of a case, or the reason why it does not compile."""
    import jax

    from benchmarks.peers import pieces

    try:
        case = make()
        case.wait(case.run())
        turns = [pieces.run_turn(case, flags.calls) for _ in range(flags.rounds)]
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        return {"case": name, "error": str(error).partition("\n")[0]}
    return {"case": name, "ms": 1e3 * min(map(min, turns))}


def checked(kernels: Kernels, toy: bool) -> dict[str, dict[str, Any]]:
    """Checks each kind of kernels: wrong mask elements, errors, the verdict."""
    from benchmarks.peers import jax_pieces
    from gpt1_jax.ops.attention import causal_attention, plain_causal_attention

    few = slice(3 if toy else None)
    attend = kernels.attention.attention
    fused, blocked, plain = map(
        attention_form, (attend, causal_attention, plain_causal_attention)
    )

    def fits(shape: Sequence[int]) -> bool:
        return toy or not kernels.attention.refusal(shape, "bfloat16")

    found: dict[str, dict[str, Any]] = {}
    found["attention"] = {
        "masks": {
            f"{heads} heads": wrong_attention_masks(fused, heads)
            for heads in (3, 4)
            if fits((3, 64, heads, 64))
        },
        "errors": {
            str(shape): relative_errors(fused, [shape] * 3, blocked, plain)
            for shape in CHECKED[few]
            if fits(shape)
        },
    }
    if kernels.layer_norm:
        fused = norm_form(kernels.layer_norm.residual_layer_norm)
        separate = norm_form(jax_pieces.residual_layer_norm)
        masks = {f"D = {dim}": wrong_norm_masks(fused, dim) for dim in (32, 768)}
        errors = {}
        for shape in CHECKED_NORMS[few]:
            shapes = shape, shape, *[shape[-1:]] * 3
            errors[str(shape)] = relative_errors(fused, shapes, separate, separate)
        found["layer_norm"] = {"masks": masks, "errors": errors}
    for results in found.values():
        ratios = (x for ratios in results["errors"].values() for x in ratios)
        right = not any(results["masks"].values()) and max(ratios) < MOST_ERROR
        results["right"] = right
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
        harness.write_json(flags.output, record, flags, {**results, "times": times})
    if wrong:
        sys.exit(f"fused_kernels.py: {' and '.join(wrong)} compute something else")


if __name__ == "__main__":
    main(sys.argv[1:])
