"""The loss of language modelling, L1 (eq. 1).

The logits of a batch are the largest array of a training step, 5 GB at the paper's
size. They are computed for a chunk of positions at a time (in training, together with
their gradient) and never kept.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.ops.products import einsum, product, transposed_product

ROW_MULTIPLE = 128  # matrix units compute this many softmax rows at a time
# Up to this exponent, powers of e are summed unscaled; float32 spans e^-87 to e^88.
MAX_EXPONENT = 64.0
GROUP = 16  # a GPU rescales sums of powers of e once for so many scores


def plain_next_token_nll(
    hidden: jax.Array, unembedding: jax.Array, tokens: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """The formula of `next_token_nll`; its autodiff keeps the logits."""
    operands = hidden.astype(dtype), unembedding.astype(dtype)
    scores = einsum("NTD,VD->NTV", *operands)
    labels = jnp.roll(tokens, -1, axis=1)[..., None]
    nll = -jnp.take_along_axis(jax.nn.log_softmax(scores), labels, axis=-1)
    return nll[..., 0].at[:, -1].set(0.0)


def next_token_nll(
    hidden: jax.Array,
    unembedding: jax.Array,
    tokens: jax.Array,
    dtype: jnp.dtype,
    chunk: int = 0,
) -> jax.Array:
    """-log P(u_i | the tokens before it), the terms of L1 (eq. 1), for evaluation.

    The first token is not predicted, as in the released code: T tokens have T - 1
    losses.

    Args:
      hidden: [N, T, D], states of the last layer; position t has seen tokens 0..t.
      unembedding: [rows, D], at least one row per token id.
      tokens: [N, T] integers.
      dtype: dtype of the operands of the logits product; the rest is float32.
      chunk: positions whose logits are computed at a time; 0 for all T.

    Returns:
      [N, T] float32, nats; column t is the loss of token t + 1, the last column 0.
    """
    labels = jnp.roll(tokens, -1, axis=1)
    parts = _chunks(chunk, hidden.astype(dtype), labels)

    def all_nll(kernel: jax.Array) -> jax.Array:
        def chunk_nll(_, part):
            hidden, labels = part
            return None, _nll_and_scores(hidden, labels, kernel, len(unembedding))[0]

        return jax.lax.scan(chunk_nll, None, parts)[1]

    nll = _with_padded_kernel(all_nll, unembedding, dtype)
    return _unchunk(nll, tokens.shape).at[:, -1].set(0.0)


def next_token_loss(
    hidden: jax.Array,
    unembedding: jax.Array,
    tokens: jax.Array,
    weights: jax.Array,
    dtype: jnp.dtype,
    chunk: int = 0,
) -> jax.Array:
    """The sum of weights * `next_token_nll`, for training.

    Gradients are computed with the loss, chunk by chunk, from operands of `dtype` with
    float32 sums.

    Args:
      hidden, unembedding, tokens, dtype, chunk: see `next_token_nll`.
      weights: [N, T] float32; column t weighs the loss of token t + 1, the last
        column is ignored.

    Returns:
      Scalar float32.
    """
    labels = jnp.roll(tokens, -1, axis=1)
    weights = jnp.asarray(weights).at[:, -1].set(0.0)
    return _weighted_nll(hidden.astype(dtype), unembedding, labels, weights, chunk)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _weighted_nll(
    hidden: jax.Array,
    unembedding: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    chunk: int,
) -> jax.Array:
    return _weighted_nll_fwd(hidden, unembedding, labels, weights, chunk)[0]


def _weighted_nll_fwd(hidden, unembedding, labels, weights, chunk):
    rows = len(unembedding)
    parts = _chunks(chunk, hidden, labels, weights)

    def with_gradients(kernel: jax.Array) -> Any:
        def add_chunk(d_kernel, part):
            hidden, labels, weights = part
            nll, scores, log_sum = _nll_and_scores(hidden, labels, kernel, rows)
            vectors = log_sum, labels, weights
            d_hidden, d_kernel_part = _score_gradients(
                scores, vectors, hidden, kernel, rows
            )
            return d_kernel + d_kernel_part, (nll, d_hidden)

        zeros = jnp.zeros(kernel.shape, jnp.float32)
        d_kernel, of_parts = jax.lax.scan(add_chunk, zeros, parts)
        return d_kernel[:rows], *of_parts

    d_kernel, nll, d_hidden = _with_padded_kernel(
        with_gradients, unembedding, hidden.dtype
    )
    nll, d_hidden = (_unchunk(x, labels.shape) for x in (nll, d_hidden))
    return (weights * nll).sum(), (d_hidden, d_kernel, nll)


def _weighted_nll_bwd(chunk, residuals, grad):
    d_hidden, d_kernel, nll = residuals
    d_hidden = (grad * d_hidden.astype(jnp.float32)).astype(d_hidden.dtype)
    return d_hidden, grad * d_kernel, None, grad * nll


_weighted_nll.defvjp(_weighted_nll_fwd, _weighted_nll_bwd)


def _score_gradients(
    scores: jax.Array,
    vectors: tuple[jax.Array, jax.Array, jax.Array],
    hidden: jax.Array,
    kernel: jax.Array,
    rows: int,
) -> tuple[jax.Array, jax.Array]:
    """Gradients [R, D] and [padded rows, D] of both operands of the scores' product.

    Args:
      scores: [R, padded rows], as the product gives them.
      vectors: the log-normaliser, label and weight of each position, each [R].
      hidden: [R, D].
      kernel: [padded rows, D].
      rows: how many rows of `kernel` are not padding.
    """

    def d_scores(scores, log_sum, labels, weights):
        probs = jnp.exp(scores - log_sum[:, None])
        d_scores = (probs - _one_hot(labels, scores)) * weights[:, None]
        return d_scores.astype(hidden.dtype)

    def once():
        gradient = d_scores(_hide_padding(scores, rows), *vectors)
        return gradient, gradient

    def capped():
        # Padding is kept from overflowing; hiding it would take instructions. One
        # product multiplies it by zeros, and the caller cuts it off the other.
        gradient = d_scores(jnp.minimum(scores, vectors[0][:, None]), *vectors)
        return gradient, gradient

    def twice():
        rounded = scores.astype(hidden.dtype)  # nothing is lost: see `product`
        first = jax.lax.optimization_barrier((rounded, *vectors))
        second = jax.lax.optimization_barrier(first)
        to_hidden = d_scores(_hide_padding(first[0], rows), *first[1:])
        return to_hidden, d_scores(*second)  # the caller cuts off padding

    # A TPU computes the gradient as part of each product, from the scores, unless it
    # sees that both need the same: then it writes the gradient and reads it twice.
    to_hidden, to_kernel = jax.lax.platform_dependent(
        tpu=twice, cuda=capped, rocm=capped, default=once
    )
    d_hidden = product("rv,vd->rd", to_hidden, kernel).astype(hidden.dtype)
    return d_hidden, transposed_product(to_kernel, hidden)


def _nll_and_scores(
    hidden: jax.Array, labels: jax.Array, kernel: jax.Array, rows: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """-log P [R], scores [R, padded rows] and log-normalisers [R] of R positions."""
    scores = product("rd,vd->rv", hidden, kernel)
    log_sum = _log_sum_exp(scores, rows, hidden, kernel)
    return log_sum - _label_scores(scores, labels), scores, log_sum


def _hide_padding(scores: jax.Array, rows: int) -> jax.Array:
    """[R, padded rows], -inf where the matrix was padded."""
    if scores.shape[1] <= rows:
        return scores
    padding = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1) >= rows
    return jnp.where(padding, -jnp.inf, scores)


def _one_hot(labels: jax.Array, scores: jax.Array) -> jax.Array:
    """[R, rows] bool, true at each position's label."""
    return jax.lax.broadcasted_iota(labels.dtype, scores.shape, 1) == labels[:, None]


