"""The definition of a task: columns, input transformation, labels, metrics, sources."""

import contextlib
import dataclasses
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpt1_jax.data.records import cell_text, parse_number, require_column
from gpt1_jax.data.text import brief
from gpt1_jax.errors import UserError

NO_LABEL = -1  # TFDS' label for an example without one
_WITHHELD_LABELS = ("-", "hidden", NO_LABEL)  # as published data marks them
_ID_COLUMNS = ("idx", "id", "index")  # TFDS', users', the GLUE files'

# The number of a label, or of several, or a score.
Label = int | float | tuple[int, ...]


class UnusableRow(UserError):
    """A row whose text or label a task cannot use."""

    kind = ""  # of rows, in words
    way_out = ""  # for a task of the user's own, if the message does not say it


class EmptyText(UnusableRow):
    """A row lacks the text that a task needs."""

    kind = "without text"


class NoLabel(UnusableRow):
    """A row to train on or to score lacks a label."""

    kind = "without a label"
    way_out = " --config.data.skip_unlabelled=True passes over such rows."


class UnknownLabel(UnusableRow):
    """A row has a label that is none of the task's, or a score out of its range."""

    kind = "with an unknown label"


class Record(NamedTuple):
    """One row of a source, with the column names of TensorFlow Datasets."""

    columns: Mapping[str, Any]
    where: str  # "file:line" or "dataset:split[row]", for messages
    subset: str = ""  # "matched", "high", ...; "" if a split has none


class Example(NamedTuple):
    """A checked example, as text.

    `label` is an index into `Target.labels`, or several, rising, if the target is
    `multilabel`; a score if there are no labels, or None if it is unknown.
    """

    text: tuple[str, ...]  # one for each of `Inputs.text`
    choices: tuple[str, ...]  # empty unless the task is a multiple choice
    label: Label | None
    id: str  # the source's own, "" if it has none
    subset: str
    where: str
    number: int = 0  # index of its row among the rows read with it, from 0


@dataclasses.dataclass(frozen=True)
class FileLayout:
    """How the authors of a task lay out one of its files.

    Attributes:
      path: its path below the data folder; may hold `*`.
      newer_path: the path of a later edition, read if there is no other.
      columns: our column names mapped to theirs: names in the header, or positions
        from 0 if the file has no header. A tuple of columns is joined by spaces, a list
        of columns becomes a list of texts. Empty: the file uses our names. A folder
        holds RACE's passages, which do.
      may_be_short: whether rows with too few columns are skipped, with a warning.
    """

    path: str
    newer_path: str = dataclasses.field(default="", kw_only=True)
    columns: Mapping[str, str | int | tuple[str, ...] | list[str]] = dataclasses.field(
        default_factory=dict
    )
    may_be_short: bool = False


BySplit = Mapping[str, Mapping[str, Any]]  # split -> subset -> its data


