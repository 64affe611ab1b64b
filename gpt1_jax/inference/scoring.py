"""Log-probabilities, ranks and entropies of the tokens of texts.

Logits are computed only where a token is scored, and once for all tokens that follow
the same prefix in a batch. A Transformer reads such a prefix once, too, if windows are
short. Others, and an LSTM's, are rows of similar length, after a context that several
windows share once.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import UserError
from gpt1_jax.inference.cache import decode, init_cache
from gpt1_jax.inference.prefix_tree import (
    BLOCK,
    InTree,
    PrefixTree,
    TreeBuilder,
    common_length,
)
from gpt1_jax.model import costs, language_model
from gpt1_jax.model.language_model import Output, Params
from gpt1_jax.parallel.devices import require_memory

BATCH_TOKENS = 2048  # tokens computed together by default
_SMALLEST = 8  # the shortest padded length
_CHUNK = 128  # rows of logits that are held at a time
_TARGETS = 4  # tokens scored by a row of logits; for more, it is computed again
_LONGEST_IN_TREE = 64  # tokens; attention in a tree takes longer for longer windows
_WORTH_SHARING = 32  # shared contexts of this many tokens or more are read once
_MOST_SHARING = 8  # windows computed together with their shared context


class TokenScores(NamedTuple):
    """Scores of T tokens, each given those before it."""

    log_probs: np.ndarray  # [T] float32, nats
    highest: np.ndarray  # [T] float32, nats, of the likeliest token in its place
    # Both are empty if they were not requested.
    ranks: np.ndarray = np.zeros(0, np.int32)  # [T]; 1 is the most likely of all tokens
    entropies: np.ndarray = np.zeros(0, np.float32)  # [T] nats, of the distributions


class Scorer:
    """Scores the tokens of reading windows by a language model.

    Args:
      model: configuration of the language model.
      vocab_size: the vocabulary size without special tokens, which come last in a
        fine-tuned model and get no probability.
      batch_tokens: tokens computed together, unless one group of sequences has more.
      ranks_and_entropies: whether to compute these too.

    Attributes:
      model, vocab_size: as given, the model without what only training needs.
    """

    def __init__(
        self,
        model: ModelConfig,
        vocab_size: int,
        batch_tokens: int = BATCH_TOKENS,
        *,
        ranks_and_entropies: bool = False,
    ):
        self.model = dataclasses.replace(model, remat=False, softmax_rows="tokens")
        self.vocab_size, self._batch_tokens = vocab_size, batch_tokens
        self._ranks_and_entropies = ranks_and_entropies
        # To compare a row with more tokens takes longer than it saves.
        self._num_targets = 1 if ranks_and_entropies else _TARGETS

    def __call__(
        self, params: Params, windows: Sequence[ReadingWindow]
    ) -> list[TokenScores]:
        """The scores of each window's tokens after its context, in order.

        A window that is longer than the model's context is read in parts: see
        `split_window`. Windows of the same tokens are scored once, so that their scores
        are equal to the last bit.

        Raises:
          UserError: if a window has no context, or a score is not finite.
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
        return [split_window(each, self.model.max_seq_len) for each in windows]

    def as_computed(
        self, params: Params, windows: Sequence[ReadingWindow]
    ) -> Iterator[tuple[int, TokenScores]]:
        """Yields the same scores, batch by batch, each with its window's number.

        The last token of a window is scored, not read, so a window may have one token
        more than the model reads.

        Raises:
          UserError: if a window has no context, or more tokens, or a score is not
            finite.
        """
        self._check(windows)
        before = None  # computed while the next batch is made
        for numbers, make in zip(
            self._short_and_long(windows), (self._trees, self._rows), strict=True
        ):
            for batch in make([windows[number] for number in numbers]):
                begun = numbers, batch, self._begin(params, batch)
                if before:
                    yield from self._finish(*before)
                before = begun
        if before:
            yield from self._finish(*before)

    def _short_and_long(
        self, windows: Sequence[ReadingWindow]
    ) -> tuple[list[int], list[int]]:
        """The numbers of the windows to read as trees, and as rows."""
        parts: tuple[list[int], list[int]] = [], []
        for number, window in enumerate(windows):
            as_row = self.model.kind == "lstm" or len(window.ids) > _LONGEST_IN_TREE
            parts[as_row].append(number)
        return parts

    def check_memory(self, windows: Sequence[ReadingWindow], name: str = "") -> None:
        """Refuses `batch_tokens` that no device of this machine can hold.

        Args:
          windows: the windows that will be scored.
          name: the setting to name, if not `config.batch_tokens`.

        Raises:
          UserError: naming the number, the memory it needs and the memory there is.
        """
        fitting = list(itertools.chain(*self._split(windows)))
        require_memory(
            name or f"config.batch_tokens={self._batch_tokens}",
            self._most_together(fitting) * costs.forward_bytes(self.model),
            "Lower it.",
        )

    def _most_together(self, windows: Sequence[ReadingWindow]) -> int:
        """The most tokens that may be computed together."""
        short, long = (
            [windows[number] for number in numbers]
            for numbers in self._short_and_long(windows)
        )
        total = power_of_two(sum(len(window.ids) for window in short))
        in_trees = max(_LONGEST_IN_TREE, min(self._batch_tokens, total))
        in_rows = (
            self._num_groups(size, len(groups)) * size.num_rows * size.row_len
            for size, groups in self._by_size(long).items()
        )
        return max(in_trees * bool(short), *in_rows, 0)

    def _check(self, windows: Sequence[ReadingWindow]) -> None:
        longest = self.model.max_seq_len
        for window in windows:
            if not window.num_context or len(window.ids) > longest + 1:
                raise UserError(
                    f"A context of {window.num_context} tokens and a continuation of "
                    f"{len(window.ids) - window.num_context}: the context needs one at "
                    f"least, and this model reads {longest} before the last token."
                )

    def _trees(self, windows: Sequence[ReadingWindow]) -> Iterator["_Batch"]:
        """Batches of windows in lexicographic order, as trees of their prefixes."""
        tree, targets, wanted = (
            TreeBuilder(),
            _Targets(self._num_targets),
            list[tuple[int, list[int]]](),
        )

        def batch() -> _Batch:
            size = power_of_two(max(len(tree), smallest))
            if len(tree) <= self._batch_tokens < size:
                size = -(-self._batch_tokens // BLOCK) * BLOCK
            return _Batch(_Tree(*tree.arrays(size)), targets, wanted)

        smallest = BLOCK
        order = sorted(range(len(windows)), key=lambda index: tuple(windows[index].ids))
        for index in order:
            ids, first = windows[index].ids, windows[index].num_context
            read = ids[:-1]  # nothing follows the last token
            nodes = max(len(tree), len(targets)) + len(read) - tree.num_shared(read)
            if wanted and max(nodes, len(wanted) + 1) > self._batch_tokens:
                yield batch()
                tree, targets, wanted = TreeBuilder(), _Targets(self._num_targets), []
                # Few sizes, so few programs.
                smallest = max(BLOCK, self._batch_tokens // 4)
            path = tree.add(read)[first - 1 :]
            wanted.append((index, targets.add(path, ids[first:])))
        if wanted:
            yield batch()

    def _rows(self, windows: Sequence[ReadingWindow]) -> Iterator["_Batch"]:
        """Batches of windows by length, each a row after the context that it shares."""
        for size, groups in self._by_size(windows).items():
            # One program for all, even if the last batch has few groups.
            together = self._num_groups(size, len(groups))
            # Groups that begin with the same tokens become neighbours.
            groups.sort(key=lambda each: (each.context, each.rows, each.first))
            for start in range(0, len(groups), together):
                batch = groups[start : start + together]
                yield _row_batch(batch, size, together, self._num_targets)

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
        """The number of groups in a batch: few different numbers, so few programs."""
        return min(power_of_two(count), self._groups_together(size))

    def _size(self, group: "_Group") -> "_Size":
        longest = max(map(len, group.rows)) - 1  # nothing follows the last token
        context = self._padded(len(group.context)) if group.context else 0
        return _Size(context, self._padded(longest), len(group.rows))

    def _padded(self, length: int) -> int:
        return round_up_length(length, self.model.max_seq_len)

    def _begin(self, params: Params, batch: "_Batch") -> tuple[jax.Array, ...]:
        """The fields of the scores of a batch, perhaps still being computed."""
        return _score_tokens(
            self.model,
            self.vocab_size,
            self._ranks_and_entropies,
            params,
            batch.inputs,
            *batch.targets.arrays(2 * batch.inputs.tokens.size),
            np.int32(batch.targets.num_chunks),
        )

    def _finish(
        self, numbers: Sequence[int], batch: "_Batch", fields: tuple[jax.Array, ...]
    ) -> Iterator[tuple[int, TokenScores]]:
        """The scores of the windows of a batch, with the windows' `numbers`."""
        flat = [array.reshape(-1) for array in jax.device_get(fields)]
        scored = batch.targets.num_chunks * _CHUNK * self._num_targets
        if not np.isfinite(flat[0][:scored]).all():
            raise UserError(
                "The model gives log-probabilities that are not finite: its training "
                "diverged, its parameters are damaged, or its dtype is too small for "
                "them. Choose another saved step of the run."
            )
        for index, places in batch.windows:
            yield numbers[index], TokenScores(*(array[places] for array in flat))


def split_window(window: ReadingWindow, longest: int) -> list[ReadingWindow]:
    """Splits a window into windows for a model with a context of `longest` tokens.

    Each token is scored once; from the second window on, after at least half a context.
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


class _Tree(NamedTuple):
    """Tokens to read, each after those that it follows in a tree."""

    tokens: jax.Array  # [R, 1] int32
    tree: PrefixTree


class _Rows(NamedTuple):
    """Tokens to read in rows, each after the context that some of them share."""

    tokens: jax.Array  # [N, T] int32, padded behind
    contexts: jax.Array | None  # [G, C] int32, padded in front, each for N / G rows
    padding: jax.Array | None  # [G] int32, how many tokens of a context are not real


class _Targets:
    """Tokens to score, by rows of logits: at most K, all after the same token."""

    def __init__(self, most: int) -> None:
        self._most = most  # K
        self._where: list[int] = []  # the token that each row follows
        self._targets: list[int] = []  # K for each row
        self._places: dict[tuple[int, int], int] = {}  # where each was put
        self._next: dict[int, int] = {}  # the place for another one, by its token

    def __len__(self) -> int:
        """The number of rows of logits."""
        return len(self._where)

    @property
    def num_chunks(self) -> int:
        """The chunks of rows that hold targets."""
        return -(-len(self) // _CHUNK)

    def add(self, where: Sequence[int], targets: Sequence[int]) -> list[int]:
        """Adds tokens and those that they follow; returns the places of the scores."""
        return [self._place(pair) for pair in zip(where, targets, strict=True)]

    def _place(self, pair: tuple[int, int]) -> int:
        if (place := self._places.get(pair)) is None:
            where, target = pair
            place = self._next.get(where, 0)
            if place % self._most == 0:  # it has no row yet, or a full one
                place = len(self._targets)
                self._where.append(where)
                self._targets += [0] * self._most
            self._targets[place] = target
            self._places[pair], self._next[where] = place, place + 1
        return place

    def arrays(self, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """[M] and [M, K] int32, M at least `num_rows` and a number of chunks."""
        # Many continuations of one context need more; few sizes, so few programs.
        num_rows = max(num_rows, power_of_two(len(self)))
        num_rows = -(-num_rows // _CHUNK) * _CHUNK
        where = np.zeros(num_rows, np.int32)
        targets = np.zeros(num_rows * self._most, np.int32)
        where[: len(self)] = self._where
        targets[: len(self._targets)] = self._targets
        return where, targets.reshape(num_rows, self._most)


class _Batch(NamedTuple):
    """Windows that are computed together."""

    inputs: _Tree | _Rows
    targets: _Targets
    windows: list[tuple[int, list[int]]]  # their numbers, and the places of the scores


def _row_batch(
    groups: Sequence[_Group], size: "_Size", num_groups: int, num_targets: int
) -> _Batch:
    """Groups as rows, filled up to `num_groups`; `num_targets` as for `_Targets`."""
    contexts: Any = None
    padding: Any = None
    if size.context_len:
        contexts = np.zeros((num_groups, size.context_len), np.int32)
        padding = np.zeros(num_groups, np.int32)
        for number, group in enumerate(groups):
            padding[number] = size.context_len - len(group.context)
            contexts[number, padding[number] :] = group.context
    tokens: Any = np.zeros((num_groups * size.num_rows, size.row_len), np.int32)
    targets, wanted, row = _Targets(num_targets), [], 0
    before: tuple[_Group, tuple[int, ...], list[int]] | None = None
    for group in groups:
        for index, ids in zip(group.windows, group.rows, strict=True):
            tokens[row, : len(ids) - 1] = ids[:-1]
            path = list(range(row * size.row_len, row * size.row_len + len(ids) - 1))
            if before and before[0].context == group.context:
                # Each token that follows what it does in the row before, as there.
                shared = common_length(before[1][:-1], ids[:-1])
                path[:shared] = before[2][:shared]
            begin = group.first - 1
            wanted.append((index, targets.add(path[begin:], ids[begin + 1 :])))
            before, row = (group, ids, path), row + 1
    return _Batch(_Rows(tokens, contexts, padding), targets, wanted)


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
    """The windows, grouped with others of the same context where that saves time."""
    by_context: dict[tuple[int, ...], list[int]] = {}
    for index, window in enumerate(windows):
        context = tuple(window.ids[: window.num_context])
        by_context.setdefault(context, []).append(index)
    for context, indices in by_context.items():
        shares = len(indices) > 1 and len(context) >= _WORTH_SHARING
        # A context's last token is read with each row, whose first token it predicts.
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
    ranks_and_entropies: bool,
    params: Params,
    inputs: _Tree | _Rows,
    where: jax.Array,
    targets: jax.Array,
    num_chunks: jax.Array,
) -> tuple[jax.Array, ...]:
    """The fields of `TokenScores`, [M, K], of tokens that follow those read.

    Args:
      model, vocab_size, ranks_and_entropies, params: as for `Scorer`.
      inputs: the tokens to read.
      where: [M] int32, places among the tokens that are read.
      targets: [M, K] int32, tokens that follow these places.
      num_chunks: int32; the first `num_chunks * _CHUNK` of the M are scored.
    """
    output = _read(model, params, inputs)
    unembedding = output.unembedding[:vocab_size]
    hidden = output.hidden.reshape(-1, output.hidden.shape[-1])

    def score(where: jax.Array, targets: jax.Array) -> Iterator[jax.Array]:
        output = Output(hidden[None, where], unembedding)
        logits = language_model.logits(model, output)[0]  # [_CHUNK, V]
        chosen = jnp.take_along_axis(logits, targets, axis=-1)
        log_sums = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        yield chosen - log_sums
        highest = logits.max(-1, keepdims=True) - log_sums
        yield jnp.broadcast_to(highest, targets.shape)
        if ranks_and_entropies:
            higher = logits[:, None] > chosen[..., None]
            yield 1 + jnp.sum(higher, axis=-1, dtype=jnp.int32)
            surprisals = log_sums - logits
            entropies = jnp.sum(jnp.exp(-surprisals) * surprisals, axis=-1)
            yield jnp.broadcast_to(entropies[:, None], targets.shape)

    def score_chunk(
        number: jax.Array, scores: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, ...]:
        begin = number * _CHUNK
        chunk = (
            jax.lax.dynamic_slice_in_dim(array, begin, _CHUNK)
            for array in (where, targets)
        )
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(all_chunks, found, begin, 0)
            for all_chunks, found in zip(scores, score(*chunk), strict=True)
        )

    dtypes = (float, float, int, float) if ranks_and_entropies else (float, float)
    scores = tuple(jnp.zeros(targets.shape, dtype) for dtype in dtypes)
    return jax.lax.fori_loop(0, num_chunks, score_chunk, scores)


def _read(model: ModelConfig, params: Params, inputs: _Tree | _Rows) -> Output:
    """Runs the model on each token, after those that it follows."""
    if isinstance(inputs, _Tree):
        how = InTree(model, inputs.tree)
        return language_model.apply(model, params, inputs.tokens, how)
    tokens, contexts, padding = inputs
    if contexts is None or padding is None:
        return language_model.apply(model, params, tokens)
    num_groups, length = contexts.shape
    num_rows, seq_len = tokens.shape
    empty = init_cache(model, padding, length + seq_len)
    _, cache = decode(model, params, contexts, empty)

    def for_each_row(array: jax.Array) -> jax.Array:
        """[G * M, ..] to [N * M, ..]: each group's part once for each of its rows."""
        apart = array.reshape(num_groups, -1, *array.shape[1:])
        repeated = jnp.repeat(apart, num_rows // num_groups, axis=0)
        return repeated.reshape(-1, *array.shape[1:])

    cache = cache._replace(
        layers=jax.tree.map(for_each_row, cache.layers),
        padding=for_each_row(cache.padding),
    )
    return decode(model, params, tokens, cache)[0]
