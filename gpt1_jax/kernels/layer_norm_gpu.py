"""LayerNorm of a residual sum as kernels for NVIDIA GPUs: one forward, one backward.

Each is one pass over memory. The forward kernel reads the branch and the input, and
writes their sum, after dropout, and its LayerNorm. The backward kernel reads the sum
and the gradient, and writes the gradients of both summands and of the three vectors.

Vectors of D elements are computed in pieces whose width is a power of two. A piece in
the lower half shares the hashes of its dropout mask with one in the upper half.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gpt1_jax.kernels import pallas_gpu
from gpt1_jax.kernels.pallas_gpu import Launch
from gpt1_jax.ops.dropout import (
    Noise,
    hash_bits,
    keep_scale,
    keep_threshold,
    row_counters,
    site_words,
)
from gpt1_jax.ops.layer_norm import EPSILON

MAX_PIECES = 8  # in half a vector
MIN_WIDTH = 16  # of a piece
# Tiles of at most 2,048 elements leave a thread's values, and those that it loads for
# the next tile, in registers, with room for four or five programs on a multiprocessor.
NUM_WARPS, TILE = 4, 2048
# Vectors for each program: more mean fewer partial sums, or fewer reads of the gain.
FORWARD_VECTORS, BACKWARD_VECTORS = 16, 64


class Problem(NamedTuple):
    """The constants that the kernels are compiled for, besides the arrays' shapes."""

    dim: int  # D
    rate: float  # dropout rate; 0.0: no dropout

    @property
    def width(self) -> int:
        """The width of a piece: the largest power of two that divides half a vector."""
        half = self.dim // 2
        return half & -half

    @property
    def pieces(self) -> list[Any]:
        """The pieces of the lower half, then those of the upper."""
        return [pl.ds(i, self.width) for i in range(0, self.dim, self.width)]

    @property
    def tile_vectors(self) -> int:
        """How many vectors are computed at once."""
        return min(FORWARD_VECTORS, 2 ** max(0, (TILE // self.dim).bit_length() - 1))


def refusal(shape: tuple[int, ...], dtype: jnp.dtype) -> str:
    """Why the kernels cannot run here on arrays [.., D]; empty if they can."""
    del dtype  # they take any
    if why := pallas_gpu.refusal():
        return why
    dim = shape[-1]
    width = Problem(dim, 0.0).width
    if dim % 2 or width < MIN_WIDTH or dim > 2 * MAX_PIECES * width:
        return f"half of {dim} is not a few times a power of two"
    return ""


def residual_layer_norm(
    x: jax.Array,
    branch: jax.Array,
    branch_bias: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    rows: jax.Array | None = None,
) -> jax.Array:
    """`residual_layer_norm` by kernels, where `refusal` is empty."""
    shape, dim = x.shape, x.shape[-1]
    problem = Problem(dim, 0.0 if noise is None else rate)
    arrays = [a.reshape(-1, dim) for a in (x, branch)]
    padding = -len(arrays[0]) % max(FORWARD_VECTORS, BACKWARD_VECTORS)
    arrays = [jnp.pad(a, ((0, padding), (0, 0))) for a in arrays]
    counters = _counters(shape, problem.rate, noise, site, rows)
    counters = jnp.pad(counters, ((0, 0), (0, padding)))
    vectors = jnp.stack([branch_bias, scale, bias])
    normed = _normed(*arrays, vectors, counters, problem)
    return normed[: len(normed) - padding].reshape(shape)


def _counters(
    shape: tuple[int, ...],
    rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    rows: jax.Array | None,
) -> jax.Array:
    """[3, V] uint32, the arguments of `hash_bits` for each vector's first hash."""
    if noise is None or rate == 0.0:
        return jnp.zeros((3, math.prod(shape[:-1])), jnp.uint32)
    words, rows = site_words(noise, site), noise.rows if rows is None else rows
    row_shape = shape[rows.ndim :]
    first, key = row_counters(words, rows, row_shape)
    inner = np.arange(math.prod(row_shape[:-1]), dtype=np.uint32)
    first = first[..., None] + inner * np.uint32(shape[-1] // 2)
    parts = first, key[..., None], words[1]
    return jnp.stack([jnp.broadcast_to(x, first.shape).reshape(-1) for x in parts])


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _normed(
    x: jax.Array,
    branch: jax.Array,
    vectors: jax.Array,
    counters: jax.Array,
    problem: Problem,
) -> jax.Array:
    """The fused LayerNorm of arrays [V, D], V being the number of vectors.

    `vectors` [3, D] are the branch's bias, gain and bias; `counters` are [3, V].
    """
    return _normed_fwd(x, branch, vectors, counters, problem)[0]


def _normed_fwd(x, branch, vectors, counters, problem):
    per_vector = jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
    normed, summed, mean, inverse = _call(
        forward_kernel,
        problem,
        FORWARD_VECTORS,
        (counters, x, branch, vectors),
        (x, x, per_vector, per_vector),
    )
    return normed, (counters, summed, mean, inverse, vectors)


def _normed_bwd(problem, residuals, grad):
    counters, summed, mean, inverse, vectors = residuals
    num_programs = len(summed) // BACKWARD_VECTORS
    sums = jax.ShapeDtypeStruct((num_programs, 3, problem.dim), jnp.float32)
    dx, d_branch, d_vectors = _call(
        backward_kernel,
        problem,
        BACKWARD_VECTORS,
        (counters, summed, mean, inverse, grad, vectors),
        (summed, summed, sums),
    )
    return dx, d_branch, d_vectors.sum(0), None


_normed.defvjp(_normed_fwd, _normed_bwd)


def forward_kernel(problem: Problem, *refs: Any) -> None:
    """The sum of input and branch, its LayerNorm, mean and inverse deviation."""
    counters_ref, x_ref, branch_ref, vectors_ref, *result_refs = refs
    normed_ref, sum_ref, mean_ref, inverse_ref = result_refs
    pieces = problem.pieces
    branch_bias, scale, bias = (
        [vectors_ref[i, piece] for piece in pieces] for i in range(3)
    )

    def tile(
        rows: Any, xs: list[jax.Array], branches: list[jax.Array], _: None
    ) -> None:
        added = [
            branch.astype(jnp.float32) + shift
            for branch, shift in zip(branches, branch_bias, strict=True)
        ]
        sums = []
        dropped = _dropped(problem, counters_ref, rows, added)
        for piece, x, branch in zip(pieces, xs, dropped, strict=True):
            total = (x + branch).astype(sum_ref.dtype)
            sum_ref[rows, piece] = total
            sums.append(total.astype(jnp.float32))
        mean = _mean(problem, sums)
        centred = [x - mean[:, None] for x in sums]
        inverse = jax.lax.rsqrt(_mean(problem, [x * x for x in centred]) + EPSILON)
        mean_ref[rows], inverse_ref[rows] = mean, inverse
        for piece, x, gain, shift in zip(pieces, centred, scale, bias, strict=True):
            normed = x * inverse[:, None] * gain + shift
            normed_ref[rows, piece] = normed.astype(normed_ref.dtype)

    _for_each_tile(problem, (x_ref, branch_ref), tile, None)


def backward_kernel(problem: Problem, *refs: Any) -> None:
    """Gradients of input and branch, and this program's part of the vectors'.

    With n the normalised sum, d its gradient (times the gain) and s the deviation:
    dx = (d - mean(d) - n mean(d n)) / s.
    """
    counters_ref, sum_ref, mean_ref, inverse_ref, grad_ref, *more_refs = refs
    vectors_ref, *results = more_refs
    dx_ref, d_branch_ref, sums_ref = results
    pieces = problem.pieces
    scale = [vectors_ref[1, piece] for piece in pieces]

    def tile(
        rows: Any,
        sums: list[jax.Array],
        grads: list[jax.Array],
        state: list[list[jax.Array]],
    ) -> list[list[jax.Array]]:
        mean, inverse = mean_ref[rows][:, None], inverse_ref[rows][:, None]
        grads = [grad.astype(jnp.float32) for grad in grads]
        normed = [(x - mean) * inverse for x in sums]
        scaled = [grad * gain for grad, gain in zip(grads, scale, strict=True)]
        both = [d * n for d, n in zip(scaled, normed, strict=True)]
        offset, along = _mean(problem, scaled)[:, None], _mean(problem, both)[:, None]
        dxs = []
        for piece, d, n in zip(pieces, scaled, normed, strict=True):
            dxs.append(inverse * (d - offset - n * along))
            dx_ref[rows, piece] = dxs[-1].astype(dx_ref.dtype)
        d_branches = _dropped(problem, counters_ref, rows, dxs)
        for piece, d_branch in zip(pieces, d_branches, strict=True):
            d_branch_ref[rows, piece] = d_branch.astype(d_branch_ref.dtype)
        d_scale = [grad * n for grad, n in zip(grads, normed, strict=True)]
        terms = d_branches, d_scale, grads
        return [
            [total + term for total, term in zip(totals, parts, strict=True)]
            for totals, parts in zip(state, terms, strict=True)
        ]

    zeros = jnp.zeros((problem.tile_vectors, problem.width), jnp.float32)
    state = [[zeros] * len(pieces)] * 3
    state = _for_each_tile(problem, (sum_ref, grad_ref), tile, state)
    for i, totals in enumerate(state):
        for piece, total in zip(pieces, totals, strict=True):
            sums_ref[i, piece] = total.sum(0)


def _for_each_tile(
    problem: Problem, refs: Sequence[Any], compute: Callable[..., Any], state: Any
) -> Any:
    """Runs a function on one tile of vectors after another.

    Each is loaded while the one before is computed.

    Args:
      problem: the constants.
      refs: references to arrays of the program's vectors.
      compute: (a tile's rows, its pieces of each array, state) -> the next state.
      state: the state before the first.

    Returns:
      The state after the last.
    """
    num_tiles = refs[0].shape[0] // problem.tile_vectors

    def rows_of(i: jax.Array) -> Any:
        return pl.ds(i * problem.tile_vectors, problem.tile_vectors)

    def load(i: jax.Array) -> list[list[jax.Array]]:
        return [[ref[rows_of(i), piece] for piece in problem.pieces] for ref in refs]

    def step(i: jax.Array, carry: Any) -> Any:
        loaded, state = carry
        following = load(jnp.minimum(i + 1, num_tiles - 1))
        return following, compute(rows_of(i), *loaded, state)

    return jax.lax.fori_loop(0, num_tiles, step, (load(jnp.int32(0)), state))[1]


def _mean(problem: Problem, pieces: Sequence[jax.Array]) -> jax.Array:
    """The mean of each vector: [tile, width] pieces to [tile]."""
    return functools.reduce(jnp.add, pieces).sum(1) / problem.dim


def _dropped(
    problem: Problem, counters_ref: Any, rows: Any, pieces: list[jax.Array]
) -> list[jax.Array]:
    """Dropout of float32 pieces of a tile of vectors, those of the lower half first."""
    bound = keep_threshold(problem.rate)
    if bound == 0:
        return pieces
    first, key, word = (counters_ref[i, rows][:, None] for i in range(3))
    halves, kept = len(pieces) // 2, []
    for i in range(halves):
        place = np.uint32(i * problem.width) + jnp.arange(problem.width, dtype="uint32")
        kept.append(hash_bits(first + place, key, word))
    kept = [bits << 16 for bits in kept] + kept
    scale = keep_scale(problem.rate)
    return [
        jnp.where(bits >= np.uint32(bound << 16), x * scale, 0.0)
        for bits, x in zip(kept, pieces, strict=True)
    ]


def _call(
    kernel: Any,
    problem: Problem,
    vectors: int,
    inputs: tuple[jax.Array, ...],
    outputs: tuple[Any, ...],
) -> list[jax.Array]:
    """Runs a kernel: one program for each `vectors` vectors."""
    grid = (inputs[0].shape[1] // vectors,)
    launch = Launch(f"layer_norm_{kernel.__name__}", grid, NUM_WARPS, num_stages=1)

    def block_spec(array: Any) -> pl.BlockSpec:
        """A program's own vectors, counters and sums; all of the shared vectors."""
        shape = array.shape
        if len(shape) == 3:  # sums
            return pl.BlockSpec((None, *shape[1:]), lambda i: (i, 0, 0))
        if len(shape) == 1:
            return pl.BlockSpec((vectors,), lambda i: (i,))
        if array.dtype == jnp.uint32:  # counters
            return pl.BlockSpec((3, vectors), lambda i: (0, i))
        if shape[0] <= 3:
            return pl.BlockSpec(shape, lambda i: (0, 0))
        return pl.BlockSpec((vectors, shape[1]), lambda i: (i, 0))

    def run(interpret: bool, *refs: Any) -> None:
        del interpret
        kernel(problem, *refs)

    return pallas_gpu.run(run, launch, inputs, outputs, block_spec)
