"""The kernels of `attention_tpu`, in Pallas.

A program computes pairs of heads of one sequence, h and h + H / 2, whose masks come
from the same hashes. A vector of the chip has 128 lanes, the width of two heads of 64:
a program reads such neighbours together and computes one after another. It zeroes the
others' lanes in one operand of each product, and writes a pair's own lanes of the
results.

Blocks of scores are [keys, queries], so that numbers for each query of a block fill the
lanes of one vector. Products come in an order that lets the matrix units work while the
vector units compute softmax and hash.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gpt1_jax.ops.attention import BLOCK_SIZE, MASKED_SCORE
from gpt1_jax.ops.dropout import fold, keep_scale, keep_threshold, mix_folded

_ROWS, _LANES = 8, 128  # of a vector
_QUERY, _KEY, _VALUE = range(3)  # the order in which arrays [T, 3 D] hold them
_LOG2_E = math.log2(math.e)  # the chip has powers of two: exp(x) = 2^(x log2(e))


class Sizes(NamedTuple):
    """The constants that a kernel is compiled for."""

    seq_len: int  # without padding
    num_heads: int
    head_dim: int
    rate: float  # dropout rate

    @property
    def embed_dim(self) -> int:
        """D, the lanes of all heads."""
        return self.num_heads * self.head_dim

    @property
    def padded_len(self) -> int:
        """The padded T of the kernels' arrays: whole blocks."""
        return self.seq_len + -self.seq_len % BLOCK_SIZE

    @property
    def width(self) -> int:
        """Lanes that a program reads: a head's and its neighbours', to fill vectors."""
        return math.lcm(self.head_dim, _LANES)

    @property
    def neighbours(self) -> int:
        """Heads in these lanes."""
        return self.width // self.head_dim

    @property
    def score_scale(self) -> float:
        """1 / sqrt(K)."""
        return 1 / math.sqrt(self.head_dim)

    @property
    def keep_factor(self) -> float:
        """The factor of elements that dropout keeps."""
        return float(keep_scale(self.rate))