def _label_scores(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """[R], the score of each position's label.

    To take a few scores, a TPU would write all of them to memory; the sum is part of a
    pass that reads them anyway.
    """
    return jax.lax.platform_dependent(
        tpu=lambda: jnp.where(_one_hot(labels, scores), scores, 0.0).sum(-1),
        default=lambda: jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0],
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_sum_exp(
    scores: jax.Array, rows: int, hidden: jax.Array, kernel: jax.Array
) -> jax.Array:
    """[R], log(sum(exp(scores))) over the columns that are not padding.

    On a TPU this is part of the product that writes the scores, on a GPU one pass over
    them. On a CPU, which has them in its cache, the maximum comes first, then the sum.

    Args:
      scores: [R, padded rows], the product of the next two.
      rows: how many columns are not padding.
      hidden: [R, D].
      kernel: [padded rows, D].
    """
    unpadded = _hide_padding(scores, rows)

    def in_one_pass() -> jax.Array:
        return _log_sum_exp_in_one_pass(scores, rows)

    return jax.lax.platform_dependent(
        cuda=in_one_pass,
        rocm=in_one_pass,
        tpu=lambda: _log_sum_exp_in_product(unpadded, rows, hidden, kernel),
        default=lambda: jax.nn.logsumexp(unpadded, axis=-1),
    )


@_log_sum_exp.defjvp
def _log_sum_exp_jvp(rows, primals, tangents):
    """Differentiates by the scores, since not every form has its own derivative."""
    scores, *operands = primals
    log_sum = _log_sum_exp(scores, rows, *operands)
    probs = jnp.exp(_hide_padding(scores, rows) - log_sum[:, None])
    return log_sum, (probs * tangents[0]).sum(-1)


def _log_sum_exp_in_product(
    scores: jax.Array, rows: int, hidden: jax.Array, kernel: jax.Array
) -> jax.Array:
    """Sums powers of e unscaled, unless one might leave float32's range.

    A TPU writes scores, maxima and sums in one kernel. If a sum waited for its maximum,
    the scores would be read again.
    """
    highest, total = scores.max(-1), jnp.exp(scores).sum(-1)
    precision = jnp.finfo(hidden.dtype)

    def from_maximum(hidden: jax.Array) -> jax.Array:
        scores = product("rd,vd->rv", hidden[None], kernel)
        # XLA may leave out the rounding of scores that are not stored.
        scores = jax.lax.reduce_precision(scores, precision.nexp, precision.nmant)
        return jax.nn.logsumexp(_hide_padding(scores, rows), axis=-1)[0]

    def careful() -> jax.Array:
        # Recomputes the scores, a few at a time, so that no memory is kept for it.
        return jax.lax.map(from_maximum, hidden, batch_size=ROW_MULTIPLE)

    in_range = jnp.abs(highest).max() < MAX_EXPONENT  # also false if one is NaN
    return jax.lax.cond(in_range, lambda: jnp.log(total), careful)


def _log_sum_exp_in_one_pass(scores: jax.Array, rows: int) -> jax.Array:
    """Computes maximum and sum together; rescales the sum where the maximum grows.

    That takes two exponentials each time. So the columns are first cut into parts, and
    elements at the same place in each share one maximum and one sum.
    """
    columns = scores.shape[1]
    width = columns // math.gcd(columns, GROUP)
    lowest = jnp.finfo(scores.dtype).min  # -inf would give inf - inf
    start = jnp.asarray(lowest, scores.dtype), jnp.zeros((), scores.dtype)
    parts = [
        _hide_padding(scores[:, first : first + width], rows - first)
        for first in range(0, columns, width)
    ]
    highest = functools.reduce(jnp.maximum, parts, start[0])
    total = sum(jnp.exp(part - highest) for part in parts)

    def combine(left: Any, right: Any) -> tuple[jax.Array, jax.Array]:
        (highest, total), (other, more) = left, right
        both = jnp.maximum(highest, other)
        total = total * jnp.exp(highest - both) + more * jnp.exp(other - both)
        return both, total

    highest, total = jax.lax.reduce((highest, total), start, combine, (1,))
    return highest + jnp.log(total)


def _with_padded_kernel(
    function: Callable[[jax.Array], Any], unembedding: jax.Array, dtype: jnp.dtype
) -> Any:
    """`function(kernel)` of the softmax rows in `dtype`.

    If the cast makes a copy anyway, an accelerator's copy is padded with zero rows to
    a multiple of `ROW_MULTIPLE`.
    """
    kernel = unembedding.astype(dtype)
    if dtype == unembedding.dtype:
        return function(kernel)
    padding = (0, -len(kernel) % ROW_MULTIPLE), (0, 0)
    return jax.lax.platform_dependent(
        cpu=lambda: function(kernel),
        default=lambda: function(jnp.pad(kernel, padding)),
    )


def _chunks(chunk: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """[N, T, ...] to [T / chunk, N chunk, ...], padded with zeros."""

    def split(x: jax.Array) -> jax.Array:
        length = x.shape[1]
        size = min(chunk, length) or length
        filled = jnp.pad(x, ((0, 0), (0, -length % size)) + ((0, 0),) * (x.ndim - 2))
        parts = filled.reshape(len(x), -1, size, *x.shape[2:]).swapaxes(0, 1)
        return parts.reshape(len(parts), -1, *x.shape[2:])

    return tuple(split(x) for x in arrays)


def _unchunk(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `_chunks`; `shape` is [N, T]."""
    num_seqs, length = shape
    parts = x.reshape(len(x), num_seqs, -1, *x.shape[2:]).swapaxes(0, 1)
    return parts.reshape(num_seqs, -1, *x.shape[2:])[:, :length]
