"""Reads rows from files of JSON, CSV, TSV and Parquet; no other module does.

JSON is an object on each line, or a list of them. Files are read row by row, so they
may be larger than memory; every message names the file and the line.
"""

import collections
import csv
import datetime
import decimal
import difflib
import functools
import itertools
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.text import brief, refuse_other_name
from gpt1_jax.data.text_files import (
    FORMATS,
    LONGEST_LINE,
    LONGEST_LIST,
    STANDARD_INPUT,
    check_can_unpack,
    format_of,
    open_file,
    read_lines,
    read_pieces,
)
from gpt1_jax.errors import UserError, find_named

_BEGINS_JSON = re.compile(r"\s*(\{|\[\s*(\{|$))")  # its first line
_PIECE_CHARACTERS = 1 << 16  # of training text; many small pieces are slow

Rows = Iterator[tuple[str, dict[Any, Any]]]  # where a row is, and its cells by column


def read_rows(
    source: epath.PathLike,
    format_name: str = "",
    *,
    column: str = "",
    header: bool = True,
    as_published: bool = False,
    skip_short: bool = False,
) -> Rows:
    """Reads the rows of a file, one at a time.

    For example, the words of a table:

        for where, cells in read_rows(source):
            word = require_column(cells, "word", where)

    Args:
      source: the file, local or in a bucket, compressed or not.
      format_name: "json", an object on each line or a list of objects; "csv"; "tsv",
        which has no quotes; or "parquet". The default is the format that the file's
        name says: see `FORMATS`.
      column: the only column that is used; the others may hold anything.
      header: whether the first line of a table names its columns. If not, they are
        numbered from 0.
      as_published: whether rows may have more cells than the first line, which are
        ignored, and columns may share a name. In a user's own file, these are errors:
        a text holds the delimiter, or a column would be lost.
      skip_short: whether rows with too few cells are left out, with one warning.

    Yields:
      Where the row is, "FILE:LINE" with lines counted from 1, or its place in a list
      or a Parquet file, to begin a message with; and its cells by column, whose names
      have no blanks around them. Blank lines are passed over.

    Raises:
      FileNotFoundError: if the file cannot be read.
      UserError: naming file and line of a row that cannot be read: text that is not
        UTF-8, broken JSON or CSV, half of a character, or the wrong number of cells.
    """
    name = str(source)
    if not format_name:
        check_can_read(source)
        format_name = format_of(name)
    if format_name == "parquet":
        yield from _parquet(name).read_rows(name, column)
        return
    with open_file(source) as file:
        lines = read_lines(file, name, may_be_json=format_name == "json")
        if format_name == "json":
            yield from _read_json(lines, name, column)
        else:
            cells = _csv_rows(lines, name) if format_name == "csv" else _tsv_rows(lines)
            yield from _read_table(cells, name, header, as_published, skip_short)


def check_can_read(path: epath.PathLike) -> None:
    """Refuses a file that holds no rows or that no package here reads, by its name.

    Raises:
      MissingPackage: naming the package.
      UserError: naming the suffixes of files of rows.
    """
    name = str(path)
    check_can_unpack(name)
    if not format_of(name):
        raise UserError(
            f"{name} ends in {epath.Path(name).suffix!r}; rows are read from "
            f"{', '.join(FORMATS)}, compressed or not."
        )
    if format_of(name) == "parquet":
        _parquet(name)


def _parquet(name: str) -> Any:
    return find_named("gpt1_jax.data.parquet", f"{name}, a Parquet file,")


