"""The fused kernels on a GPU: whether they are right, their times, their best tiles.

    python benchmarks/fused_kernels.py [--batch=64] [--output=FILE]

First masks are compared bit for bit, and bfloat16 outputs and gradients with float32
ones of the formula: their errors should be about those of what XLA makes of blocked
attention, and of LayerNorm, dropout and sum. If one is wrong the script ends with 1.
Then forward and backward are timed at the paper's sizes, attention with one kernel's
tiles changed at a time. On a CPU, where the kernels are interpreted, `--toy` tries the
script.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
from command_line import add_calls, add_sizes
from recipe import HEAD_DIM

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


def refused(flags: argparse.Namespace) -> str:
    """Why the kernels cannot be measured here; empty if they can."""
    import jax

    from gpt1_jax.ops import attention_gpu, layer_norm_gpu

    if jax.default_backend() != "gpu":
        return f"there is no GPU, but a {jax.default_backend().upper()}"
    shape = flags.batch, flags.seq_len, flags.embed_dim // HEAD_DIM, HEAD_DIM
    refused = attention_gpu.refusal(shape, jax.numpy.dtype(flags.dtype))
    return refused or layer_norm_gpu.refusal(flags.embed_dim)


def wrong_attention_masks(num_heads: int) -> int:
    """How many elements are kept that should not be, or the reverse, in two passes."""
    import jax.numpy as jnp
    import numpy as np

    from gpt1_jax.ops.dropout import Noise, keep_mask, site_words, step_noise

    size, rate = 64, 0.1
    rows = jnp.array([0, 5, 2**22 + 1], jnp.uint32)  # the last on a further page
    noise = Noise(step_noise(0, jnp.int32(1), 1).key, rows)
    shape = len(rows), size, num_heads, size
    units = jnp.broadcast_to(jnp.eye(size, dtype=jnp.bfloat16)[:, None], shape)
    zeros = jnp.zeros_like(units)
    output, _, _, d_value = run("fused", (zeros, zeros, units), noise, units, rate)
    probs_shape = num_heads, size, size
    words = site_words(noise, 1)
    keep = np.tril(np.asarray(keep_mask(words, rows, probs_shape, rate, None, 3)))
    found = output.transpose(0, 2, 1, 3), d_value.transpose(0, 2, 3, 1)
    return sum(int(((np.asarray(x) != 0) != keep).sum()) for x in found)


def wrong_norm_masks(dim: int) -> int:
    """As `wrong_attention_masks`, of the branch that LayerNorm adds."""
    import jax.numpy as jnp
    import numpy as np

    from gpt1_jax.ops.dropout import Noise, keep_mask, site_words, step_noise

    rows = jnp.array([0, 5, 2**27 + 1], jnp.uint32)  # the last on a further page
    noise = Noise(step_noise(0, jnp.int32(1), 1).key, rows)
    shape = len(rows), 70, dim
    ones, gain = jnp.ones(shape, jnp.bfloat16), jnp.ones(dim)
    arrays = 0 * ones, ones, 0 * gain, gain, 0 * gain
    weights = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.bfloat16)
    output, _, d_branch, *_ = run("fused_norm", arrays, noise, weights, 0.5)
    keep = np.asarray(keep_mask(site_words(noise, 1), rows, shape[1:], 0.5))
    found = output > 0, d_branch != 0  # what is kept lies above its vector's mean
    return sum(int((np.asarray(x) != keep).sum()) for x in found)


def relative_errors(
    fused: str, shapes: Sequence[Sequence[int]], peer: str, formula: str
) -> list[float]:
    """Mean error of the output and each gradient in bfloat16, by that of a peer.

    Infinite if a second run gives other bits.

    Args:
      fused: the form that uses the kernels.
      shapes: of its arguments, the first of which is that of the result.
      peer: the form that XLA compiles.
      formula: the form that tells, in float32, what is right.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from gpt1_jax.ops.dropout import step_noise

    rng = np.random.default_rng(0)
    shapes = *shapes, shapes[0]
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
    noise = step_noise(0, jnp.int32(1), shapes[0][0])

    def results(form: str, dtype: str) -> list[np.ndarray]:
        *parts, weights = (x.astype(dtype) for x in arrays)
        found = run(form, parts, noise, weights, 0.1)
        return [np.asarray(x, np.float32) for x in found]

    with jax.default_matmul_precision("highest"):
        exact = results(formula, "float32")
    errors = {}
    for form in (peer, fused):
        pairs = zip(results(form, "bfloat16"), exact, strict=True)
        errors[form] = [float(np.abs(x - y).mean()) for x, y in pairs]
    once, again = (results(fused, "bfloat16") for _ in range(2))
    if not all(map(np.array_equal, once, again)):
        return [float("inf")]
    pairs = zip(errors[fused], errors[peer], strict=True)
    return [ours / theirs if theirs else 1.0 + ours for ours, theirs in pairs]


