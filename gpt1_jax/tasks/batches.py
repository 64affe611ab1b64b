"""From encoded examples to padded batches, [B, C, T].

C sequences make an example: one text, two orders, or one for each choice. A batch is
padded to the shortest of a few lengths that holds all of it, so few shapes are
compiled. A training batch also lists where its real tokens are, which makes padding
cheap, and in which bands attention pads sequences; both are chosen for the run. The
examples of a step are a pure function of (seed, step), as in pre-training.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from gpt1_jax.config.finetune import TaskDataConfig
from gpt1_jax.tasks.task import Example

_DRAW_SEED = 0  # all runs see the same examples
# Sizes of batches without padding are multiples of 1/32 of the padded size: so seeds
# choose the same ones.
_GRID = 32
# Compiling a program takes as long as computing about so many tokens, by JAX's name of
# the platform: two CPU cores, measured; an H100 and a v5e, by their compilers.
TOKENS_TO_COMPILE = {"cpu": 20_000, "gpu": 13_000_000, "tpu": 13_000_000}
# Bands are multiples of these: a length, and a part of a group's sequences. Yet seeds,
# whose longest sequences meet otherwise, may choose different ones.
_BAND_UNIT, _BAND_PARTS = 32, 8

# (sequences, their padded length) of each band of a group, the longest first.
BandSizes = tuple[tuple[int, int], ...]
Arrays = dict[str, np.ndarray]  # fields of `gpt1_jax.finetuning.steps.Batch`, by name
B = TypeVar("B")
X = TypeVar("X")


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """The examples of a split, and the token ids of all of them in one array.

    Attributes:
      examples: the examples as text.
      tokens: [sum of lengths] int32, every sequence, one after another.
      starts: [examples * C + 1] int64, where each sequence begins.
      targets: [examples, K] float32.
      cut: [examples] bool, whether an example lost tokens because it was too long.
      num_dropped: the number of examples left out because they were too long.
    """

    examples: Sequence[Example]
    tokens: np.ndarray
    starts: np.ndarray
    targets: np.ndarray
    cut: np.ndarray
    num_dropped: int = 0

    @classmethod
    def collect(
        cls,
        examples: Sequence[Example],
        sequences: Sequence[Sequence[np.ndarray]],
        targets: np.ndarray,
        cut: Sequence[bool] | np.ndarray,
        num_dropped: int = 0,
    ) -> "EncodedExamples":
        """Joins `sequences`, C arrays of ids for each example, in one array."""
        flat = [ids for example in sequences for ids in example]
        starts = np.concatenate([[0], np.cumsum([len(ids) for ids in flat])])
        return cls(
            examples,
            np.concatenate([np.zeros(0, np.int32), *flat]).astype(np.int32),
            starts.astype(np.int64),
            targets,
            np.asarray(cut, bool),
            num_dropped,
        )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def num_seqs(self) -> int:
        """C."""
        return (len(self.starts) - 1) // len(self)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """[examples, C] int64, tokens of each sequence."""
        return np.diff(self.starts).reshape(len(self), -1)

    @functools.cached_property
    def digest(self) -> str:
        """The content digest: SHA-256 of all ids, lengths and targets."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.starts, self.targets):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def draw(self, limit: int) -> "EncodedExamples":
        """At most `limit` of the examples, as `draw_examples` chooses them."""
        rows = draw_examples(range(len(self)), limit)
        if len(rows) == len(self):
            return self
        sequences = np.split(self.tokens, self.starts[1:-1])
        count = self.num_seqs
        return self.collect(
            [self.examples[row] for row in rows],
            [sequences[row * count : (row + 1) * count] for row in rows],
            self.targets[rows],
            self.cut[rows],
            self.num_dropped,
        )

    def batch(self, rows: np.ndarray, seq_len: int) -> Arrays:
        """The examples at the given indices: `tokens` padded, `lengths`, `targets`."""
        tokens = np.zeros((len(rows), self.num_seqs, seq_len), np.int32)
        for i, row in enumerate(rows):
            for c in range(self.num_seqs):
                start, end = self.starts[row * self.num_seqs + c :][:2]
                tokens[i, c, : end - start] = self.tokens[start:end]
        lengths = self.lengths[rows].astype(np.int32)
        return {"tokens": tokens, "lengths": lengths, "targets": self.targets[rows]}


