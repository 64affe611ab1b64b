"""From token shards to training windows: random contiguous sequences (sec. 4.1).

The window at a position is a pure function of (seed, position), so the data of a run
is fixed by its step alone: nothing but the step needs saving, and any number of hosts
sees the same global order.
"""

import functools
from collections.abc import Iterator
from typing import Any, Protocol

import grain
import numpy as np
from grain.experimental import index_shuffle

from gpt1_jax.data.shards import TokenReader
from gpt1_jax.errors import UserError


class TrainWindows:
    """Batches of training windows by step, as a random-access source for grain.

    An epoch lays windows of T tokens side by side from a random offset below T and
    visits each once, in random order; the next epoch draws both again. Windows ignore
    document boundaries: GPT-1 has no separator token.

    Args:
      reader: reads the training split.
      seq_len: T.
      batch_size: B, over all hosts.
      rows: the rows of the batch that this host loads.
      num_steps: length of the run.
      seed: seed of the offsets and orders.
    """

    def __init__(
        self,
        reader: TokenReader,
        seq_len: int,
        batch_size: int,
        rows: slice,
        num_steps: int,
        seed: int,
    ):
        self._reader, self._seq_len = reader, seq_len
        self._batch_size, self._rows = batch_size, rows
        self._num_steps, self._seed = num_steps, seed
        self._per_epoch = windows_per_epoch(len(reader), seq_len)

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, step: int) -> np.ndarray:
        """[rows, T] int32, this host's windows of one step."""
        return np.stack(
            [
                self._reader.read(start, self._seq_len).astype(np.int32)
                for start in self.starts(step)
            ]
        )

    def starts(self, step: int) -> list[int]:
        """The first token of each of this host's windows of one step, in the split."""
        first = step * self._batch_size
        return [self._start(first + row) for row in range(self._batch_size)[self._rows]]

    def epoch(self, step: int, row: int) -> int:
        """The epoch, from 0, of a row of the batch of a step."""
        return (step * self._batch_size + row) // self._per_epoch

    def _start(self, position: int) -> int:
        epoch, index = divmod(position, self._per_epoch)
        offset, order_seed = _draws(self._seed, epoch, self._seq_len)
        shuffled = index_shuffle(
            index, max_index=self._per_epoch - 1, seed=order_seed, rounds=4
        )
        return offset + shuffled * self._seq_len


@functools.lru_cache(maxsize=8)
def _draws(seed: int, epoch: int, seq_len: int) -> tuple[int, int]:
    """An epoch's offset, and the seed of the order in which it visits its windows."""
    random = np.random.default_rng((seed, epoch))
    return int(random.integers(seq_len)), int(random.integers(2**32))


def windows_per_epoch(num_tokens: int, seq_len: int) -> int:
    """The number of whole windows that fit at any offset."""
    return (num_tokens - (seq_len - 1)) // seq_len


def check_long_enough(split: str, num_tokens: int, seq_len: int) -> None:
    """Refuses a split that cannot fill a window.

    Args:
      split: "train" or "valid".
      num_tokens: how many tokens it holds.
      seq_len: T.

    Raises:
      UserError: naming the tokens that the split holds and needs.
    """
    needed = 2 if split == "valid" else 2 * seq_len - 1
    if num_tokens < needed:
        raise UserError(
            f"The {split} split holds {num_tokens} tokens; with "
            f"config.model.max_seq_len={seq_len} it needs at least {needed}. Name more "
            "text in config.data, or shorten the windows."
        )


class ValidWindows:
    """The whole validation split in order, every token but the first predicted once.

    Windows overlap by one token. The last window is filled up with id 0, and the last
    batch with empty windows; neither filling counts.
    """

    def __init__(self, reader: TokenReader, seq_len: int, batch_size: int, rows: slice):
        self._reader, self._seq_len = reader, seq_len
        self._batch_size, self._rows = batch_size, rows
        self._num_windows = -(-(len(reader) - 1) // (seq_len - 1))

    def __len__(self) -> int:
        return -(-self._num_windows // self._batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """This host's part of a batch.

        Returns:
          tokens: [rows, T] int32.
          lengths: [rows] int32, real tokens in each window.
        """
        numbers = range(index * self._batch_size, (index + 1) * self._batch_size)
        tokens = np.zeros((len(numbers[self._rows]), self._seq_len), np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        for row, number in enumerate(numbers[self._rows]):
            if number < self._num_windows:
                window = self._reader.read(number * (self._seq_len - 1), self._seq_len)
                tokens[row, : len(window)] = window
                lengths[row] = len(window)
        return tokens, lengths


# --- batches read on threads while the accelerator computes -------------------


class BatchSource(Protocol):
    """This host's batches, by step."""

    def __len__(self) -> int: ...
    def __getitem__(self, step: int) -> Any: ...


def read_ahead(source: BatchSource, first_step: int) -> Iterator[Any]:
    """Iterates over the batches from `first_step` on, read ahead on threads.

    `get_state()["next_index"]` is the step of the next batch.
    """
    dataset = grain.MapDataset.source(source).to_iter_dataset(
        grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    )
    iterator = iter(dataset)
    iterator.set_state({"next_index": first_step})
    return iterator