def run(form: str, parts: Any, noise: Any, weights: Any, rate: float) -> Any:
    """The output of a form, and the gradients of its weighted sum."""
    import jax
    import jax_pieces

    from gpt1_jax.ops import attention, attention_gpu, layer_norm_gpu
    from gpt1_jax.ops.layer_norm import Branch

    attend = {
        "blocked": attention.causal_attention,
        "plain": attention.plain_causal_attention,
        "fused": attention_gpu.attention,
    }
    norm = {
        "norm": jax_pieces.residual_layer_norm,
        "fused_norm": layer_norm_gpu.residual_layer_norm,
    }

    def compute(noise: Any, *parts: Any) -> Any:
        if form in attend:
            return attend[form](*parts, rate, noise, 1)
        x, output, branch_bias, *vectors = parts
        branch = Branch(output, branch_bias, rate, noise, 1, None)
        return norm[form](x, branch, *vectors)

    def both(parts: Any, noise: Any, weights: Any) -> Any:
        output, pull = jax.vjp(functools.partial(compute, noise), *parts)
        return output, *pull(weights)

    return jax.jit(both)(tuple(parts), noise, weights)


def plans(toy: bool) -> Iterator[tuple[str, Any]]:
    """The plan of the package, then those that differ from it in one kernel."""
    from gpt1_jax.ops.attention_gpu import PLAN
    from gpt1_jax.ops.attention_gpu_kernels import Tiles

    yield "as it is", PLAN
    for kernel in PLAN._fields:
        others = BY_KEY if kernel == "key_value_gradient" else BY_QUERY
        for tiles in others[: 1 if toy else None]:
            if tiles != getattr(PLAN, kernel):
                yield f"{kernel} {tiles}", PLAN._replace(**{kernel: Tiles(*tiles)})


def attention_times(flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Forward and backward with each plan."""
    import jax_pieces

    from gpt1_jax.ops import attention_gpu

    for name, plan in plans(flags.toy):
        kept, attention_gpu.PLAN = attention_gpu.PLAN, plan
        try:
            form = attention_gpu.attention
            make = functools.partial(jax_pieces.attention_case, flags, form)
            yield timed(f"attention, {name}", make, flags)
        finally:
            attention_gpu.PLAN = kept


def norm_times(flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Forward and backward of LayerNorm with dropout and sum, as XLA makes it too."""
    import jax_pieces

    from gpt1_jax.ops import layer_norm_gpu

    fused = layer_norm_gpu.residual_layer_norm
    for name, form in ("XLA's", jax_pieces.residual_layer_norm), ("fused", fused):
        make = functools.partial(jax_pieces.residual_norm_case, flags, form)
        yield timed(f"LayerNorm, {name}", make, flags)


def timed(
    name: str, make: Callable[[], harness.Case], flags: argparse.Namespace
) -> dict[str, Any]:
    """The time of a case; or why it does not compile."""
    import jax
    import pieces

    try:
        case = make()
        case.wait(case.run())
        turns = [pieces.run_turn(case, flags.calls) for _ in range(flags.rounds)]
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        return {"case": name, "error": str(error).partition("\n")[0]}
    return {"case": name, "ms": 1e3 * min(map(min, turns))}


def checked(toy: bool) -> dict[str, dict[str, Any]]:
    """What is compared of each kind of kernels, and whether it is right."""
    few = slice(3 if toy else None)

    def norm_errors(shape: Sequence[int]) -> list[float]:
        shapes = shape, shape, *[shape[-1:]] * 3
        return relative_errors("fused_norm", shapes, "norm", "norm")

    def attention_errors(shape: Sequence[int]) -> list[float]:
        return relative_errors("fused", [shape] * 3, "blocked", "plain")

    found: dict[str, dict[str, Any]] = {
        "attention": {
            "masks": {
                f"{heads} heads": wrong_attention_masks(heads) for heads in (3, 4)
            },
            "errors": {str(shape): attention_errors(shape) for shape in CHECKED[few]},
        },
        "layer_norm": {
            "masks": {f"D = {dim}": wrong_norm_masks(dim) for dim in (32, 768)},
            "errors": {str(shape): norm_errors(shape) for shape in CHECKED_NORMS[few]},
        },
    }
    for results in found.values():
        errors = (x for ratios in results["errors"].values() for x in ratios)
        right = not any(results["masks"].values()) and max(errors) < MOST_ERROR
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
    record = harness.describe("fused_kernels.py", arguments)
    harness.use_first_gpu()
    if not flags.toy and (why := refused(flags)):
        sys.exit(f"fused_kernels.py: not here: {why}")
    results: dict[str, Any] = checked(flags.toy)
    for kernels, found in results.items():
        print(f"{kernels}, wrong mask elements: {found['masks']}")
        for shape, ratios in found["errors"].items():
            text = " ".join(f"{x:.2f}" for x in ratios)
            print(f"{kernels}, {shape}, errors by those of XLA's: {text}", flush=True)
    wrong = [kernels for kernels, found in results.items() if not found["right"]]
    times = []
    for row in itertools.chain(attention_times(flags), norm_times(flags)):
        value = f"{row['ms']:.3f} ms" if "ms" in row else row["error"]
        print(f"{row['case']}: {value}", flush=True)
        times.append(row)
    if flags.output:
        harness.write_json(flags.output, record, flags, {**results, "times": times})
    if wrong:
        sys.exit(f"fused_kernels.py: {' and '.join(wrong)} compute something else")


if __name__ == "__main__":
    main(sys.argv[1:])
