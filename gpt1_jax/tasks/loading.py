"""A task's examples, read, checked and encoded."""

from typing import NamedTuple

import numpy as np

from gpt1_jax.config import TaskDataConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.tasks.batches import EncodedExamples
from gpt1_jax.tasks.rows import MissingData
from gpt1_jax.tasks.splits import load_split
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples

_SUBSET_SEED = 0  # all runs see the same examples


class Split(NamedTuple):
    """One split: its text for people, its ids for the model."""

    examples: list[Example]
    encoded: EncodedExamples


class TaskData(NamedTuple):
    """The splits of a task."""

    task: Task
    train: Split
    dev: Split
    test: Split | None  # None if there is none


def load(
    task: Task, config: TaskDataConfig, tokenizer: Tokenizer, max_seq_len: int
) -> TaskData:
    """Reads and encodes all splits of a task.

    Args:
      task: the task to load.
      config: where its examples are, and how many to take.
      tokenizer: the pre-trained model's tokenizer.
      max_seq_len: the most tokens in a sequence, special tokens included.

    Raises:
      MissingData: if there is no training or no development split, or the test file
        that is named does not exist.
      ValueError: naming the file and line of a broken example.
    """

    def read(split: str, limit: int) -> list[Example]:
        examples = load_split(
            task,
            split,
            source=config.source,
            directory=config.dir,
            paths=config.paths(),
        )
        return some(examples, limit)

    def encode(examples: list[Example]) -> Split:
        encoded = encode_examples(task, examples, tokenizer, max_seq_len)
        return Split(examples, encoded)

    train = read("train", config.max_train_examples)
    dev = read("dev", config.max_dev_examples)
    try:
        test = read("test", config.max_test_examples)
    except MissingData:
        if config.test:
            raise
        test = []
    return TaskData(task, encode(train), encode(dev), encode(test) if test else None)


def describe_cuts(data: TaskData, max_seq_len: int) -> str:
    """A line on examples that were too long, or "" if there were none."""
    named = {"training": data.train, "dev": data.dev, "test": data.test}
    counts = [
        f"{split.encoded.num_cut:,} of {len(split.examples):,} {name}"
        for name, split in named.items()
        if split is not None and split.encoded.num_cut
    ]
    if not counts:
        return ""
    listed = " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))
    return f"{listed} examples were cut to fit {max_seq_len} tokens."


def some(examples: list[Example], limit: int) -> list[Example]:
    """At most `limit` of the examples, at random but always the same; 0 for all."""
    if not 0 < limit < len(examples):
        return examples
    order = np.random.default_rng(_SUBSET_SEED).permutation(len(examples))
    return [examples[i] for i in sorted(order[:limit])]
