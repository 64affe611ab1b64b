"""Rows of files: tab- or comma-separated values, JSON lines, RACE's passages."""

import csv
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.text import CONVERT, refuse_utf16, split_lines
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import FileLayout, Record, shown

FORMATS = {".jsonl": "jsonl", ".tsv": "tsv", ".csv": "csv"}  # by a file's suffix
Rows = Iterator[tuple[str, Mapping[Any, Any]]]  # where, cells by header or position


def find(folder: epath.Path, pattern: str) -> list[epath.Path]:
    """The files below `folder` that match `pattern`, which may hold `*`."""
    if "*" in pattern:
        return sorted(folder.glob(pattern)) if folder.is_dir() else []
    return [folder / pattern] if (folder / pattern).exists() else []


def read_table(
    path: epath.Path, table: FileLayout, *, subset: str = "", optional: str = ""
) -> Iterator[Record]:
    """The records of a file, or of a folder of RACE's passages.

    Args:
      path: the file or folder.
      table: its format and the names of its columns; `table.path` is not used.
      subset: the records' subset.
      optional: a column of ours that the file may lack.

    Raises:
      ValueError: naming file and line of a row that cannot be read or lacks a column.
    """
    if table.format == "race":
        yield from _race(path, subset)
        return
    with path.open("rb") as file:
        for where, cells in read_rows(file, str(path), table):
            if table.columns:
                cells = _renamed(cells, table, where, optional)
            yield Record(cells, where, subset)


def read_rows(file: Iterable[bytes], name: str, table: FileLayout) -> Rows:
    """The rows of an open file.

    Args:
      file: the file's lines.
      name: the file's name, for messages.
      table: its format, "tsv", "csv" or "jsonl", and its columns.

    Raises:
      ValueError: naming file and line of a row that cannot be read.
    """
    return _READERS[table.format](text_lines(file, name), name, table)