class Pair:
    """A pair of heads that a program computes.

    Args:
      sizes: the kernel's constants.
      counters: [3, N] uint32, for each sequence the counter of its first element, and
        the first and the second word of its key, as `hash_bits` takes them.
      program: the numbers of its sequence and of the neighbours that it reads.
      place: where the lower head is among its neighbours.
    """

    def __init__(
        self,
        sizes: Sizes,
        counters: Any,
        program: tuple[jax.Array, jax.Array],
        place: jax.Array,
    ):
        row, self.group = program
        self.sizes, self.place = sizes, place
        self.lower = self.group * sizes.neighbours + place
        self.first, self.key, self.word = (counters[i, row] for i in range(3))
        self.heads = self.lower, self.lower + sizes.num_heads // 2

    def own(self, num_rows: int) -> jax.Array | None:
        """[num_rows, width], the lanes of the heads served; None if they all are."""
        if self.sizes.neighbours == 1:
            return None
        lane = jax.lax.broadcasted_iota(jnp.int32, (num_rows, self.sizes.width), 1)
        first = self.place * self.sizes.head_dim
        return (lane >= first) & (lane < first + self.sizes.head_dim)

    def only_own(self, x: jax.Array) -> jax.Array:
        """[rows, width], zero in neighbours' lanes."""
        own = self.own(len(x))
        return x if own is None else jnp.where(own, x, jnp.zeros_like(x))

    def write(self, ref: Any, rows: slice, half: int, x: jax.Array) -> None:
        """Writes the lanes of one of the heads.

        Args:
          ref: [1, T, x D].
          rows: the rows of `ref` to write.
          half: which group of D / 2 lanes of `ref` holds the head.
          x: [rows, width].
        """
        start = half * (self.sizes.embed_dim // 2) + self.group * self.sizes.width
        start = pl.multiple_of(start, _LANES)
        lanes = pl.ds(start, self.sizes.width)
        x, own = x.astype(ref.dtype), self.own(len(x))
        if own is not None:
            x = jnp.where(own, x, ref[0, rows, lanes])
        ref[0, rows, lanes] = x

    def keep(self, keys: slice, queries: slice) -> Sequence[jax.Array | None]:
        """[keys, queries] bool, the kept elements of the lower and of the upper head.

        Without dropout, None for each.
        """
        if not self.sizes.rate:
            return None, None
        halves = hash_halves(self.folded_counters(keys, queries), self.word)
        threshold = keep_threshold(self.sizes.rate)
        # Signed numbers are compared faster.
        return [half.astype(jnp.int32) >= threshold for half in halves]

    def folded_counters(self, keys: slice, queries: slice) -> jax.Array:
        """[keys, queries] uint32, the counters of `hash_bits` after its first step.

        If 2^n divides T, 2^n keys have counters that differ only in their last n bits.
        Folding leaves these differences as they are, so only the first is folded.
        """
        seq_len = self.sizes.seq_len
        alike = min(max(_ROWS, seq_len & -seq_len), BLOCK_SIZE)
        shape = _ROWS, queries.stop - queries.start
        key, query = (jax.lax.broadcasted_iota(jnp.uint32, shape, i) for i in (0, 1))
        start = (self.lower * seq_len + queries.start) * seq_len + keys.start
        offset = query * np.uint32(seq_len) + key
        counter = offset + (self.first + start.astype(jnp.uint32))
        folded = []
        for later in range(0, keys.stop - keys.start, alike):
            first = fold((counter + np.uint32(later)) ^ self.key)
            folded += [first ^ np.uint32(bits) for bits in range(0, alike, _ROWS)]
        return jnp.concatenate(folded)


def for_each_pair(
    kernel: Callable[..., None], sizes: Sizes, counters: Any, *refs: Any
) -> None:
    """Runs a kernel for each pair of heads whose lanes a program reads."""
    program = pl.program_id(0), pl.program_id(1)

    def run(place: jax.Array, _: None) -> None:
        kernel(Pair(sizes, counters, program, place), *refs)

    jax.lax.fori_loop(0, sizes.neighbours, run, None)


def hash_halves(folded: jax.Array, word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The lower and the upper 16 bits of `hash_bits`, as uint32, in fewer operations.

    The last step of a hash leaves its upper half as it is.

    Args:
      folded: the counters after their first step, `fold(counter ^ key)`.
      word: the second word of the site's key.
    """
    mixed = mix_folded(fold(fold(mix_folded(folded)) + word))
    upper = mixed >> 16
    return (mixed ^ upper) & np.uint32(0xFFFF), upper


def forward_kernel(pair, *refs):
    """One block of queries after another, each with the keys that it sees."""
    *qkv, output, log_sum = refs
    sizes, scale = pair.sizes, _LOG2_E * pair.sizes.score_scale
    blocks = [(rows, slice(0, rows.stop)) for rows in _blocks(sizes)]
    scores = [
        [
            _product(key[0, seen], pair.only_own(query[0, rows]), (1, 1))
            for query, key, _ in (qkv[::2], qkv[1::2])
        ]
        for rows, seen in blocks
    ]
    for (rows, seen), of_heads in zip(blocks, scores, strict=True):
        softmaxes = []
        for keep, block in zip(pair.keep(seen, rows), of_heads, strict=True):
            block = _hide_future(block * scale)
            highest = block.max(0, keepdims=True)
            weights = jnp.exp2(block - highest)
            total = weights.sum(0, keepdims=True)
            kept = _drop(keep, weights).astype(output.dtype)
            softmaxes.append((kept, total, highest + jnp.log2(total)))
        for part, (kept, total, log_total) in enumerate(softmaxes):
            value = qkv[2 * _VALUE + part][0, seen]
            summed = _product(value, kept, (0, 0))  # [width, queries]
            pair.write(output, rows, part, (summed * (sizes.keep_factor / total)).T)
            log_sum[0, pair.heads[part], :, rows] = log_total


class _Head(NamedTuple):
    """The arrays of one head that the backward kernel reads."""

    query: jax.Array  # [T, width], zero in neighbours' lanes
    key: jax.Array  # [T, width]
    value: jax.Array  # [T, width]
    grad: jax.Array  # [T, width], of the output; zero in neighbours' lanes


def backward_kernel(pair, *refs):
    """One block of keys after another, each with the queries that see it.

    The formulas are those of `attention`, with constants taken out of the products.
    With P the probabilities, M the mask, c the factor of kept elements and A = P * M:
    dV = c A^T dO, dS = P * (dO V^T * M - rowsum(dO * O) / c), dQ = c dS K / sqrt(K),
    dK = c dS^T Q / sqrt(K).
    """
    *inputs, log_sum, d_qkv, sums, corrections = refs
    sizes, scale = pair.sizes, pair.sizes.score_scale
    heads = []
    for part in (0, 1):
        query, key, value, output, grad = (ref[0] for ref in inputs[part::2])
        query, grad = pair.only_own(query), pair.only_own(grad)
        corrections[part] = _row_sums(grad, output) / sizes.keep_factor
        heads.append(_Head(query, key, value, grad))
    for block in _blocks(sizes):
        later = slice(block.start, sizes.padded_len)
        products = [
            (
                _product(head.key[block], head.query[later], (1, 1)),
                _product(head.value[block], head.grad[later], (1, 1)),
            )
            for head in heads
        ]
        factors = []
        keeps = pair.keep(block, later)
        for part, (scores, d_kept) in enumerate(products):
            scores = _hide_future(scores * (_LOG2_E * scale))
            probs = jnp.exp2(scores - log_sum[0, pair.heads[part], :, later])
            correction = corrections[part, :, later]
            d_scores = probs * (_drop(keeps[part], d_kept) - correction)
            kept = _drop(keeps[part], probs)
            factors.append((kept.astype(d_qkv.dtype), d_scores.astype(d_qkv.dtype)))
        for part in (0, 1):
            head, (kept, d_scores) = heads[part], factors[part]
            d_value = _product(kept, head.grad[later], (1, 0)) * sizes.keep_factor
            pair.write(d_qkv, block, 2 * _VALUE + part, d_value)
            d_key = _product(d_scores, head.query[later], (1, 0))
            d_key *= scale * sizes.keep_factor
            pair.write(d_qkv, block, 2 * _KEY + part, d_key)
            to_query = _product(d_scores, head.key[block], (0, 0))
            if block.start:
                to_query += sums[part, later]
            sums[part, later] = to_query
    for part in (0, 1):
        d_query = sums[part] * (scale * sizes.keep_factor)
        pair.write(d_qkv, slice(0, sizes.padded_len), 2 * _QUERY + part, d_query)


def _blocks(sizes: Sizes) -> list[slice]:
    starts = range(0, sizes.padded_len, BLOCK_SIZE)
    return [slice(start, start + BLOCK_SIZE) for start in starts]


def _row_sums(left: jax.Array, right: jax.Array) -> jax.Array:
    """[1, T] float32, the sums over lanes of the product of two [T, width] arrays."""
    products = left.astype(jnp.float32) * right.astype(jnp.float32)
    return products.T.sum(0, keepdims=True)


def _drop(keep: jax.Array | None, x: jax.Array) -> jax.Array:
    """Zeroes the elements that are dropped; the caller scales the rest."""
    return x if keep is None else jnp.where(keep, x, 0.0)


def _hide_future(scores: jax.Array) -> jax.Array:
    """Masks the scores of keys that come after the query.

    Args:
      scores: [keys, queries]; the last block of keys and the first one of queries are
        at the same positions.
    """
    size = BLOCK_SIZE
    key, query = (jax.lax.broadcasted_iota(jnp.int32, (size, size), i) for i in (0, 1))
    last = jnp.where(key <= query, scores[-size:, :size], MASKED_SCORE)
    if scores.shape[1] > size:
        last = jnp.concatenate([last, scores[-size:, size:]], axis=1)
    if scores.shape[0] > size:
        last = jnp.concatenate([scores[:-size], last], axis=0)
    return last


def _product(
    left: jax.Array, right: jax.Array, contracted: tuple[int, int]
) -> jax.Array:
    """The product of two matrices over these axes, with float32 sums and result."""
    numbers = ((contracted[0],), (contracted[1],)), ((), ())
    return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)