def draw_examples(examples: Sequence[X], limit: int) -> list[X]:
    """At most `limit` of the examples, at random but always the same; 0 for all."""
    if not 0 < limit < len(examples):
        return list(examples)
    order = np.random.default_rng(_DRAW_SEED).permutation(len(examples))
    return [examples[i] for i in sorted(order[:limit])]


def padded_lengths(data: TaskDataConfig, model_max_seq_len: int) -> tuple[int, ...]:
    """The lengths that batches may be padded to, rising.

    Args:
      data: the configuration, which names some.
      model_max_seq_len: the most tokens that the model reads.

    Returns:
      Those named that are below the limit of every sequence, then that limit.
    """
    longest = data.longest(model_max_seq_len)
    return (*(size for size in data.seq_len_buckets if size < longest), longest)


def padded_length(length: int, lengths: Sequence[int]) -> int:
    """The shortest of the lengths that holds `length` tokens."""
    return next(size for size in lengths if length <= size)


def lengths_by_group(lengths: np.ndarray, devices: int, parts: int) -> np.ndarray:
    """The lengths of a batch's sequences, a group for each device and part.

    A device's rows are contiguous; part p of them is rows p, p + parts, ...: see
    `gpt1_jax.training.steps.accumulated_gradients`.

    Args:
      lengths: [.., B, C], real tokens of each sequence.
      devices: the devices that share the batch.
      parts: the parts of a device's rows, which it computes one after another.

    Returns:
      [.., S, N], N sequences in each of S = devices * parts groups.
    """
    *steps, _, num_seqs = lengths.shape
    rows = lengths.reshape(*steps, devices, -1, parts, num_seqs).swapaxes(-3, -2)
    return rows.reshape(*steps, devices * parts, -1)


def choose_layouts(
    seq_lens: np.ndarray, lengths: np.ndarray, most: int, tokens_to_compile: int
) -> dict[int, dict[int, BandSizes]]:
    """The layouts that the batches of a run have; each is a program to compile.

    Args:
      seq_lens: [steps] T of each batch.
      lengths: [steps, S, N], from `lengths_by_group`.
      most, tokens_to_compile: as for `choose_sizes`.

    Returns:
      For each T its sizes R, rising, and the bands for each.
    """
    real = lengths.sum(axis=-1).max(axis=1)
    longest = np.sort(lengths)[..., ::-1].max(axis=1)
    layouts = {}
    sizes_of = choose_sizes(seq_lens, real, lengths.shape[-1], most, tokens_to_compile)
    for t, sizes in sizes_of.items():
        own = seq_lens == t
        nearest = np.searchsorted(sizes, real)
        layouts[t] = {
            size: choose_bands(longest[own & (nearest == i)].max(axis=0), t)
            for i, size in enumerate(sizes)
        }
    return layouts


