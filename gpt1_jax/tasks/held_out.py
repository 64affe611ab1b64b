"""Divides a training file into training and dev examples, by their content."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpt1_jax.config.finetune import TaskDataConfig
from gpt1_jax.data.files import json_digest
from gpt1_jax.data.text import clean
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import NO_LABEL, Example, Task


def hold_out(
    task: Task, examples: Sequence[Example], config: TaskDataConfig
) -> tuple[list[Example], list[Example]]:
    """Divides examples into those to train on and those held out as the dev split.

    The choice depends on the texts and labels of all examples, not on their order or on
    a seed. Examples of equal texts stay together. The share that is asked for is held
    out of each label, as far as that is possible; with `dev_fraction`, the dev split
    has an example of each label that has two or more different texts.

    Args:
      task: the task, whose labels are divided evenly.
      examples: all examples, with labels.
      config: `dev_fraction` says the share, or `folds` the number of equal parts, of
        which part `fold` is held out. Each example is in one of these.

    Returns:
      The training and the dev examples, in the order of `examples`.

    Raises:
      UserError: if a label has fewer different texts than there are folds, or all
        examples have one text.
    """
    shares = [1] * config.folds
    if not config.folds:
        share = Fraction(str(config.dev_fraction))
        shares = [share.numerator, share.denominator - share.numerator]
    digests = [_text_digest(task, example) for example in examples]
    counts = _count_texts(task, examples, digests)
    for number, name in enumerate(task.target.labels):
        if (texts := len(counts.get(number, ()))) < config.folds:
            raise UserError(
                f"{task.title}: the label {name!r} has {texts} rows with different "
                f"texts, fewer than config.data.folds={config.folds}, each of which "
                "needs one; take fewer folds."
            )
    parts = _divide(counts, shares)
    divided: tuple[list[Example], list[Example]] = ([], [])
    held = max(config.fold - 1, 0)
    for example, digest in zip(examples, digests, strict=True):
        divided[parts[digest] == held].append(example)
    if not all(divided):
        raise UserError(
            f"{task.title}: no row can be held out as the dev split, as each label has "
            "only one text; name a dev file with --config.data.dev=FILE."
        )
    return divided


def _text_digest(task: Task, example: Example) -> str:
    """The same for texts that the model reads alike."""
    texts = [clean(text) for text in task.inputs.format_text(example)]
    if task.inputs.transform == "similarity":  # which reads both orders
        texts.sort()
    return json_digest([texts, [clean(choice) for choice in example.choices]])


def _count_texts(
    task: Task, examples: Sequence[Example], digests: Sequence[str]
) -> dict[int, Counter[str]]:
    """How many examples of each label each text has, by digest.

    `NO_LABEL` stands for any score, and for none of several labels.
    """
    counts: dict[int, Counter[str]] = {}
    for example, digest in zip(examples, digests, strict=True):
        labels: Any = example.label if task.target.labels else NO_LABEL
        for label in (labels if isinstance(labels, tuple) else [labels]) or [NO_LABEL]:
            counts.setdefault(label, Counter())[digest] += 1
    return counts


def _divide(
    labels: Mapping[int, Counter[str]], shares: Sequence[int]
) -> dict[str, int]:
    """The part that each text is in.

    The texts of a label fill one part after another, in the order of their digests, so
    that most of them stay in their part when a file grows.

    Args:
      labels: as `_count_texts` returns them. A text of several is divided with the
        label that has the fewest texts.
      shares: of each part; whole numbers, so that rounding is the same everywhere.
    """
    parts: dict[str, int] = {}
    one = sum(shares)  # what an example takes of the room in a part
    for _, counts in sorted(labels.items(), key=lambda each: (len(each[1]), each[0])):
        room = [share * counts.total() for share in shares]
        for digest in parts.keys() & counts.keys():
            room[parts[digest]] -= counts[digest] * one
        empty = set(range(len(shares))) - {parts.get(digest) for digest in counts}
        left = sorted(counts.keys() - parts.keys())
        for index, digest in enumerate(left):
            size = counts[digest] * one
            if len(left) - index <= len(empty):
                part = max(empty)  # a single text is to train on
            else:
                fitting = [p for p, each in enumerate(room) if each >= size - one // 2]
                part = fitting[0] if fitting else room.index(max(room))
            parts[digest] = part
            room[part] -= size
            empty.discard(part)
        if 0 in empty and len(counts) > 1:
            parts[min(counts)] = 0
    return parts