class GlueFile(NamedTuple):
    """A file that the GLUE leaderboard takes."""

    name: str
    rows: int  # in the whole test split; the leaderboard refuses fewer


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The parts of an example that the model reads.

    Attributes:
      transform: which input transformation of Figure 1: "single" text, "pair" of
        texts, "similarity" of two texts in both orders, "multiple_choice".
      text: the columns of text; in a multiple choice the context, or the context and
        a question: then the context is cut to make room for the rest.
      choices: the columns of the choices; a single one holds a list.
      fewer_choices: whether an example may have fewer choices than there are labels;
        it must have two.
      formats: the texts that the model reads, as format strings over those columns;
        empty: the columns themselves.
      wording: column -> value -> the text that replaces it.
      cut_longer: whether the longer text of a pair is cut first. Otherwise each text
        gets half the room, as in the released code.
      may_be_empty: which texts of an example may be empty: "none", "some" (not all of
        them) or "all", as in some published data.
    """

    transform: str
    text: tuple[str, ...]
    choices: tuple[str, ...] = ()
    fewer_choices: bool = False
    formats: tuple[str, ...] = ()
    wording: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    cut_longer: bool = False
    may_be_empty: str = "none"

    def format_text(self, example: Example) -> tuple[str, ...]:
        """The texts of an example that the model reads, as `formats` says."""
        columns = dict(zip(self.text, example.text, strict=True))
        made = tuple(each.format_map(columns) for each in self.formats)
        return made or example.text

    def read_text(self, record: Record) -> tuple[str, ...]:
        """The texts of a record, as the columns hold them or as `wording` has it."""
        texts = self._texts(record, self.text, self.may_be_empty != "none")
        if self.may_be_empty == "some" and not any(map(_is_filled, texts)):
            raise EmptyText(
                f"{record.where}: the texts in columns {', '.join(self.text)} are all "
                f"empty.{_SKIP}"
            )
        return texts

    def read_choices(self, record: Record, most: int) -> tuple[str, ...]:
        """The choices of a record; `most` of them, or fewer if it may have fewer."""
        may_be_empty = self.may_be_empty == "all"
        if len(self.choices) != 1:
            return self._texts(record, self.choices, may_be_empty)
        column = self.choices[0]
        values = require_column(record.columns, column, record.where)
        least = 2 if self.fewer_choices else most
        if not isinstance(values, list | tuple) or not least <= len(values) <= most:
            number = f"{least} to {most}" if least < most else f"{most}"
            raise UserError(
                f"{record.where}: column {column!r} holds {brief(values)}, not a list "
                f"of {number} texts, one for each label."
            )
        where = record.where
        return tuple(self._text(value, column, where, may_be_empty) for value in values)

    def _texts(
        self, record: Record, columns: tuple[str, ...], may_be_empty: bool
    ) -> tuple[str, ...]:
        where = record.where
        cells = [require_column(record.columns, column, where) for column in columns]
        return tuple(
            self._text(cell, column, where, may_be_empty)
            for column, cell in zip(columns, cells, strict=True)
        )

    def _text(self, cell: Any, column: str, where: str, may_be_empty: bool) -> str:
        if cell is None and self.may_be_empty != "some":
            raise EmptyText(f"{where}: column {column!r} holds None, not text.{_SKIP}")
        text = cell_text(cell, column, where)
        text = self.wording.get(column, {}).get(text, text)
        if not (may_be_empty or _is_filled(text)):
            raise EmptyText(f"{where}: the text in column {column!r} is empty.{_SKIP}")
        return text


_SKIP = " In training, --config.data.skip_empty=True passes over such rows."


def _is_filled(text: str) -> bool:
    return any(c.isprintable() and not c.isspace() for c in text)


@dataclasses.dataclass(frozen=True)
class Target:
    """The target of a task: one or any number of several labels, or a score.

    Attributes:
      labels: the names of the labels, by number; in a multiple choice, names for the
        choices. Empty: the label is a score, see `score_range`.
      column: the column of the label.
      score_range: the lowest and the highest score, if there are no labels.
      score_loss: how scores are learnt: as "soft_labels" over whole numbers or by
        "regression": see `gpt1_jax.tasks.transforms.targets`. `select_tasks` sets it.
      numbers_are_names: whether the number 3 means the label named "3", if there is
        one, and not the fourth label.
      drop_unlabelled: whether examples without a label are left out of every split.
      multilabel: whether an example may have several of the labels, or none.
      positive: of two labels, the number of the one that F1 is about.
    """

    labels: tuple[str, ...] = ()
    column: str = "label"
    score_range: tuple[float, float] | None = None
    score_loss: str = "soft_labels"
    numbers_are_names: bool = False
    drop_unlabelled: bool = False
    multilabel: bool = False
    positive: int = 1

    def read(self, record: Record) -> Label | None:
        """The label or score of a record; None if it has none or withholds it."""
        value = record.columns.get(self.column)
        if not self.multilabel and is_blank(value):
            return None
        try:
            if self.score_range:
                return self._score(record, value)
            if self.multilabel:
                names = split_labels(value, record.where)
                if names is None:
                    return None
                return tuple(sorted({self._label_number(record, n) for n in names}))
            return self._label_number(record, value)
        except UserError:  # a task of the user's own may have a label "-" or -1
            if value in _WITHHELD_LABELS:
                return None
            raise

    def _label_number(self, record: Record, value: Any) -> int:
        if isinstance(value, str) or self.numbers_are_names:
            name = label_name(value, record.where)
            if name in self.labels:
                return self.labels.index(name)
        # Of labels -1 and 1, a 0 is neither, not the first.
        positions = 0 if self._has_numbers_as_names() else len(self.labels)
        number = _whole_number(value)
        if isinstance(value, bool) and self.numbers_are_names:
            number = NO_LABEL  # not the first or the second label
        if not 0 <= number < positions:
            names = f"one of {list(self.labels)}"
            expected = f"neither {names} nor a number from 0 to {positions - 1}"
            if self.numbers_are_names:
                expected = f"not {names}; name all with --config.custom.labels=A,B"
                alike = {label_key(each): each for each in self.labels}
                if near := alike.get(label_key(str(value).strip())):
                    expected = f"not {names}, but looks like {near!a}; write both alike"
            raise UnknownLabel(f"{record.where}: label {brief(value)} is {expected}.")
        return number

    def _has_numbers_as_names(self) -> bool:
        numbers = re.compile("-?[0-9]+")
        return self.numbers_are_names and any(map(numbers.fullmatch, self.labels))

    def _score(self, record: Record, value: Any) -> float:
        low, high = self.score_range or (-math.inf, math.inf)
        score = parse_number(value)
        if not low <= score <= high:
            raise UnknownLabel(
                f"{record.where}: score {brief(value)} is not a number from {low} to "
                f"{high}."
            )
        return score


@dataclasses.dataclass(frozen=True)
class Published:
    """Where a task's examples are published, and how its splits are laid out.

    Attributes:
      tfds: split -> subset -> "NAME:SPLIT" in TensorFlow Datasets.
      hub: split -> subset -> the address of Parquet files on the Hugging Face Hub, with
        TFDS' columns; a pattern may stand in the file's name. Once the files are
        fetched, their local path.
      files: split -> subset -> `FileLayout`, as distributed.
      optional: subsets that a source may lack.
      subset_column: a column whose values begin with the subset's name, such as
        "high/1.txt" or "high1.txt", in sources that do not separate the subsets.
      dev_split: (number of dev examples, seed) if no training split is published: then
        `sklearn.model_selection.train_test_split` divides the dev split.
      tfds_first_label: TFDS' name of the first label.
      terms: why the files must be asked for, and from whom.
      prepare: changes a record before it is checked.
    """

    tfds: BySplit = dataclasses.field(default_factory=dict)
    hub: BySplit = dataclasses.field(default_factory=dict)
    files: BySplit = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    subset_column: str = ""
    dev_split: tuple[int, int] | None = None
    tfds_first_label: int = 0
    terms: str = ""
    prepare: Callable[[Record], Record] = lambda record: record

    def subsets(self, split: str) -> tuple[str, ...]:
        """The subsets of a split, which all sources have alike; "" if it has none."""
        sources = (self.tfds, self.hub, self.files)
        return tuple(next((each[split] for each in sources if split in each), ("",)))

    def subset(self, record: Record) -> str:
        """The subset of a record, "" if the split has none."""
        value = record.columns.get(self.subset_column)
        if record.subset or not isinstance(value, str):
            return record.subset
        if "/" in value:
            return value.partition("/")[0]
        known = filter(None, self.subsets("test"))
        return next((name for name in known if value.startswith(name)), "")


@dataclasses.dataclass(frozen=True)
class Glue:
    """How the GLUE leaderboard takes predictions.

    Attributes:
      files: subset of the test split -> file of a submission.
      takes_names: whether that file holds the names of labels, or their numbers.
    """

    files: Mapping[str, GlueFile] = dataclasses.field(default_factory=dict)
    takes_names: bool = False


@dataclasses.dataclass(frozen=True)
class Task:
    """A published task, or one of the user's own.

    Attributes:
      name: its name in configurations and folders.
      title: its name in the paper.
      inputs: the parts of an example that the model reads.
      target: the label or score that it asks for.
      metrics: names in `gpt1_jax.tasks.metrics`; the first is the paper's, and decides
        which checkpoint is best.
      published: where its examples are.
      glue: the files for the leaderboard; none if GLUE does not have the task.
    """

    name: str
    title: str
    inputs: Inputs
    target: Target
    metrics: tuple[str, ...] = ("accuracy",)
    published: Published = Published()
    glue: Glue = Glue()

    def check_record(self, record: Record, *, needs_label: bool) -> Example | None:
        """Makes a checked example of a record.

        Args:
          record: a row of a source.
          needs_label: False for test splits, whose labels may be withheld.

        Returns:
          The example, or None if it is to be left out.

        Raises:
          EmptyText: if it lacks the text that the task needs.
          UserError: naming the place, and the column that is missing or out of range.
        """
        record = self.published.prepare(record)
        label = self.target.read(record)
        if label is None and self.target.drop_unlabelled:
            return None
        text = self.inputs.read_text(record)
        if label is None and needs_label:
            raise NoLabel(
                f"{record.where}: the example has no label in column "
                f"{self.target.column!r}; training and scores need one."
            )
        choices = self.inputs.read_choices(record, len(self.target.labels))
        if choices and isinstance(label, int) and label >= len(choices):
            raise UserError(
                f"{record.where}: label {brief(record.columns[self.target.column])} is "
                f"none of the example's {len(choices)} choices, which count from 0."
            )
        return Example(
            text,
            choices,
            label,
            self._id(record),
            self.published.subset(record),
            record.where,
        )

    def _id(self, record: Record) -> str:
        names = (name for name in _ID_COLUMNS if name not in self.inputs.text)
        value = next((record.columns[n] for n in names if n in record.columns), None)
        if isinstance(value, list | dict):
            raise UserError(
                f"{record.where}: the id {brief(value)} is neither text nor a number."
            )
        return "" if value is None else str(value)


def is_blank(value: Any) -> bool:
    """Whether a cell holds no label: nothing, NaN or white space."""
    return value is None or value != value or str(value).strip() == ""


def split_labels(cell: Any, where: str) -> list[Any] | None:
    """The labels in a cell that may hold several: a list, or text with "|" between.

    Text may also be a JSON list. There are none in "" and []. A cell without a value
    has None in place of labels: which apply is not known.

    Raises:
      UserError: if a label in a list is null or empty.
    """
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            cell = json.loads(cell)
    if isinstance(cell, list | tuple):
        if any(map(is_blank, cell)):
            raise UserError(f"{where}: one of the labels {brief(cell)} is empty.")
        return list(cell)
    if isinstance(cell, str):
        return [name for name in cell.split("|") if name.strip()]
    return None if is_blank(cell) else [cell]


def label_name(value: Any, where: str) -> str:
    """A label as text, whether the source holds text or a number; no blanks around it.

    Raises:
      UserError: if it is neither.
    """
    if isinstance(value, list | dict | bytes):
        raise UserError(f"{where}: label {brief(value)} is neither text nor a number.")
    return str(value).strip()


def label_key(name: str) -> str:
    """The same for labels that differ only in case, Unicode form or as 1 and 1.0."""
    whole = re.fullmatch(r"(-?[0-9]+)\.0*", name)
    return whole[1] if whole else unicodedata.normalize("NFC", name).casefold()


def _whole_number(value: Any) -> int:
    """The whole number that a source writes as 2, 2.0 or " 2"; otherwise NO_LABEL."""
    number = float(value) if isinstance(value, bool) else parse_number(value)
    return int(number) if number.is_integer() else NO_LABEL
