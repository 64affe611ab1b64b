"""A task's examples, read, checked and encoded."""

from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpt1_jax.config import TaskDataConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.batches import EncodedExamples
from gpt1_jax.tasks.rows import MissingData
from gpt1_jax.tasks.splits import load_split
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import collect, encode_each, room

_SUBSET_SEED = 0  # all runs see the same examples

X = TypeVar("X")


class Split(NamedTuple):
    """One split: its text for people, its ids for the model."""

    examples: list[Example]
    encoded: EncodedExamples
    num_dropped: int = 0  # examples left out because they are too long


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
      ValueError: naming the file and line of a broken example, or the split of which
        `config.drop_long` leaves nothing; if the dev split is the training split.
    """

    def read(split: str) -> list[Example]:
        return load_split(
            task,
            split,
            source=config.source,
            directory=config.dir,
            paths=config.paths(),
        )

    def encode(name: str, examples: list[Example], limit: int, whole: bool) -> Split:
        if not whole:
            examples = some(examples, limit)
        kept = encode_each(task, examples, tokenizer, max_seq_len, drop_long=whole)
        if not kept:
            raise UserError(
                f"All {len(examples):,} {name} examples of {task.title} are longer "
                f"than {max_seq_len} tokens, and config.data.drop_long=True leaves "
                "them out. Use a model with a larger max_seq_len, or let them be cut."
            )
        taken = some(kept, limit)
        return Split(
            [each.example for each in taken],
            collect(task, taken),
            len(examples) - len(kept),
        )

    train, dev = read("train"), read("dev")
    _refuse_same(task, train, dev)
    try:
        test = read("test")
    except MissingData:
        if config.test:
            raise
        test = []
    return TaskData(
        task,
        encode("training", train, config.max_train_examples, config.drop_long),
        encode("dev", dev, config.max_dev_examples, config.drop_long),
        encode("test", test, config.max_test_examples, False) if test else None,
    )


def _refuse_same(task: Task, train: list[Example], dev: list[Example]) -> None:
    """Refuses to choose a checkpoint by what it was trained on."""

    def content(examples: list[Example]) -> set[tuple[Any, ...]]:
        return {(each.text, each.choices, each.label) for each in examples}

    if len(train) == len(dev) and content(train) == content(dev):
        raise UserError(
            f"{task.title}: the dev split holds the examples of the training split, "
            f"from {dev[0].where} on, so its score would say nothing of others. Hold "
            "some out, for example as --config.data.dev=FILE; training examples are "
            "scored by --config.eval.train_examples=NUMBER."
        )


def describe_long(data: TaskData, max_seq_len: int) -> str:
    """A line on examples that were too long, or "" if there were none."""
    named = {"training": data.train, "dev": data.dev, "test": data.test}
    splits = {name: split for name, split in named.items() if split is not None}
    dropped = [
        f"{split.num_dropped:,} {name}"
        for name, split in splits.items()
        if split.num_dropped
    ]
    cut = [
        f"{split.encoded.num_cut:,} of {len(split.examples):,} {name}"
        for name, split in splits.items()
        if split.encoded.num_cut
    ]
    lines, fitting = [], room(data.task, max_seq_len)
    if dropped:
        lines.append(
            f"{_listed(dropped)} examples were left out: they do not fit {fitting}."
        )
    if cut:
        lines.append(f"{_listed(cut)} examples were cut to fit {fitting}.")
    return " ".join(lines)


def _listed(parts: list[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def some(examples: list[X], limit: int) -> list[X]:
    """At most `limit` of the examples, at random but always the same; 0 for all."""
    if not 0 < limit < len(examples):
        return examples
    order = np.random.default_rng(_SUBSET_SEED).permutation(len(examples))
    return [examples[i] for i in sorted(order[:limit])]
