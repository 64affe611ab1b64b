"""Batches read on threads while the accelerator computes."""

from collections.abc import Iterator
from typing import Any, Protocol

import grain


class BatchSource(Protocol):
    """This host's batches, by step."""

    def __len__(self) -> int: ...
    def __getitem__(self, step: int) -> Any: ...


def read_ahead(source: BatchSource, first_step: int) -> Iterator[Any]:
    """Iterates over the batches from `first_step` on, read ahead on threads.

    `get_state()["next_index"]` is the step of the batch that comes next.
    """
    dataset = grain.MapDataset.source(source).to_iter_dataset(
        grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    )
    iterator = iter(dataset)
    iterator.set_state({"next_index": first_step})
    return iterator
