"""Records of files: tables of tab- or comma-separated values, JSON lines, RACE."""

import csv
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from gpt1_jax.tasks.task import Record, Table

Rows = Iterator[tuple[str, Mapping[Any, Any]]]  # where, cells by header or position


class MissingData(FileNotFoundError):
    """The data of a split is not where it was looked for."""


def find(folder: epath.Path, pattern: str) -> list[epath.Path]:
    """What `pattern` names below `folder`; it may hold `*`."""
    if "*" in pattern:
        return sorted(folder.glob(pattern)) if folder.is_dir() else []
    return [folder / pattern] if (folder / pattern).exists() else []


def read_table(
    path: epath.Path, table: Table, *, subset: str = "", optional: str = ""
) -> Iterator[Record]:
    """The records of a file, or of a folder of RACE's passages.

    Args:
      path: where the table is.
      table: its format, and what its columns are called; `table.path` is not used.
      subset: the records' subset.
      optional: a column of ours that the file may lack.

    Raises:
      ValueError: naming file and line of a row that cannot be read, or that lacks a
        column.
    """
    if table.format == "race":
        yield from _race(path, subset)
        return
    for where, cells in _ROWS[table.format](path, table):
        columns = _renamed(cells, table, where, optional) if table.columns else cells
        yield Record(columns, where, subset)


def questions(passage: Mapping[str, Any], where: str, subset: str) -> Iterator[Record]:
    """The questions of one of RACE's passages, a record each.

    Args:
      passage: RACE's columns, named as in TensorFlow Datasets.
      where: the passage's place, for messages.
      subset: the records' subset.

    Raises:
      ValueError: if a column is missing, or there are not as many questions as
        options and answers.
    """
    names = ("article", "questions", "options", "answers", "example_id")
    if missing := [name for name in names if name not in passage]:
        raise _no_column(where, missing[0], passage)
    lists = [passage[name] for name in ("questions", "options", "answers")]
    for values in lists:
        if not isinstance(values, list):
            raise ValueError(f"{where}: the passage holds {values!r}, not a list.")
    if len({len(values) for values in lists}) != 1:
        raise ValueError(
            f"{where}: the passage has {len(lists[0])} questions, {len(lists[1])} "
            f"lists of options and {len(lists[2])} answers; there must be as many of "
            "each."
        )
    shared = {name: passage[name] for name in ("article", "example_id")}
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        own = {"question": question, "options": options, "answer": answer}
        yield Record({**shared, **own}, f"{where}, question {number}", subset)


def _race(folder: epath.Path, subset: str) -> Iterator[Record]:
    for path in sorted(folder.glob("*.txt")):
        where = f"{path}:1"
        passage = _json_object("".join(_lines(path)), where)
        named = {("example_id" if k == "id" else k): v for k, v in passage.items()}
        yield from questions(named, where, subset)


def _lines(path: epath.Path) -> Iterator[str]:
    """Lines with their ends; only "\\n" ends one, as a text may hold other breaks."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}:{number}: byte {line[error.start]:#04x} is not UTF-8 "
                    "text. Convert the file, for example with iconv -f latin1 -t utf-8."
                ) from error


def _jsonl(path: epath.Path, _: Table) -> Rows:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, _json_object(line, where)


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: this is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where}: this is {value!r:.60}, not a JSON object: {{...}}.")
    return value


def _tsv(path: epath.Path, table: Table) -> Rows:
    lines = ((n, line.rstrip("\r\n")) for n, line in enumerate(_lines(path), 1))
    return _by_header(path, ((n, t.split("\t")) for n, t in lines if t), table)


def _csv(path: epath.Path, table: Table) -> Rows:
    return _by_header(path, _csv_cells(path), table)


def _csv_cells(path: epath.Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_lines(path), strict=True)
    line = 1  # where the row starts: quoted cells may hold line ends
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}:{line}: this is not CSV: {error}.") from error


def _by_header(
    path: epath.Path, rows: Iterator[tuple[int, list[str]]], table: Table
) -> Rows:
    """Cells by the names in the first line; by position if the table uses those."""
    headless = any(isinstance(name, int) for name in table.columns.values())
    names: Sequence[Any] = ()
    short: list[str] = []
    for number, cells in rows:
        where = f"{path}:{number}"
        if not names:
            names = range(len(cells)) if headless else cells
            if not headless:
                continue
        if len(cells) < len(names) and table.may_be_short:
            short.append(where)
            continue
        # The readers of the published files let further cells be; in a user's own
        # file they show that a text holds the delimiter.
        if len(cells) < len(names) or (len(cells) > len(names) and not table.columns):
            raise ValueError(
                f"{where}: the row has {len(cells)} columns, and the first line has "
                f"{len(names)}."
            )
        yield where, dict(zip(names, cells, strict=False))
    if short:
        logging.warning(
            "%d rows are left out for lack of columns; the first is %s.",
            len(short),
            short[0],
        )


_ROWS = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl}


def _renamed(
    cells: Mapping[Any, Any], table: Table, where: str, optional: str
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


def _no_column(where: str, name: Any, columns: Mapping[Any, Any]) -> ValueError:
    return ValueError(
        f"{where}: there is no column {name!r}; the columns are "
        f"{', '.join(map(str, columns))}."
    )
