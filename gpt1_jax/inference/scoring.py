"""Log-probabilities, ranks and entropies of the tokens of texts.

A context that several windows share is read once. Sequences of similar length are
computed together, and logits only for tokens that are scored.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import UserError
from gpt1_jax.model import costs, language_model
from gpt1_jax.model.language_model import Output, Params
from gpt1_jax.parallel.devices import require_memory

BATCH_TOKENS = 2048  # tokens computed together by default
_SMALLEST = 8  # the shortest padded length
_CHUNK = 128  # tokens whose logits are held at a time
_WORTH_SHARING = 32  # a shared context with this many tokens is read once
_MOST_SHARING = 8  # windows computed together with their shared context


class TokenScores(NamedTuple):
    """Scores of T tokens, each given those before it."""

    log_probs: np.ndarray  # [T] float32, nats
    ranks: np.ndarray  # [T] int32; 1 is the most likely of all tokens
    entropies: np.ndarray  # [T] float32, nats, of each token's distribution, or [0]


class Scorer:
    """Scores the tokens of reading windows by a language model.

    Args:
      model: configuration of the language model.
      vocab_size: the vocabulary size without special tokens, which a fine-tuned model
        has behind the others and which get no probability.
      batch_tokens: tokens computed together, unless one group of sequences has more.
      entropies: whether to compute these too, which takes a quarter more time.
    """

    def __init__(
        self,
        model: ModelConfig,
        vocab_size: int,
        batch_tokens: int = BATCH_TOKENS,
        *,
        entropies: bool = False,
    ):
        self._model = dataclasses.replace(model, remat=False, softmax_rows="tokens")
        self._vocab_size, self._batch_tokens = vocab_size, batch_tokens
        self._entropies = entropies

    def __call__(
        self, params: Params, windows: Sequence[ReadingWindow]
    ) -> list[TokenScores]:
        """The scores of each window's tokens behind its context, in order.

        A window that is longer than the model's context is read in parts: see
        `split_window`. Windows of the same tokens are scored once, so that their scores
        are equal to the last bit.

        Raises:
          UserError: if a window has no context.
        """
        keys = [(window.num_context, *window.ids) for window in windows]
        different = dict(zip(keys, windows, strict=True))
        parts = self._split(list(different.values()))
        computed = self.as_computed(params, list(itertools.chain(*parts)))
        scores = iter(score for _, score in sorted(computed, key=lambda pair: pair[0]))
        joined = (
            next(scores)
            if len(own) == 1
            else TokenScores(
                *map(np.concatenate, zip(*(next(scores) for _ in own), strict=True))
            )
            for own in parts
        )
        by_key = dict(zip(different, joined, strict=True))
        return [by_key[key] for key in keys]

    def _split(self, windows: Sequence[ReadingWindow]) -> list[list[ReadingWindow]]:
        return [split_window(each, self._model.max_seq_len) for each in windows]

    def as_computed(
        self, params: Params, windows: Sequence[ReadingWindow]
    ) -> Iterator[tuple[int, TokenScores]]:
        """The same, batch by batch, each with the number of its window.

        The last token of a window is scored, not read, so a window may have one token
        more than the model reads.

        Raises:
          UserError: if a window has no context, or more tokens.
        """
        self._check(windows)
        for size, groups in self._by_size(windows).items():
            together = self._num_groups(size, len(groups))
            starts = range(0, len(groups), together)
            batches = [groups[start : start + together] for start in starts]
            # One program for all, even if the last batch has few groups.
            num_scored = max(sum(g.num_scored for g in batch) for batch in batches)
            num_chunks = round_up(-(-num_scored // _CHUNK))
            for batch in batches:
                yield from self._score(params, batch, size, together, num_chunks)

    def check_memory(self, windows: Sequence[ReadingWindow], name: str = "") -> None:
        """Refuses `batch_tokens` that no device of this machine can hold.

        Args:
          windows: what will be scored.
          name: what the user sets, if not `config.batch_tokens`.

        Raises:
          UserError: naming the number, the memory it needs and the memory there is.
        """
        fitting = list(itertools.chain(*self._split(windows)))
        for size, groups in self._by_size(fitting).items():
            rows = self._num_groups(size, len(groups)) * size.num_rows
            require_memory(
                name or f"config.batch_tokens={self._batch_tokens}",
                rows * size.row_len * costs.forward_bytes(self._model),
                "Lower it.",
            )

    def _check(self, windows: Sequence[ReadingWindow]) -> None:
        longest = self._model.max_seq_len
        for window in windows:
            if not window.num_context or len(window.ids) > longest + 1:
                raise UserError(
                    f"A context of {window.num_context} tokens and a continuation of "
                    f"{len(window.ids) - window.num_context}: the context needs one at "
                    f"least, and this model reads {longest} before the last token."
                )

    def _by_size(
        self, windows: Sequence[ReadingWindow]
    ) -> dict["_Size", list["_Group"]]:
        """Groups by the size they are padded to.

        If they are too few for a batch, they join others of a larger size: computing
        with more padding takes less time than compiling one more program.
        """
        by_size: dict[_Size, list[_Group]] = {}
        for group in _groups(windows):
            by_size.setdefault(self._size(group), []).append(group)
        for size in sorted(by_size):
            larger = [other for other in by_size if size.fits(other)]
            if larger and len(by_size[size]) < self._groups_together(size):
                by_size[min(larger, key=_Size.tokens)] += by_size.pop(size)
        return by_size

    def _groups_together(self, size: "_Size") -> int:
        return max(1, self._batch_tokens // size.tokens())

    def _num_groups(self, size: "_Size", count: int) -> int:
        """Groups of a batch: few numbers, so few programs."""
        return min(power_of_two(count), self._groups_together(size))

    def _size(self, group: "_Group") -> "_Size":
        longest = max(map(len, group.rows)) - 1
        context = self._padded(len(group.context)) if group.context else 0
        return _Size(context, self._padded(longest), len(group.rows))

    def _padded(self, length: int) -> int:
        return round_up_length(length, self._model.max_seq_len)

    def _score(
        self,
        params: Params,
        groups: list["_Group"],
        size: "_Size",
        num_groups: int,
        num_chunks: int,
    ) -> Iterator[tuple[int, TokenScores]]:
        """The scores of the windows of some groups, with the windows' numbers.

        The batch is filled up to `num_groups`, and the scored tokens to `num_chunks`.
        """
        contexts, padding = None, None
        if size.context_len:
            contexts = np.zeros((num_groups, size.context_len), np.int32)
            padding = np.zeros(num_groups, np.int32)
            for number, group in enumerate(groups):
                padding[number] = size.context_len - len(group.context)
                contexts[number, padding[number] :] = group.context
        tokens = np.zeros((num_groups * size.num_rows, size.row_len), np.int32)
        places: list[int] = []  # of the tokens before the scored ones
        scored: list[int] = []
        row = 0
        for group in groups:
            for ids in group.rows:
                tokens[row, : len(ids) - 1] = ids[:-1]
                start = row * size.row_len - 1
                places += range(start + group.first, start + len(ids))
                scored += ids[group.first :]
                row += 1
        where, targets = np.zeros((2, num_chunks * _CHUNK), np.int32)
        where[: len(places)], targets[: len(scored)] = places, scored
        arrays = jax.device_get(
            _score_tokens(
                self._model,
                self._vocab_size,
                self._entropies,
                params,
                contexts,
                padding,
                tokens,
                where,
                targets,
            )
        )
        start = 0
        for group in groups:
            for index, ids in zip(group.windows, group.rows, strict=True):
                stop = start + len(ids) - group.first
                yield index, TokenScores(*(array[start:stop] for array in arrays))
                start = stop


def split_window(window: ReadingWindow, longest: int) -> list[ReadingWindow]:
    """The windows in which a window is read by a model with a context of `longest`.

    Each token is scored once, after half a context at least from the second window on.
    """
    ids, first = window.ids, window.num_context
    if len(ids) <= longest + 1:  # the last token is scored, not read
        return [window]
    parts, begin = [], 0 if first <= longest else first - longest // 2
    while first < len(ids):
        part = ids[begin : begin + longest + 1]
        parts.append(ReadingWindow(part, first - begin))
        first = begin + len(part)
        begin = first - longest // 2
    return parts or [ReadingWindow(ids[-1:], 1)]  # nothing is scored


def round_up_length(length: int, longest: int) -> int:
    """The length that a sequence is padded to: few lengths, so few programs."""
    return min(max(_SMALLEST, round_up(length)), longest)


def round_up(number: int) -> int:
    """The lowest of 1, 2, 3, 4, 6, 8, 12, 16, 24, .. that is at least `number`."""
    power = power_of_two(number)
    return power * 3 // 4 if power > 2 and number <= power * 3 // 4 else power


class _Group(NamedTuple):
    """Windows that share a context, which is read once."""

    context: tuple[int, ...]  # empty for a window that is read alone
    windows: list[int]  # their numbers
    rows: list[tuple[int, ...]]  # the other tokens of each
    first: int  # the place in each row of the first token that is scored, at least 1

    @property
    def num_scored(self) -> int:
        return sum(len(ids) - self.first for ids in self.rows)


class _Size(NamedTuple):
    """The size that a group is padded to."""

    context_len: int
    row_len: int
    num_rows: int

    def tokens(self) -> int:
        return self.context_len + self.num_rows * self.row_len

    def fits(self, other: "_Size") -> bool:
        """Whether groups of this size can be padded to another one."""
        return (
            self != other
            and self.num_rows == other.num_rows
            and (self.context_len > 0) == (other.context_len > 0)
            and self.context_len <= other.context_len
            and self.row_len <= other.row_len
        )


def _groups(windows: Sequence[ReadingWindow]) -> Iterator[_Group]:
    """The windows, together with others of the same context if it is worth it."""
    by_context: dict[tuple[int, ...], list[int]] = {}
    for index, window in enumerate(windows):
        context = tuple(window.ids[: window.num_context])
        by_context.setdefault(context, []).append(index)
    for context, indices in by_context.items():
        shares = len(indices) > 1 and len(context) >= _WORTH_SHARING
        # The last token of a context is read with each row: it predicts its first.
        num_shared = len(context) - 1 if shares else 0
        most = _MOST_SHARING if shares else 1
        for start in range(0, len(indices), most):
            part = indices[start : start + most]
            rows = [tuple(windows[index].ids[num_shared:]) for index in part]
            yield _Group(context[:num_shared], part, rows, len(context) - num_shared)


def power_of_two(number: int) -> int:
    """The lowest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _score_tokens(
    model: ModelConfig,
    vocab_size: int,
    with_entropies: bool,
    params: Params,
    contexts: jax.Array | None,
    padding: jax.Array | None,
    tokens: jax.Array,
    where: jax.Array,
    targets: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The log-probabilities, ranks and entropies of some tokens of a batch.

    Args:
      model, vocab_size, with_entropies, params: as for `Scorer`.
      contexts: [G, C] int32, padded in front, each shared by N / G rows; None if there
        are none.
      padding: [G] int32, how many of the first tokens of a context are not real.
      tokens: [N, T] int32, padded behind.
      where: [M] int32, places among the N * T tokens.
      targets: [M] int32, the tokens to score: those that follow there.
    """
    output = _read(model, params, contexts, padding, tokens)
    unembedding = output.unembedding[:vocab_size]
    hidden = output.hidden.reshape(-1, output.hidden.shape[-1])[where]

    def score(chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        hidden, targets = chunk  # [_CHUNK, D], [_CHUNK]
        output = Output(hidden[None], unembedding)
        logits = language_model.logits(model, output)[0]  # [_CHUNK, V]
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        chosen = jnp.take_along_axis(log_probs, targets[:, None], axis=-1)
        ranks = 1 + jnp.sum(log_probs > chosen, axis=-1, dtype=jnp.int32)
        if not with_entropies:
            return chosen[:, 0], ranks, jnp.zeros((0,))
        entropies = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        return chosen[:, 0], ranks, entropies

    chunks = hidden.reshape(-1, _CHUNK, hidden.shape[-1]), targets.reshape(-1, _CHUNK)
    log_probs, ranks, entropies = jax.lax.map(score, chunks)
    return log_probs.reshape(-1), ranks.reshape(-1), entropies.reshape(-1)


def _read(
    model: ModelConfig,
    params: Params,
    contexts: jax.Array | None,
    padding: jax.Array | None,
    tokens: jax.Array,
) -> Output:
    """Runs the model on rows of tokens, each after the context that it shares."""
    if contexts is None or padding is None:
        return language_model.apply(model, params, tokens)
    num_groups, length = contexts.shape
    num_rows, seq_len = tokens.shape
    empty = language_model.init_cache(model, padding, length + seq_len)
    _, cache = language_model.decode(model, params, contexts, empty)

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
