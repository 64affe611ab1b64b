"""What a task is: columns, input transformation, labels, metrics, places."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

TRANSFORMS = ("single", "pair", "similarity", "multiple_choice")
NO_LABEL = -1  # TFDS' label of an example that has none


class Record(NamedTuple):
    """One row of a source, its columns named as in TensorFlow Datasets."""

    columns: Mapping[str, Any]
    where: str  # "file:line" or "dataset:split[row]", for messages
    subset: str = ""  # "matched", "high", ...; "" where a split is of one piece


class Example(NamedTuple):
    """One example, checked, as text.

    `label` is an index into `Task.labels`, a score where the task has none, or None
    where it is not told.
    """

    text: tuple[str, ...]  # one for each of `Task.text`
    choices: tuple[str, ...]  # of a multiple choice; else empty
    label: int | float | None
    id: str  # the source's own number, for submissions
    subset: str
    where: str


@dataclasses.dataclass(frozen=True)
class Table:
    """A file as its authors distribute it.

    Attributes:
      path: below the data folder; may hold `*`.
      columns: our column names to theirs: a header's name, or a position, from 0, in
        a file without header. Several in a tuple are joined by spaces, in a list they
        stay a list. Empty: the columns are named as ours.
      format: "tsv" (no quoting), "csv", "jsonl", or "race" (a folder of passages).
      may_be_short: whether rows that lack columns are left out, with a warning.
    """

    path: str
    columns: Mapping[str, str | int | tuple[str, ...] | list[str]] = dataclasses.field(
        default_factory=dict
    )
    format: str = "tsv"
    may_be_short: bool = False


Places = Mapping[str, Mapping[str, Any]]  # split -> subset -> place


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the paper, or one of the user's own.

    Attributes:
      name: in configurations and folders.
      title: as the paper writes it.
      transform: which input transformation of Figure 1: "single" text, "pair" of
        texts, "similarity" of two texts in both orders, "multiple_choice".
      text: the columns of text; of a multiple choice, of its context, where all but
        the last are cut to make room for the rest.
      choices: the columns of the choices; a single one holds a list.
      labels: names in the order of their numbers; of a multiple choice, of the
        choices. Empty: the label is a score, see `score_range`.
      metrics: of `gpt1_jax.tasks.metrics`; the first one selects models and stands
        in the paper's table.
      score_range: lowest and highest score, where there are no labels.
      score_loss: how scores are learnt, as "soft_labels" of whole numbers or by
        "regression": see `gpt1_jax.tasks.transforms.targets`. `select_tasks` sets it.
      numbers_are_names: whether 3 as a label is the one named "3", if there is one,
        rather than the fourth.
      wording: for a column, what to read instead of a value.
      tfds: split -> subset -> "NAME:SPLIT" in TensorFlow Datasets.
      tfds_first_label: what TFDS calls the first label.
      files: split -> subset -> `Table`, as distributed.
      subset_column: the column that begins with the subset's name, as "high/1.txt"
        and "high1.txt" do, where a source keeps the subsets together.
      drop_unlabelled: whether examples without a label are left out everywhere.
      may_be_empty: whether a text may be empty, as some are in the published data.
      dev_split: (examples, seed): no training split is published; the dev split is
        divided, as `sklearn.model_selection.train_test_split` does.
    """

    name: str
    title: str
    transform: str
    text: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    choices: tuple[str, ...] = ()
    label: str = "label"
    score_range: tuple[float, float] | None = None
    score_loss: str = "soft_labels"
    numbers_are_names: bool = False
    wording: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    tfds: Places = dataclasses.field(default_factory=dict)
    tfds_first_label: int = 0
    files: Places = dataclasses.field(default_factory=dict)
    subset_column: str = ""
    drop_unlabelled: bool = False
    may_be_empty: bool = False
    dev_split: tuple[int, int] | None = None

    def example(self, record: Record, *, needs_label: bool) -> Example | None:
        """Checks a record.

        Args:
          record: a row of a source.
          needs_label: False for test splits, whose labels may be withheld.

        Returns:
          The example; None if it is one to leave out.

        Raises:
          ValueError: naming the place and the column of what is missing, empty or
            out of range.
        """
        label = self._label(record)
        if label is None and self.drop_unlabelled:
            return None
        if label is None and needs_label:
            raise ValueError(
                f"{record.where}: the example has no label in column {self.label!r}; "
                "training and scores need one."
            )
        text = tuple(self._text(record, column) for column in self.text)
        return Example(
            text,
            self._choices(record),
            label,
            str(record.columns.get("idx", "")),
            record.subset or self._subset(record),
            record.where,
        )

    def _value(self, record: Record, column: str) -> Any:
        if column not in record.columns:
            raise ValueError(
                f"{record.where}: there is no column {column!r}; the columns are "
                f"{', '.join(map(str, record.columns))}."
            )
        return record.columns[column]

    def _text(self, record: Record, column: str) -> str:
        value = self._value(record, column)
        if not isinstance(value, str):
            raise ValueError(
                f"{record.where}: column {column!r} holds {value!r}, not text."
            )
        value = self.wording.get(column, {}).get(value, value)
        if not value.strip() and not self.may_be_empty:
            raise ValueError(f"{record.where}: the text in column {column!r} is empty.")
        return value

    def _choices(self, record: Record) -> tuple[str, ...]:
        if len(self.choices) != 1:
            return tuple(self._text(record, column) for column in self.choices)
        column = self.choices[0]
        values = self._value(record, column)
        if not isinstance(values, list | tuple) or len(values) != len(self.labels):
            raise ValueError(
                f"{record.where}: column {column!r} holds {values!r}, not a list of "
                f"{len(self.labels)} texts."
            )
        part = [Record({column: v}, record.where) for v in values]
        return tuple(self._text(each, column) for each in part)

    def _label(self, record: Record) -> int | float | None:
        value = record.columns.get(self.label)
        if value in (None, "", "-", "hidden", NO_LABEL):
            return None
        if self.score_range:
            return self._score(record, value)
        name = str(value) if self.numbers_are_names else value
        if isinstance(name, str) and name in self.labels:
            return self.labels.index(name)
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = NO_LABEL
        if number != value and str(number) != str(value).strip():
            number = NO_LABEL
        if not 0 <= number < len(self.labels):
            raise ValueError(
                f"{record.where}: label {value!r} is none of {list(self.labels)}, nor "
                f"a number from 0 to {len(self.labels) - 1}."
            )
        return number

    def _score(self, record: Record, value: Any) -> float:
        low, high = self.score_range or (-math.inf, math.inf)
        try:
            score = float(value)
        except (TypeError, ValueError):
            score = math.nan
        if not low <= score <= high:
            raise ValueError(
                f"{record.where}: score {value!r} is not a number from {low} to {high}."
            )
        return score

    def _subset(self, record: Record) -> str:
        value = str(record.columns.get(self.subset_column, ""))
        if "/" in value:
            return value.partition("/")[0]
        known = (name for places in self.files.values() for name in places if name)
        return next((name for name in known if value.startswith(name)), "")
