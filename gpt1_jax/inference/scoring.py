"""How likely texts are: log-probability, rank and entropy of each of their tokens.

Contexts that several continuations share are read once. Sequences of about one length
are computed together, and logits only where they are asked for.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.errors import UserError
from gpt1_jax.model import costs, language_model
from gpt1_jax.model.language_model import Output, Params
from gpt1_jax.parallel.devices import require_memory

BATCH_TOKENS = 2048  # tokens computed together by default
_SMALLEST = 8  # the shortest padded length
_CHUNK = 128  # tokens whose logits are held at a time
_WORTH_SHARING = 32  # tokens of a context from which on it is read once
_MOST_SHARING = 8  # continuations that are computed together with their context


class Pair(NamedTuple):
    """What is read, and what is scored after it; token ids, at least one to read."""

    context: Sequence[int]
    continuation: Sequence[int]


class TokenScores(NamedTuple):
    """Of each of T tokens, given those before it."""

    log_probs: np.ndarray  # [T] float32, nats
    ranks: np.ndarray  # [T] int32; 1 is the most likely of all tokens
    entropies: np.ndarray  # [T] float32, nats, of the distribution of which it is one


class Scorer:
    """Scores continuations of contexts by a language model.

    Args:
      model: configuration of the language model.
      vocab_size: the tokens that there are, from the first; a fine-tuned model has
        special tokens behind them, to which no probability is given.
      batch_tokens: tokens computed together, unless one group of sequences has more.
    """

    def __init__(
        self, model: ModelConfig, vocab_size: int, batch_tokens: int = BATCH_TOKENS
    ):
        self._model = dataclasses.replace(model, remat=False, softmax_rows="tokens")
        self._vocab_size, self._batch_tokens = vocab_size, batch_tokens

    def __call__(self, params: Params, pairs: Sequence[Pair]) -> list[TokenScores]:
        """The scores of each pair's continuation, in order.

        Raises:
          ValueError: if a context is empty, or a pair longer than the model's context.
        """
        self._check(pairs)
        scores: dict[int, TokenScores] = {}
        for size, groups in self._by_size(_group(pairs)).items():
            together = self._num_groups(size, len(groups))
            starts = range(0, len(groups), together)
            batches = [groups[start : start + together] for start in starts]
            # One program for all, even if the last batch has few groups.
            chunks = power_of_two(max(map(_num_chunks, batches)))
            shape = _Shape(together, chunks)
            for batch in batches:
                scores.update(self._score(params, batch, size, shape))
        return [scores[index] for index in range(len(pairs))]

    def check_memory(self, pairs: Sequence[Pair]) -> None:
        """Refuses so many tokens at a time that no device of this machine holds them.

        Raises:
          ValueError: naming the number, what it needs at least and the memory there is.
        """
        for size, groups in self._by_size(_group(pairs)).items():
            rows = self._num_groups(size, len(groups)) * size.rows
            require_memory(
                f"config.batch_tokens={self._batch_tokens}",
                rows * size.row * costs.forward_bytes(self._model),
                "Lower it.",
            )

    def _check(self, pairs: Sequence[Pair]) -> None:
        longest = self._model.max_seq_len
        for pair in pairs:
            length = len(pair.context) + len(pair.continuation)
            if not len(pair.context) or length > longest:
                raise UserError(
                    f"A context of {len(pair.context)} tokens and a continuation of "
                    f"{len(pair.continuation)}: the context needs one at least, and "
                    f"this model reads {longest} in all."
                )

    def _by_size(self, groups: Iterable["_Group"]) -> dict["_Size", list["_Group"]]:
        """Groups by the size they are padded to.

        If they are too few for a batch, they join others of a larger size: computing
        with more padding takes less time than compiling one more program.
        """
        found: dict[_Size, list[_Group]] = {}
        for group in groups:
            found.setdefault(self._size(group), []).append(group)
        for size in sorted(found):
            larger = [other for other in found if size.fits(other)]
            if larger and len(found[size]) < self._groups_together(size):
                found[min(larger, key=_Size.tokens)] += found.pop(size)
        return found

    def _groups_together(self, size: "_Size") -> int:
        return max(1, self._batch_tokens // size.tokens())

    def _num_groups(self, size: "_Size", count: int) -> int:
        """Groups of a batch: few numbers, so few programs."""
        return min(power_of_two(count), self._groups_together(size))

    def _size(self, group: "_Group") -> "_Size":
        longest = max(len(row.tokens) for row in group.rows)
        context = self._padded(len(group.context)) if group.context else 0
        return _Size(context, self._padded(longest), len(group.rows))

    def _padded(self, length: int) -> int:
        return padded_length(length, self._model.max_seq_len)

    def _score(
        self, params: Params, groups: list["_Group"], size: "_Size", shape: "_Shape"
    ) -> Iterator[tuple[int, TokenScores]]:
        """The scores of the pairs of a few groups, with the pairs' numbers."""
        rows = [row for group in groups for row in group.rows]
        tokens = np.zeros((shape.groups * size.rows, size.row), np.int32)
        for number, row in enumerate(rows):
            tokens[number, : len(row.tokens)] = row.tokens
        contexts = None
        if size.context:
            contexts = _padded_in_front([g.context for g in groups], size, shape.groups)
        places = [
            number * size.row + place
            for number, row in enumerate(rows)
            for place in range(row.first, len(row.tokens))
        ]
        where = np.ones(shape.chunks * _CHUNK, np.int32)
        where[: len(places)] = places
        found = jax.device_get(
            _score_tokens(
                self._model, self._vocab_size, params, contexts, tokens, where
            )
        )
        start = 0
        for row in rows:
            stop = start + len(row.tokens) - row.first
            yield row.pair, TokenScores(*(each[start:stop] for each in found))
            start = stop