def read_input(source: str, content: str) -> Iterator[tuple[str, str | dict[str, Any]]]:
    """Reads users' input to a model: plain lines, or rows with columns.

    Args:
      source: a file, or "-" for standard input. A file of `FORMATS` holds rows, any
        other plain lines. Standard input holds plain lines, unless it begins with an
        object or a list of them: then it is JSON.
      content: the name of a line in messages, such as "example".

    Yields:
      Where a line or row is, and the line without its end, or the cells by column.
      Blank lines are passed over.

    Raises:
      FileNotFoundError: if the file cannot be read.
      UserError: naming a line that cannot be read; if there is none; or if the file is
        neither rows nor plain text.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    rows: Iterator[Any] = (
        read_rows(source) if format_of(source) else _plain_rows(source)
    )
    first = next(rows, None)
    if first is None:
        raise UserError(f"{name} holds no {content}.")
    yield from itertools.chain([first], rows)


def _plain_rows(source: str) -> Iterator[Any]:
    """The lines of a file, or of standard input, which may hold JSON."""
    may_be_json = source == STANDARD_INPUT
    name = "standard input" if may_be_json else source
    refuse_other_name(name)
    with open_file(source, or_standard_input=True) as file:
        lines = read_lines(file, name, may_be_json=may_be_json)
        begun: list[str] = []  # up to the first line that is not blank
        while not (begun and begun[-1].strip()) and (line := next(lines, "")):
            begun.append(line)
        is_json = may_be_json and _BEGINS_JSON.match("".join(begun))
        lines = itertools.chain(begun, lines)
        yield from _read_json(lines, name) if is_json else plain_lines(lines, name)


def plain_lines(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Where each line that is not blank is, and the line without its end.

    Raises:
      UserError: naming a line with half of a character.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            check_encodable(line, where := f"{name}:{number}")
            yield where, line.rstrip("\r\n")


# --- training text --------------------------------------------------------------


def read_texts(
    path: epath.PathLike, key: str, field: str, skip_empty: bool = False
) -> Iterator[str]:
    """The text in one column of a file's rows, a newline after each, in pieces.

    Args:
      path: the file, whose name says its format: see `FORMATS`.
      key: the configuration key that names it, for messages.
      field: the column.
      skip_empty: whether rows without text there are passed over, with one warning.

    Raises:
      UserError: as `read_rows`, or naming the row that has no text there.
    """
    texts: list[str] = []
    size, num_empty, first_empty = 0, 0, ""
    for where, cells in read_rows(path, column=field):
        if field not in cells:
            raise UserError(_missing_field(where, field, cells, key))
        text = cell_text(cells[field], field, where)
        if skip_empty and not text.strip():
            num_empty, first_empty = num_empty + 1, first_empty or where
            continue
        if cells[field] is None:
            raise UserError(
                f"{where}: the field {field!r} is empty. Leave the row out, or pass "
                "over such rows with --config.data.skip_empty=True."
            )
        texts.append(text + "\n")
        size += len(texts[-1])
        if size >= _PIECE_CHARACTERS:
            yield "".join(texts)
            texts, size = [], 0
    yield "".join(texts)
    warn_left_out(num_empty, "without text", first_empty)


@functools.cache
def warn_left_out(number: int, lacking: str, first: str) -> None:
    """Warns of rows that are left out, unless it did before: text is read twice.

    Args:
      number: how many; nothing is said of none.
      lacking: why, as "without text".
      first: where the first is.
    """
    if number:
        rows = "one row" if number == 1 else f"{number:,} rows"
        logging.warning("Left out %s %s; the first is %s.", rows, lacking, first)


def _missing_field(where: str, field: str, there: Iterable[Any], key: str) -> str:
    way_out = "leave the file out"
    if key.startswith("config.data."):
        way_out = "name the text's field with --config.data.text_field=NAME"
    return (
        f"{where}: there is no field {field!r}; it has "
        f"{', '.join(map(repr, there)) or 'none':.200}; {way_out}."
    )


# --- JSON -----------------------------------------------------------------------


def _read_json(lines: Iterator[str], name: str, column: str = "") -> Rows:
    """The objects on lines that are not blank, or in one list."""
    rows = ((f"{name}:{n}", line) for n, line in enumerate(lines, 1) if line.strip())
    begin = next(rows, None)
    if begin and begin[1].lstrip().startswith("["):
        for number, value in enumerate(_read_list(begin[1], lines, name), 1):
            where = f"{name}, object {number} of the list"
            yield where, _check_object(value, where, column)
        return
    for where, line in itertools.chain([begin] if begin else (), rows):
        yield where, parse_json_object(line, where, column)


def _read_list(begin: str, lines: Iterator[str], name: str) -> list[Any]:
    parts, size = [begin], len(begin)
    for line in lines:
        parts.append(line)
        size += len(line)
        if size > LONGEST_LIST:
            raise UserError(
                f"{name} is a list of over {LONGEST_LIST >> 20} MB; write its objects "
                f"on lines, for example with jq -c '.[]' {name}"
            )
    found: list[Any] = _parse_json("".join(parts), name)
    return found


def parse_json_object(text: str, where: str, column: str = "") -> dict[str, Any]:
    """Reads a JSON object.

    Args:
      text: the JSON.
      where: its place, which begins each message.
      column: the only column that is used; the others may hold halves of characters.

    Raises:
      UserError: if it is something else, or holds half of a character.
    """
    value = _parse_json(text, where)
    may_be_half = "\\ud" in text or "\\uD" in text  # \ud800 to \udfff are halves
    return _check_object(value, where, column, may_be_half)


def read_json_object(path: epath.PathLike) -> tuple[str, dict[str, Any]]:
    """The only JSON object of a file, and where it is.

    Raises:
      FileNotFoundError, UserError: as `read_rows`.
    """
    where = f"{path}:1"
    with open_file(path) as file:
        text = "".join(read_pieces(file, str(path), may_be_json=True))
    return where, parse_json_object(text, where)


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where}: this JSON is nested too deeply.") from error
    except ValueError as error:  # also of numbers with more than 4,300 digits
        raise UserError(f"{where}: this is not JSON: {error}.") from error


def _check_object(
    value: Any, where: str, column: str, may_be_half: bool = True
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: this is {brief(value)}, not a JSON object: {{...}}.")
    names = list(map(str.strip, value))
    if names != list(value):
        check_names(names, where)
        value = dict(zip(names, value.values(), strict=True))
    if may_be_half:  # of a character
        used = value.get(column) if column else value
        check_encodable(json.dumps(used, ensure_ascii=False), where)
    return value


# --- tables ---------------------------------------------------------------------


def _csv_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    first = next(lines, "")
    reader = csv.reader(itertools.chain([first], lines), strict=True)
    line = 1  # where the row starts: quoted cells may hold line ends
    try:
        while (row := _next_row(reader)) is not None:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        hint = _separator_hint([first]) if line == 1 and "," not in first else ""
        raise UserError(f"{name}:{line}: this is not CSV: {error}.{hint}") from error


def _next_row(reader: Iterator[list[str]]) -> list[str] | None:
    """The next row; by default a cell may have no more than 131,072 characters."""
    before = csv.field_size_limit(LONGEST_LINE)  # for all readers in all threads
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def _tsv_rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        if text := line.rstrip("\r\n"):
            yield number, text.split("\t")


def _read_table(
    rows: Iterator[tuple[int, list[str]]],
    name: str,
    header: bool,
    as_published: bool,
    skip_short: bool,
) -> Rows:
    names: Sequence[Any] = ()
    short: list[str] = []
    for number, row in rows:
        where = f"{name}:{number}"
        if not names:
            names = [each.strip() for each in row] if header else range(len(row))
            if not as_published:
                check_names(names, where)
            if header:
                continue
        if len(row) < len(names) and skip_short:
            short.append(where)
        elif len(row) == len(names) or (len(row) > len(names) and as_published):
            yield where, dict(zip(names, row, strict=False))
        else:
            raise UserError(
                f"{where}: the row has {len(row)} columns, and the first line has "
                f"{len(names)}.{_separator_hint(names)}"
            )
    warn_left_out(len(short), "with too few columns", short[0] if short else "")


def check_names(names: Sequence[Any], where: str) -> None:
    """Refuses two columns of one name, one of which would be lost.

    Raises:
      UserError: naming the columns.
    """
    if len(set(names)) < len(names):
        twice, _ = collections.Counter(names).most_common(1)[0]
        raise UserError(f"{where}: two columns are named {twice!r}; rename one.")


def _separator_hint(columns: Iterable[Any]) -> str:
    """A hint if the only column of a table seems to be several; "" otherwise."""
    name, *others = [*map(str, columns)] or [""]
    for separator, what, way_out in (
        ("\t", "tabs", "end its name in .tsv"),
        (";", "semicolons", "save it with commas, and its numbers with points"),
        (",", "commas", "end its name in .csv"),
    ):
        if separator in name and not others:
            return f" The table's columns seem to be separated by {what}: {way_out}."
    return ""


# --- cells ----------------------------------------------------------------------

_PLAIN = (bool, int, float, decimal.Decimal, datetime.date, datetime.time)


def require_column(cells: Mapping[Any, Any], column: Any, where: str) -> Any:
    """The cell of a column.

    Raises:
      UserError: if the row has no such column, naming those it has.
    """
    if column not in cells:
        near = difflib.get_close_matches(str(column), map(str, cells), 1, cutoff=0.85)
        raise UserError(
            f"{where}: there is no column {column!r}; the columns are "
            f"{', '.join(map(str, cells)):.1000}."
            f"{_separator_hint(cells) or ''.join(f' Did you mean {n}?' for n in near)}"
        )
    return cells[column]


def cell_text(value: Any, column: Any, where: str) -> str:
    """The text of a cell, whatever the file's format.

    Numbers, bools and dates are written as Python does, and as in a CSV file that
    pandas made: "3", "2.5", "True", "2018-06-11". A missing value or NaN becomes "".

    Raises:
      UserError: if it is anything else, such as a list.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if not isinstance(value, _PLAIN):
        raise UserError(f"{where}: column {column!r} holds {brief(value)}, not text.")
    return str(value)


def read_number(cells: Mapping[Any, Any], column: Any, where: str) -> float | None:
    """The number in a cell; None if the cell is empty or says NA.

    Raises:
      UserError: if the row has no such column, or the cell holds something else.
    """
    cell = require_column(cells, column, where)
    if cell is None or str(cell).strip() in ("", "NA", "NaN", "nan"):
        return None
    number = parse_number(cell)
    if math.isnan(number):
        raise UserError(
            f"{where}: column {column!r} holds {brief(cell)}, not a number such as 3 "
            "or 2.5, with a point and no comma."
        )
    return number


def parse_number(value: Any) -> float:
    """The finite number that a cell holds, as text or as a number; NaN if none."""
    try:
        odd = not str(value).isascii() or "_" in str(value)  # which Python takes
        number = math.nan if odd or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
