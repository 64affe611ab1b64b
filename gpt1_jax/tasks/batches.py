"""From encoded examples to padded batches, [B, C, T].

C sequences make an example: one text, two orders, or one for each choice. A batch is
padded to the shortest of a few lengths that holds all of it, so few shapes are
compiled. A training batch also lists the places of its real tokens, so that padding
costs little. The batch at a step is a pure function of (seed, step), as in
pre-training.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.config import TaskDataConfig


class Batch(NamedTuple):
    """A padded batch of examples."""

    tokens: Any  # [B, C, T] int32, padded with 0
    lengths: Any  # [B, C] int32, real tokens of each sequence
    targets: Any  # [B, K] float32, probabilities of K classes, or scores with K = 1
    places: Any = None  # [S, R] int32, see `real_places`


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """Token ids of many examples in one array.

    Attributes:
      tokens: [sum of lengths] int32, every sequence, one after another.
      starts: [examples * C + 1] int64, where each sequence begins.
      targets: [examples, K] float32.
      num_seqs: C.
      num_cut: examples that lost tokens because they were too long.
    """

    tokens: np.ndarray
    starts: np.ndarray
    targets: np.ndarray
    num_seqs: int
    num_cut: int = 0

    @classmethod
    def collect(
        cls,
        sequences: Sequence[Sequence[np.ndarray]],
        targets: np.ndarray,
        num_cut: int = 0,
    ) -> "EncodedExamples":
        """Makes them from C arrays of ids per example and [examples, K] targets."""
        flat = [sequence for example in sequences for sequence in example]
        starts = np.concatenate([[0], np.cumsum([len(s) for s in flat])])
        tokens = np.concatenate(flat).astype(np.int32)
        return cls(tokens, starts.astype(np.int64), targets, len(sequences[0]), num_cut)

    def __len__(self) -> int:
        return len(self.targets)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """[examples, C] int64, tokens of each sequence."""
        return np.diff(self.starts).reshape(-1, self.num_seqs)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all ids, lengths and targets."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.starts, self.targets):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def batch(self, rows: np.ndarray, seq_len: int) -> Batch:
        """The examples at the given indices, padded to `seq_len`."""
        tokens = np.zeros((len(rows), self.num_seqs, seq_len), np.int32)
        for i, row in enumerate(rows):
            for c in range(self.num_seqs):
                start, end = self.starts[row * self.num_seqs + c :][:2]
                tokens[i, c, : end - start] = self.tokens[start:end]
        lengths = self.lengths[rows].astype(np.int32)
        return Batch(tokens, lengths, self.targets[rows])


class Padding(NamedTuple):
    """The lengths that sequences are padded to."""

    buckets: tuple[int, ...]  # rising
    longest: int  # limit of every length; a bucket above it is not used

    @classmethod
    def of(cls, data: TaskDataConfig, model_max_seq_len: int) -> "Padding":
        """As configured, for a model that reads `model_max_seq_len` tokens."""
        return cls(tuple(data.seq_len_buckets), data.longest(model_max_seq_len))

    def padded(self, length: int) -> int:
        """The shortest of the lengths that holds `length` tokens."""
        fitting = (size for size in self.buckets if length <= size < self.longest)
        return next(fitting, self.longest)


class BatchRows(NamedTuple):
    """Which rows of every batch this host loads."""

    batch_size: int  # B, over all hosts
    own: slice


class Groups(NamedTuple):
    """The groups of examples that a batch is packed in, one per device and part.

    A device's rows are contiguous; part p of them is rows p, p + parts, ...: see
    `gpt1_jax.training.state.accumulated_gradients`.
    """

    devices: int
    parts: int  # computed one after another
    sizes: int  # R is a multiple of 1/sizes of a group's padded size; 0: not packed


def real_places(lengths: np.ndarray, seq_len: int, groups: Groups) -> np.ndarray:
    """The places of the real tokens of a padded batch.

    Args:
      lengths: [B, C], real tokens of each sequence.
      seq_len: T.
      groups: the groups to pack the batch in.

    Returns:
      [S, R] int32, S = devices * parts: token t of sequence n in a group of N
      sequences has the place n * T + t. Each row is filled up with N * T.
    """
    devices, parts, sizes = groups
    by_part = lengths.reshape(devices, -1, parts, lengths.shape[1]).swapaxes(1, 2)
    grouped = by_part.reshape(devices * parts, -1)  # [S, N]
    real = np.arange(seq_len) < grouped[:, :, None]
    real = real.reshape(len(grouped), -1)  # [S, N T]
    unit = -(-real.shape[1] // sizes)
    size = -(-int(grouped.sum(axis=1).max()) // unit) * unit
    places = np.full((len(grouped), size), real.shape[1], np.int32)
    for row, group in zip(places, real, strict=True):
        found = np.flatnonzero(group)
        row[: len(found)] = found
    return places


class TrainBatches:
    """Training batches by step, as a random-access source.

    Each epoch draws a new order and leaves out the examples that do not fill a batch
    (released code).

    Args:
      examples: the training split.
      rows: the rows that this host loads.
      padding: the lengths to pad batches to.
      groups: the groups to pack a batch in.
      num_steps: length of the run.
      seed: for the example orders.
    """

    def __init__(
        self,
        examples: EncodedExamples,
        rows: BatchRows,
        padding: Padding,
        groups: Groups,
        num_steps: int,
        seed: int,
    ):
        self._examples, self._padding, self._groups = examples, padding, groups
        self._batch_size, self._rows = rows
        self._num_steps = num_steps
        self._longest = examples.lengths.max(axis=1)
        self._per_epoch = len(examples) // rows.batch_size

        @functools.lru_cache(maxsize=2)  # the epoch that ends and the next
        def order(epoch: int) -> np.ndarray:
            return np.random.default_rng((seed, epoch)).permutation(len(examples))

        self._order = order

    def __len__(self) -> int:
        return self._num_steps

    def __repr__(self) -> str:
        return f"TrainBatches({len(self._examples)} examples, B={self._batch_size})"

    def __getitem__(self, step: int) -> Batch:
        """This host's rows of the batch of one step."""
        epoch, index = divmod(step, self._per_epoch)
        chosen = self._order(epoch)[index * self._batch_size :][: self._batch_size]
        seq_len = self._padding.padded(int(self._longest[chosen].max()))
        batch = self._examples.batch(chosen[self._rows], seq_len)
        if not self._groups.sizes:  # padding is left in
            return batch
        # Every group has the size of the fullest, on whichever host that is.
        places = real_places(self._examples.lengths[chosen], seq_len, self._groups)
        first, last = (
            row * len(places) // self._batch_size
            for row in (self._rows.start, self._rows.stop)
        )
        return batch._replace(places=places[first:last])


class EvalBatches:
    """All examples once, the short ones first, so that there is little padding.

    Args:
      examples: the split.
      rows: the rows that this host loads; the last batch is filled up with copies of
        its first row.
      padding: the lengths to pad batches to.
    """

    def __init__(self, examples: EncodedExamples, rows: BatchRows, padding: Padding):
        self._examples, self._padding = examples, padding
        self._batch_size, self._rows = rows
        self._longest = examples.lengths.max(axis=1)
        self._order = np.argsort(self._longest, kind="stable")

    def __len__(self) -> int:
        return -(-len(self._examples) // self._batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Batch]:
        """Indices of a batch's examples, over all hosts, and this host's rows of it."""
        chosen = self._order[index * self._batch_size :][: self._batch_size]
        seq_len = self._padding.padded(int(self._longest[chosen].max()))
        missing = self._batch_size - len(chosen)
        filled = np.concatenate([chosen, np.repeat(chosen[:1], missing)])
        return chosen, self._examples.batch(filled[self._rows], seq_len)
