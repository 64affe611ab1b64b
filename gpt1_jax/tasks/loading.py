"""A task's examples, read, checked and encoded."""

from typing import NamedTuple

import numpy as np

from gpt1_jax.config import TaskDataConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.tasks.batches import EncodedExamples
from gpt1_jax.tasks.files import MissingData
from gpt1_jax.tasks.sources import load_split
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples

_SUBSET_SEED = 0  # all runs see the same examples


class Split(NamedTuple):
    """One split: the text for people, the ids for the model."""

    examples: list[Example]
    encoded: EncodedExamples


class TaskData(NamedTuple):
    """What is needed to train and to judge."""

    task: Task
    train: Split
    dev: Split
    test: Split | None  # None where there is none


def load(
    task: Task,
    config: TaskDataConfig,
    tokenizer: Tokenizer,
    max_seq_len: int,
) -> TaskData:
    """Reads and encodes all splits of a task.

    Args:
      task: to load.
      config: where its examples are.
      tokenizer: of the pre-trained model.
      max_seq_len: tokens of a sequence, specials included.

    Raises:
      MissingData: if there is no training or no development split, or no test split
        where its file is named.
      ValueError: naming the file and line of a broken example.
    """

    def read(split: str) -> list[Example]:
        return load_split(
            task,
            split,
            source=config.source,
            directory=config.dir,
            paths=config.paths(),
        )

    train = _some(read("train"), config.max_train_examples)
    dev = _some(read("dev"), config.max_dev_examples)
    try:
        test = read("test")
    except MissingData:
        if config.test:  # it was named
            raise
        test = []

    def split(examples: list[Example]) -> Split:
        encoded = encode_examples(task, examples, tokenizer, max_seq_len)
        return Split(examples, encoded)

    return TaskData(task, split(train), split(dev), split(test) if test else None)


def _some(examples: list[Example], limit: int) -> list[Example]:
    """At most `limit` of the examples, at random but always the same; 0 for all."""
    if not 0 < limit < len(examples):
        return examples
    order = np.random.default_rng(_SUBSET_SEED).permutation(len(examples))
    return [examples[i] for i in sorted(order[:limit])]