def text_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines with their ends, as `split_lines` tells them apart.

    Args:
      file: parts of the file that end where a line does.
      name: the file's name, for messages.

    Raises:
      ValueError: naming the file and the first line that is not UTF-8.
    """
    number = 0
    for part in file:
        if not number:
            refuse_utf16(part, name)
        try:
            text = part.decode("utf-8" if number else "utf-8-sig")
        except UnicodeDecodeError as error:
            number += 1 + error.object.count(b"\r", 0, error.start)
            raise UserError(
                f"{name}:{number}: byte {error.object[error.start]:#04x} is not UTF-8 "
                f"text. {CONVERT.format('latin1')}"
            ) from error
        for line in split_lines(text):
            number += 1
            yield line


def questions(passage: Mapping[str, Any], where: str, subset: str) -> Iterator[Record]:
    """The questions of a RACE passage, one record each.

    Args:
      passage: the passage's columns, named as in TensorFlow Datasets.
      where: its place, for messages.
      subset: the records' subset.

    Raises:
      ValueError: if a column is missing, or the numbers of questions, options and
        answers differ.
    """
    names = ("article", "questions", "options", "answers", "example_id")
    if missing := [name for name in names if name not in passage]:
        raise _no_column(where, missing[0], passage)
    lists = [passage[name] for name in ("questions", "options", "answers")]
    for values in lists:
        if not isinstance(values, list):
            raise UserError(f"{where}: the passage holds {shown(values)}, not a list.")
    if len({len(values) for values in lists}) != 1:
        raise UserError(
            f"{where}: the passage has {len(lists[0])} questions, {len(lists[1])} "
            f"lists of options and {len(lists[2])} answers; these numbers must agree."
        )
    shared = {name: passage[name] for name in ("article", "example_id")}
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        own = {"question": question, "options": options, "answer": answer}
        yield Record({**shared, **own}, f"{where}, question {number}", subset)


def _race(folder: epath.Path, subset: str) -> Iterator[Record]:
    for path in sorted(folder.glob("*.txt")):
        where = f"{path}:1"
        with path.open("rb") as file:
            passage = _json_object("".join(text_lines(file, str(path))), where)
        named = {("example_id" if k == "id" else k): v for k, v in passage.items()}
        yield from questions(named, where, subset)


def _jsonl(lines: Iterator[str], name: str, _: FileLayout) -> Rows:
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}:{number}"
            yield where, _json_object(line, where)


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = _parsed(text, where)
        if "\\" in text:  # an escape may stand for half of a character
            _check_characters(value, where)
    except RecursionError as error:
        raise UserError(f"{where}: this JSON is nested too deeply.") from error
    if not isinstance(value, dict):
        raise UserError(f"{where}: this is {shown(value)}, not a JSON object: {{...}}.")
    return value


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: this is not JSON: {error}.") from error
    except ValueError as error:  # Python reads numbers of up to 4,300 digits
        raise UserError(f"{where}: a number is too long: {error}.") from error


def _check_characters(value: Any, where: str) -> None:
    """Refuses lone surrogates, which no tokenizer and no file takes."""
    if isinstance(value, str):
        check_encodable(value, where)
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            _check_characters(part, where)
    elif isinstance(value, list):
        for part in value:
            _check_characters(part, where)


def _tsv(lines: Iterator[str], name: str, table: FileLayout) -> Rows:
    cells = ((n, line.rstrip("\r\n")) for n, line in enumerate(lines, 1))
    return _by_header(name, ((n, t.split("\t")) for n, t in cells if t), table)


def _csv(lines: Iterator[str], name: str, table: FileLayout) -> Rows:
    return _by_header(name, _csv_cells(lines, name), table)


def _csv_cells(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    line = 1  # where the row starts: quoted cells may hold line ends
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}:{line}: this is not CSV: {error}.") from error


def _by_header(
    name: str, rows: Iterator[tuple[int, list[str]]], table: FileLayout
) -> Rows:
    """Cells by the names in the first line, or by position if the table uses that."""
    headless = any(isinstance(column, int) for column in table.columns.values())
    names: Sequence[Any] = ()
    short: list[str] = []
    for number, cells in rows:
        where = f"{name}:{number}"
        if not names:
            names = range(len(cells)) if headless else cells
            _check_names(names, where, table)
            if not headless:
                continue
        if len(cells) < len(names) and table.may_be_short:
            short.append(where)
            continue
        # The readers of the published files ignore extra cells; in a user's own
        # file they show that a text holds the delimiter.
        if len(cells) < len(names) or (len(cells) > len(names) and not table.columns):
            raise UserError(
                f"{where}: the row has {len(cells)} columns, and the first line has "
                f"{len(names)}."
            )
        yield where, dict(zip(names, cells, strict=False))
    if short:
        logging.warning(
            "%d rows with too few columns are left out; the first is %s.",
            len(short),
            short[0],
        )


def _check_names(names: Sequence[Any], where: str, table: FileLayout) -> None:
    """Refuses a user's own file that gives two columns the same name."""
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None and not table.columns:
        raise UserError(f"{where}: two columns are named {twice!r}; rename one.")


_READERS = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl}


def _renamed(
    cells: Mapping[Any, Any], table: FileLayout, where: str, optional: str
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for ours, theirs in table.columns.items():
        names = theirs if isinstance(theirs, tuple | list) else [theirs]
        missing = [name for name in names if name not in cells]
        if missing and ours != optional:
            raise _no_column(where, missing[0], cells)
        if missing:
            continue
        values = [cells[name] for name in names]
        if isinstance(theirs, list):
            columns[ours] = values
        else:
            columns[ours] = " ".join(values) if isinstance(theirs, tuple) else values[0]
    return columns


def _no_column(where: str, name: Any, columns: Mapping[Any, Any]) -> UserError:
    return UserError(
        f"{where}: there is no column {name!r}; the columns are "
        f"{', '.join(map(str, columns))}."
    )