def choose_sizes(
    seq_lens: np.ndarray,
    real: np.ndarray,
    num_seqs: int,
    most: int,
    tokens_to_compile: int,
) -> dict[int, list[int]]:
    """The sizes R for `real_indices` that batches of each length T may have in a run.

    Each (T, R) is a program to compile. Each T has the R that its fullest batch needs.
    Then sizes are added one by one, each the one that leaves the fewest tokens to
    compute, as long as it saves more than compiling it takes.

    Args:
      seq_lens: [steps] T of each batch.
      real: [steps] integers, the real tokens of its fullest group.
      num_seqs: N, the sequences of a group.
      most: how many there may be, unless there are more T.
      tokens_to_compile: how many a further R must save in the run.

    Returns:
      For each T its R, rising.
    """
    unit = -(-num_seqs * seq_lens // _GRID)
    rounded = -(-real // unit) * unit
    (lengths, needed), counts = np.unique(
        [seq_lens, rounded], axis=1, return_counts=True
    )
    sizes = {int(t): [int(needed[lengths == t].max())] for t in np.unique(lengths)}
    computed = np.array([sizes[int(t)][0] for t in lengths])
    fits = (lengths == lengths[:, None]) & (needed <= needed[:, None])  # [new R, batch]
    while sum(map(len, sizes.values())) < most:
        saved = np.where(fits, (computed - needed[:, None]).clip(0), 0) @ counts
        best = saved.argmax()
        if saved[best] < tokens_to_compile:
            break
        sizes[int(lengths[best])].append(int(needed[best]))
        computed[fits[best]] = computed[fits[best]].clip(max=needed[best])
    return {t: sorted(own) for t, own in sizes.items()}


def choose_bands(lengths: np.ndarray, seq_len: int) -> BandSizes:
    """The bands in which attention pads the sequences of batches.

    Attention to n sequences padded to length T_b takes n T_b^2. There is a single band
    at first. The band whose division in two saves the most is divided, again and again,
    as long as that saves an eighth of the total.

    Args:
      lengths: [N], the longest that each sequence of a group can be, falling.
      seq_len: T, which no length exceeds.
    """
    padded = np.minimum(-(-lengths // _BAND_UNIT) * _BAND_UNIT, seq_len)
    unit = -(-len(lengths) // _BAND_PARTS)

    def bands(begins: Sequence[int]) -> BandSizes:
        ends = [*begins[1:], len(lengths)]
        spans = zip(begins, ends, strict=True)
        return tuple((end - begin, int(padded[begin])) for begin, end in spans)

    def work(begins: Sequence[int]) -> int:
        return sum(count * size**2 for count, size in bands(begins))

    begins = [0]
    while True:
        more = (sorted({*begins, at}) for at in range(unit, len(lengths), unit))
        best = min(more, key=work, default=begins)
        if work(best) >= work(begins) * 7 / 8:
            return bands(begins)
        begins = best


def real_indices(lengths: np.ndarray, seq_len: int, size: int) -> np.ndarray:
    """The indices of the real tokens of a padded batch.

    Args:
      lengths: [S, N], real tokens of each sequence, from `lengths_by_group`.
      seq_len: T.
      size: R, at least the real tokens of the fullest group.

    Returns:
      [S, R] int32: token t of sequence n in a group of N sequences has the index
      n * T + t. Each row is filled up with N * T.
    """
    real = np.arange(seq_len) < lengths[:, :, None]
    real = real.reshape(len(lengths), -1)  # [S, N T]
    indices = np.full((len(lengths), size), real.shape[1], np.int32)
    for row, group in zip(indices, real, strict=True):
        found = np.flatnonzero(group)
        row[: len(found)] = found
    return indices


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TrainBatches(Generic[B]):
    """The training batches, by step.

    Each epoch draws a new order and leaves out the examples that do not fill a batch
    (released code).

    Attributes:
      examples: the training split.
      make_batch: takes the arrays by name, as `gpt1_jax.finetuning.steps.Batch` does.
      batch_size: B, over all hosts.
      rows: the rows of every batch that this host loads.
      seq_lens: the lengths to pad batches to, from `padded_lengths`.
      devices, parts: as for `lengths_by_group`.
      unpadded_sizes: `most` for `choose_layouts`; 0: padding is left in.
      tokens_to_compile: as for `choose_layouts`.
      num_steps: the length of the run.
      seed: seed of the example orders.
      class_weights: [K], how much an example of each label weighs in the loss; None:
        all alike.
    """

    examples: EncodedExamples
    make_batch: Callable[..., B]
    batch_size: int
    rows: slice
    seq_lens: Sequence[int]
    devices: int
    parts: int
    unpadded_sizes: int
    tokens_to_compile: int
    num_steps: int
    seed: int
    class_weights: np.ndarray | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return len(self.examples) // self.batch_size

    @functools.cached_property
    def _longest(self) -> np.ndarray:
        return self.examples.lengths.max(axis=1)

    @functools.cached_property
    def _layouts(self) -> dict[int, dict[int, BandSizes]]:
        """What `choose_layouts` finds for the whole run."""
        seq_lens, lengths = [], []
        for first in range(0, self.num_steps, self.steps_per_epoch):
            steps = min(self.steps_per_epoch, self.num_steps - first)
            order = self._order(first // self.steps_per_epoch)
            rows = order[: steps * self.batch_size].reshape(steps, self.batch_size)
            shortest = np.searchsorted(self.seq_lens, self._longest[rows].max(axis=1))
            seq_lens.append(np.take(self.seq_lens, shortest))
            lengths.append(self._by_group(rows))
        return choose_layouts(
            np.concatenate(seq_lens),
            np.concatenate(lengths),
            self.unpadded_sizes,
            self.tokens_to_compile,
        )

    def _by_group(self, rows: np.ndarray) -> np.ndarray:
        return lengths_by_group(self.examples.lengths[rows], self.devices, self.parts)

    @functools.cached_property
    def _order(self) -> Callable[[int], np.ndarray]:
        @functools.lru_cache(maxsize=2)  # the epoch that ends and the next
        def order(epoch: int) -> np.ndarray:
            rng = np.random.default_rng((self.seed, epoch))
            return rng.permutation(len(self.examples))

        return order

    def __len__(self) -> int:
        return self.num_steps

    def __repr__(self) -> str:
        return f"TrainBatches({len(self.examples)} examples, B={self.batch_size})"

    def __getitem__(self, step: int) -> B:
        """This host's rows of the batch of one step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        chosen = self._order(epoch)[index * self.batch_size :][: self.batch_size]
        seq_len = padded_length(int(self._longest[chosen].max()), self.seq_lens)
        arrays = self.examples.batch(chosen[self.rows], seq_len)
        if self.class_weights is not None:
            arrays["targets"] *= self._example_weights(chosen)[self.rows, None]
        if not self.unpadded_sizes:  # padding is left in
            return self.make_batch(**arrays)
        # Every group has the size of the fullest, on whichever host that is.
        lengths = self._by_group(chosen)
        layouts = self._layouts[seq_len]
        size = padded_length(int(lengths.sum(axis=-1).max()), tuple(layouts))
        indices = real_indices(lengths, seq_len, size)
        first, last = (
            row * len(indices) // self.batch_size
            for row in (self.rows.start, self.rows.stop)
        )
        arrays["real_indices"] = indices[first:last]
        return self.make_batch(**arrays, bands=layouts[size])

    def _example_weights(self, chosen: np.ndarray) -> np.ndarray:
        """The factors of a batch's targets, [B].

        Their mean over the whole batch is 1, so the plain mean of the losses is the
        weighted mean of PyTorch's `CrossEntropyLoss(weight=..)`, in whatever parts the
        batch is computed.
        """
        weights = self.examples.targets[chosen] @ self.class_weights
        return (weights / weights.mean(dtype=np.float64)).astype(np.float32)


def eval_batches(
    examples: EncodedExamples, batch_size: int, rows: slice, seq_lens: Sequence[int]
) -> Iterator[tuple[np.ndarray, Arrays]]:
    """Batches of all examples, each once; short ones come first, which saves padding.

    Args:
      examples: the split.
      batch_size: B, over all hosts; the last batch is filled up with copies of its
        first row.
      rows: the rows of every batch that this host loads.
      seq_lens: the lengths to pad batches to, from `padded_lengths`.

    Yields:
      The indices of a batch's examples, over all hosts, and this host's rows of it.
    """
    longest = examples.lengths.max(axis=1)
    order = np.argsort(longest, kind="stable")
    for first in range(0, len(examples), batch_size):
        chosen = order[first : first + batch_size]
        missing = batch_size - len(chosen)
        filled = np.concatenate([chosen, np.repeat(chosen[:1], missing)])
        seq_len = padded_length(int(longest[chosen].max()), seq_lens)
        yield chosen, examples.batch(filled[rows], seq_len)