def padded_length(length: int, longest: int) -> int:
    """The length that a sequence is padded to: few lengths, so few programs."""
    size = _SMALLEST
    while size < length:  # 8, 12, 16, 24, 32, ..
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, longest)


class _Row(NamedTuple):
    """A pair, less the context that it shares."""

    pair: int  # its number
    tokens: tuple[int, ...]
    first: int  # the place of the first that is scored, at least 1


class _Group(NamedTuple):
    """Pairs that share a context."""

    context: tuple[int, ...]  # empty for a pair that is read alone
    rows: list[_Row]


class _Size(NamedTuple):
    """The arrays of a group: tokens of its context and of each row, and rows."""

    context: int
    row: int
    rows: int

    def tokens(self) -> int:
        return self.context + self.rows * self.row

    def fits(self, other: "_Size") -> bool:
        """Whether groups of this size can be padded to another one."""
        same = (self.rows, self.context > 0) == (other.rows, other.context > 0)
        room = self.context <= other.context and self.row <= other.row
        return same and room and self != other


class _Shape(NamedTuple):
    """What batches of one size are filled up to."""

    groups: int
    chunks: int  # of scored tokens


class _Contexts(NamedTuple):
    """Contexts that rows share, padded in front: arrays, NumPy's outside of a jit."""

    tokens: Any  # [G, C] int32
    padding: Any  # [G] int32, how many of the first are not real


def _group(pairs: Sequence[Pair]) -> Iterator[_Group]:
    """The pairs, those of the same context together if it is worth it."""
    by_context: dict[tuple[int, ...], list[int]] = {}
    for index, pair in enumerate(pairs):
        by_context.setdefault(tuple(pair.context), []).append(index)
    for context, indices in by_context.items():
        shares = len(indices) > 1 and len(context) >= _WORTH_SHARING
        # The last token of a context is read with each row: it predicts its first.
        shared = context[:-1] if shares else ()
        rest = context[len(shared) :]
        most = _MOST_SHARING if shares else 1
        for start in range(0, len(indices), most):
            rows = [
                _Row(index, rest + tuple(pairs[index].continuation), len(rest))
                for index in indices[start : start + most]
            ]
            yield _Group(shared, rows)


def _num_chunks(groups: Sequence[_Group]) -> int:
    """Chunks that hold the scored tokens of a batch."""
    rows = [row for group in groups for row in group.rows]
    return -(-sum(len(row.tokens) - row.first for row in rows) // _CHUNK)


def _padded_in_front(
    contexts: list[tuple[int, ...]], size: _Size, num_groups: int
) -> _Contexts:
    tokens = np.zeros((num_groups, size.context), np.int32)
    padding = np.zeros(num_groups, np.int32)
    for number, ids in enumerate(contexts):
        padding[number] = size.context - len(ids)
        tokens[number, padding[number] :] = ids
    return _Contexts(tokens, padding)


def power_of_two(number: int) -> int:
    """The lowest power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _score_tokens(
    model: ModelConfig,
    vocab_size: int,
    params: Params,
    contexts: _Contexts | None,
    tokens: jax.Array,
    where: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What `TokenScores` holds, of some tokens of a batch.

    Args:
      model, vocab_size, params: the language model.
      contexts: G, each shared by N / G rows; None if there are none.
      tokens: [N, T] int32, padded behind.
      where: [M] int32, places among the N * T tokens; not the first of a row.
    """
    output = _read(model, params, contexts, tokens)
    unembedding = output.unembedding[:vocab_size]
    hidden = output.hidden.reshape(-1, output.hidden.shape[-1])[where - 1]
    targets = tokens.reshape(-1)[where]

    def score(chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        hidden, targets = chunk  # [_CHUNK, D], [_CHUNK]
        some = Output(hidden[None], unembedding)
        scores = language_model.logits(model, some)[0]  # [_CHUNK, V]
        log_probs = jax.nn.log_softmax(scores, axis=-1)
        chosen = jnp.take_along_axis(log_probs, targets[:, None], axis=-1)
        ranks = 1 + jnp.sum(log_probs > chosen, axis=-1, dtype=jnp.int32)
        entropies = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        return chosen[:, 0], ranks, entropies

    chunks = hidden.reshape(-1, _CHUNK, hidden.shape[-1]), targets.reshape(-1, _CHUNK)
    log_probs, ranks, entropies = jax.lax.map(score, chunks)
    return log_probs.reshape(-1), ranks.reshape(-1), entropies.reshape(-1)


def _read(
    model: ModelConfig, params: Params, contexts: _Contexts | None, tokens: jax.Array
) -> Output:
    """Runs the model on rows of tokens, each after the context that it shares."""
    if contexts is None:
        return language_model.apply(model, params, tokens)
    num_groups, length = contexts.tokens.shape
    num_rows, seq_len = tokens.shape
    empty = language_model.init_cache(model, contexts.padding, length + seq_len)
    _, cache = language_model.decode(model, params, contexts.tokens, empty)

    def for_each_row(array: jax.Array) -> jax.Array:
        """[G * M, ..] to [N * M, ..]: each group's part once for each of its rows."""
        apart = array.reshape(num_groups, -1, *array.shape[1:])
        repeated = jnp.repeat(apart, num_rows // num_groups, axis=0)
        return repeated.reshape(-1, *array.shape[1:])

    cache = cache._replace(
        layers=jax.tree.map(for_each_row, cache.layers),
        padding=for_each_row(cache.padding),
    )
    return language_model.decode(model, params, tokens, cache)[0]
