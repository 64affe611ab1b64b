"""How a language model answers tasks that it was not trained on (sec. 5).

Each answer becomes a text to read and a text to score. Whatever a task needs said is
said here, in format strings over its columns; nothing else asks which task it is.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpt1_jax.errors import UserError
from gpt1_jax.tasks.examples import SPLITS, MissingData, load_split
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example, Record, Task
from gpt1_jax.tasks.winograd import WINOGRAD

ALL = "all"


@dataclasses.dataclass(frozen=True)
class ZeroShot:
    """How a task is put to a language model.

    In the format strings `{answer}` stands for an answer, and a column's name for its
    text.

    Attributes:
      task: the task, whose labels number the answers and whose first metric is used.
      scored: the text whose log-probability decides.
      context: what is read before it, on the same line.
      passage: what is read before that, on lines of its own; its end is cut off where
        the model's context is too short. Without one, the context's beginning is.
      answers: what `{answer}` stands for, in the order of the labels; empty: the
        choices of each example.
      mean: whether the mean over the scored tokens is compared, or their sum, which
        is the log-probability of the text as a whole.
      threshold_split: where there is nothing to compare with: the split on which to
        choose the threshold above which the label is 1. Empty: the best answer wins.
      splits: the splits to evaluate on, by default the first whose data is at hand.
    """

    task: Task
    scored: str
    context: str = ""
    passage: str = ""
    answers: tuple[str, ...] = ()
    mean: bool = True
    threshold_split: str = ""
    splits: tuple[str, ...] = ("dev",)


def _with_open_premise(record: Record) -> Record:
    """COPA: the premise without its final period, so that a connective may follow."""
    premise = record.columns.get("premise")
    if not isinstance(premise, str):
        return record
    columns = {**record.columns, "premise": premise.rstrip().removesuffix(".")}
    return record._replace(columns=columns)


_COPA = dataclasses.replace(
    TASKS["copa"],
    wording={"question": {"cause": "because", "effect": "so"}},
    prepare=_with_open_premise,
)
# All of the published examples: nothing is trained on any.
_STORY_CLOZE = dataclasses.replace(TASKS["story_cloze"], dev_split=None)

_WAYS = (
    ZeroShot(TASKS["cola"], scored="{sentence}", threshold_split="train"),
    ZeroShot(
        TASKS["sst2"],
        context="{sentence} very",
        scored=" {answer}",
        answers=("negative", "positive"),
        mean=False,
    ),
    ZeroShot(
        TASKS["race"], passage="{article}", context="{question}", scored=" {answer}"
    ),
    ZeroShot(
        WINOGRAD["dpr"],
        context="{before}{answer}",
        scored="{after}",
        splits=("test", "train"),
    ),
    ZeroShot(_STORY_CLOZE, context="{context}", scored=" {answer}"),
    ZeroShot(_COPA, context="{premise} {question}", scored=" {answer}"),
    ZeroShot(
        WINOGRAD["wsc273"],
        context="{before}{answer}",
        scored="{after}",
        splits=("test",),
    ),
)

ZERO_SHOT: Mapping[str, ZeroShot] = {way.task.name: way for way in _WAYS}


class Question(NamedTuple):
    """A task that a configuration names."""

    way: ZeroShot
    splits: tuple[str, ...]  # of which the first whose data is at hand is used


def select(names: Sequence[str]) -> list[Question]:
    """The tasks named, each once; "all" are all there are.

    Args:
      names: of tasks; NAME:SPLIT says which split to take.

    Raises:
      ValueError: if there is no such task or split.
    """
    selected: dict[str, Question] = {}
    for name in ZERO_SHOT if tuple(names) == (ALL,) else names:
        task, colon, split = name.partition(":")
        if task not in ZERO_SHOT:
            raise UserError(
                f"There is no zero-shot task {task!r}; there are "
                f"{', '.join(ZERO_SHOT)}, or {ALL!r} alone."
            )
        if colon and split not in SPLITS:
            raise UserError(
                f"config.tasks names {name!r}, but {split!r} is none of the splits "
                f"{', '.join(SPLITS)}."
            )
        way = ZERO_SHOT[task]
        selected[task] = Question(way, (split,) if colon else way.splits)
    return list(selected.values())


def read(question: Question, source: str, directory: str) -> tuple[str, list[Example]]:
    """The labelled examples of the first split whose data is at hand.

    Args:
      question: the task and its splits.
      source: as `load_split` takes it.
      directory: the same.

    Returns:
      The name of the split, and its examples.

    Raises:
      MissingData: if there is no data of any.
      ValueError: as `load_split`, or if an example has no label.
    """
    task, missing = question.way.task, MissingData("")
    for split in question.splits:
        try:
            examples = load_split(task, split, source=source, directory=directory)
        except MissingData as error:
            missing = missing if str(missing) else error
            continue
        for example in examples:
            if example.label is None:
                raise UserError(
                    f"{example.where}: the example has no label, as in test splits "
                    f"whose labels are withheld; take another split of {task.title}, "
                    f"such as {task.name}:dev."
                )
        return split, examples
    raise missing
