"""The fused attention kernels on a GPU: whether they are right, and their best tiles.

    python benchmarks/fused_attention.py [--batch=64] [--output=FILE]

First masks are compared bit for bit, and bfloat16 outputs and gradients with float32
ones of the formula: their errors should be about those of blocked attention. If one is
wrong the script ends with 1. Then forward and backward are timed at the paper's sizes,
with one kernel's tiles changed at a time. On a CPU, where the kernels are interpreted,
`--toy` tries the script.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
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
MOST_ERROR = 1.3  # that of blocked attention is 1


def refused(flags: argparse.Namespace) -> str:
    """Why the kernels cannot be measured here; empty if they can."""
    import jax

    from gpt1_jax.ops.attention_gpu import refusal

    if jax.default_backend() != "gpu":
        return f"there is no GPU, but a {jax.default_backend().upper()}"
    shape = flags.batch, flags.seq_len, flags.embed_dim // HEAD_DIM, HEAD_DIM
    return refusal(shape, jax.numpy.dtype(flags.dtype))


def wrong_masks(num_heads: int) -> int:
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


def relative_errors(shape: Sequence[int]) -> list[float]:
    """Mean error of the output and each gradient in bfloat16, by blocked attention's.

    Infinite if a second run gives other bits.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from gpt1_jax.ops.dropout import step_noise

    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for _ in range(4)]
    noise = step_noise(0, jnp.int32(1), shape[0])

    def results(form: str, dtype: str) -> list[np.ndarray]:
        *parts, weights = (x.astype(dtype) for x in arrays)
        found = run(form, parts, noise, weights, 0.1)
        return [np.asarray(x, np.float32) for x in found]

    with jax.default_matmul_precision("highest"):
        exact = results("plain", "float32")
    errors = {}
    for form in ("blocked", "fused"):
        pairs = zip(results(form, "bfloat16"), exact, strict=True)
        errors[form] = [float(np.abs(x - y).mean()) for x, y in pairs]
    once, again = (results("fused", "bfloat16") for _ in range(2))
    if not all(map(np.array_equal, once, again)):
        return [float("inf")]
    pairs = zip(errors["fused"], errors["blocked"], strict=True)
    return [ours / theirs if theirs else 1.0 + ours for ours, theirs in pairs]


def run(form: str, parts: Any, noise: Any, weights: Any, rate: float) -> Any:
    """The output of a form of attention, and the gradients of its weighted sum."""
    import jax

    from gpt1_jax.ops import attention, attention_gpu

    attend = {
        "blocked": attention.causal_attention,
        "plain": attention.plain_causal_attention,
        "fused": attention_gpu.attention,
    }[form]

    def both(parts: Any, noise: Any, weights: Any) -> Any:
        output, pull = jax.vjp(lambda *xs: attend(*xs, rate, noise, 1), *parts)
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


def timed(name: str, plan: Any, flags: argparse.Namespace) -> dict[str, Any]:
    """Forward and backward with a plan; or why it does not compile."""
    import jax
    import jax_pieces
    import pieces

    from gpt1_jax.ops import attention_gpu

    kept, attention_gpu.PLAN = attention_gpu.PLAN, plan
    try:
        case = jax_pieces.attention_case(flags, attention_gpu.attention)
        case.wait(case.run())
        turns = [pieces.run_turn(case, flags.calls) for _ in range(flags.rounds)]
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        return {"plan": name, "error": str(error).partition("\n")[0]}
    finally:
        attention_gpu.PLAN = kept
    return {"plan": name, "ms": 1e3 * min(map(min, turns))}


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
    record = harness.describe("fused_attention.py", arguments)
    harness.use_first_gpu()
    if not flags.toy and (why := refused(flags)):
        sys.exit(f"fused_attention.py: not here: {why}")
    masks = {str(heads): wrong_masks(heads) for heads in (3, 4)}
    print(f"wrong mask elements, by the number of heads: {masks}", flush=True)
    errors = {str(shape): relative_errors(shape) for shape in CHECKED[: 4 - flags.toy]}
    for shape, ratios in errors.items():
        print(shape, "errors by blocked's:", [f"{x:.2f}" for x in ratios], flush=True)
    right = not any(masks.values())
    right &= max(x for ratios in errors.values() for x in ratios) < MOST_ERROR
    times = [timed(name, plan, flags) for name, plan in plans(flags.toy)]
    for row in times:
        value = f"{row['ms']:.3f} ms" if "ms" in row else row["error"]
        print(f"{row['plan']}: {value}", flush=True)
    if flags.output:
        results = {"right": right, "masks": masks, "errors": errors, "times": times}
        harness.write_json(flags.output, record, flags, results)
    if not right:
        sys.exit("fused_attention.py: the kernels compute something else")


if __name__ == "__main__":
    main(sys.argv[1:])
