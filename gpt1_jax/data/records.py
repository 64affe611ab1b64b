"""Reads text and rows from files: the only place where either is read.

A file holds plain text, or rows: JSON (an object on each line, or a list of them), CSV,
TSV or Parquet. It may be compressed, and in a bucket. Files are read as streams, so
they may be larger than memory; every message names the file and the line.
"""

import bz2
import codecs
import contextlib
import csv
import difflib
import gzip
import io
import itertools
import json
import logging
import lzma
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.files import locate
from gpt1_jax.data.text import brief, refuse_other_content, refuse_other_name
from gpt1_jax.errors import UserError, find_named, from_extra

STANDARD_INPUT = "-"
PIECE_BYTES = 1 << 18
LONGEST = 1 << 26  # characters in a line or a CSV cell: more than any book has
_LONGEST_LIST = 1 << 28  # characters; of JSON, which is held in memory
csv.field_size_limit(LONGEST)  # a cell may have 131,072 characters by default

Rows = Iterator[tuple[str, dict[Any, Any]]]  # where a row is, and its cells by column

# --- bytes: local or in a bucket, compressed or not -----------------------------


def _import_pyarrow(needed_by: str) -> Any:
    with from_extra("text", needed_by, "unpack it"):
        import pyarrow

    return pyarrow


def _open_zstd(file: BinaryIO) -> Any:
    pyarrow = _import_pyarrow("A file compressed by zstd")
    return pyarrow.CompressedInputStream(file, "zstd")


_UNPACK: Mapping[bytes, Callable[[BinaryIO], Any]] = {  # by a file's first bytes
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"(\xb5/\xfd": _open_zstd,
    b"P*M\x18": _open_zstd,  # pzstd's, which begin with a frame to be skipped
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def unpacked_name(name: str) -> str:
    """A file's name in lower case, without the suffix of a compressed file."""
    name = name.lower()
    return name.removesuffix(next(filter(name.endswith, _COMPRESSED), ""))


def check_library(name: str) -> None:
    """Refuses a file that a missing package would read, before any work.

    Raises:
      MissingPackage: naming the package.
    """
    if format_of(name) == "parquet":
        _import_pyarrow(f"{name}, a Parquet file,")
    if name.lower().endswith(".zst"):
        _import_pyarrow(f"{name}, compressed by zstd,")


@contextlib.contextmanager
def open_file(
    source: epath.PathLike, *, or_standard_input: bool = False
) -> Iterator[BinaryIO]:
    """Opens a file that the user names, and unpacks it if it is compressed.

    Args:
      source: the file; with `or_standard_input`, "-" is standard input.
      or_standard_input: whether "-" stands for standard input.

    Raises:
      FileNotFoundError: if the file cannot be read.
      MissingPackage: if it is compressed by zstd, and what reads that is not installed.
    """
    if or_standard_input and source == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        file = locate(str(source)).open("rb")
    except OSError as error:
        another = f", or {STANDARD_INPUT} for standard input" * or_standard_input
        raise FileNotFoundError(
            f"{source} cannot be read ({error.strerror}); name another file{another}."
        ) from error
    with file:
        head = file.read(8)
        file.seek(0)
        hows = (how for mark, how in _UNPACK.items() if head.startswith(mark))
        unpack = next(hows, None)
        yield io.BufferedReader(unpack(file), PIECE_BYTES) if unpack else file


# --- text -----------------------------------------------------------------------


def read_pieces(
    file: BinaryIO, name: str, *, may_be_json: bool = False
) -> Iterator[str]:
    """The text of an open file, in pieces that end where a line does.

    A line of more than half a megabyte is in several.

    Raises:
      UserError: naming the file and its first line that is not UTF-8; or if it is
        damaged, or begins like another kind of file.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8-sig")(), 1
    data = _read(file, name)
    refuse_other_content(data, name, may_be_json=may_be_json)
    while data:
        yield _decode(decoder, data, name, line)
        line += data.count(b"\n")
        data = _read(file, name)
    yield _decode(decoder, data, name, line)


def _read(file: BinaryIO, name: str) -> bytes:
    try:
        return file.read(PIECE_BYTES) + file.readline(PIECE_BYTES)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if getattr(error, "errno", None):  # not what the libraries raise
            raise
        raise UserError(
            f"{name} is damaged or cut short as a compressed file ({error}); fetch or "
            "write it again."
        ) from error


def _decode(decoder: Any, data: bytes, name: str, line: int) -> str:
    try:
        return decoder.decode(data, not data)
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        raise UserError(
            f"{name}:{line}: byte {error.object[error.start]:#04x} is not UTF-8 text. "
            "Convert the file, for example with iconv -f windows-1252 -t utf-8, or "
            "mend that place if the rest is UTF-8."
        ) from error


def split_lines(text: str) -> Iterator[str]:
    r"""Lines with their ends, which are "\n", "\r\n" or "\r" everywhere.

    Other breaks, such as U+2028, do not end a line.
    """
    return io.StringIO(text, newline="")


def read_lines(
    file: BinaryIO, name: str, *, may_be_json: bool = False
) -> Iterator[str]:
    """The lines of an open file with their ends, as `split_lines` divides them.

    Raises:
      UserError: as `read_pieces`, or naming a line that is longer than any book.
    """
    number, begun = 1, ""  # a line that is in several pieces
    for piece in read_pieces(file, name, may_be_json=may_be_json):
        for line in split_lines(piece):
            begun += line
            if line.endswith(("\n", "\r")):
                yield begun
                number, begun = number + 1, ""
            elif len(begun) > LONGEST:
                raise UserError(
                    f"{name}:{number}: the line has more than {LONGEST:,} characters, "
                    "which no text has; leave the file out."
                )
    if begun:
        yield begun


def plain_lines(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Where each line that is not blank is, and the line without its end.

    Raises:
      UserError: naming a line with half of a character.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            check_encodable(line, where := f"{name}:{number}")
            yield where, line.rstrip("\r\n")


# --- rows -----------------------------------------------------------------------

FORMATS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **{".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"},
}


def format_of(name: str) -> str:
    """The format of rows in a file, by its name; "" if it is none of `FORMATS`."""
    return FORMATS.get(epath.Path(unpacked_name(name)).suffix, "")


def read_rows(
    file: BinaryIO,
    name: str,
    format_name: str,
    *,
    column: str = "",
    header: bool = True,
    as_published: bool = False,
    skip_short: bool = False,
) -> Rows:
    """Reads the rows of an open file, one at a time.

    For example, the words of a table:

        with open_file(source) as file:
            for where, cells in read_rows(file, source, "csv"):
                word = require_column(cells, "word", where)

    Args:
      file: a binary file.
      name: the file's name, for messages.
      format_name: "json", an object on each line or a list of objects; "csv"; "tsv",
        which has no quotes; or "parquet". See `FORMATS`.
      column: the only column that is used; the others may hold anything.
      header: whether the first line of a table names its columns. If not, they are
        numbered from 0.
      as_published: whether rows may have more cells than the first line, which are
        ignored, and columns may share a name. In a user's own file, these are errors:
        a text holds the delimiter, or a column would be lost.
      skip_short: whether rows with too few cells are left out, with one warning.

    Yields:
      Where the row is, "FILE:LINE" with lines counted from 1, or its place in a list,
      to begin a message with; and its cells by column. Blank lines are passed over.

    Raises:
      UserError: naming file and line of a row that cannot be read: text that is not
        UTF-8, broken JSON or CSV, half of a character, or the wrong number of cells.
    """
    if format_name == "parquet":
        named = f"leave {name} out"
        return find_named("gpt1_jax.data.parquet:read_rows", name, named)(
            file, name, column
        )
    lines = read_lines(file, name, may_be_json=format_name == "json")
    if format_name == "json":
        return _read_json(lines, name, column)
    cells = _csv_rows(lines, name) if format_name == "csv" else _tsv_rows(lines)
    return _read_table(cells, name, header, as_published, skip_short)


def read_input(source: str, content: str) -> Iterator[tuple[str, str | dict[str, Any]]]:
    """Reads users' input to a model: plain lines, or rows with columns.

    Args:
      source: a file, or "-" for standard input. A file of `FORMATS` holds rows, any
        other plain lines. Standard input does too, unless it begins with "{": then it
        holds JSON.
      content: the name of a line in messages, such as "example".

    Yields:
      Where a line or row is, and the line without its end, or the cells by column.
      Blank lines are passed over.

    Raises:
      FileNotFoundError: if the file cannot be read.
      UserError: naming a line that cannot be read; if there is none; or if the file is
        neither rows nor plain text.
    """
    name, format_name = source, format_of(source)
    with open_file(source, or_standard_input=True) as file:
        if source == STANDARD_INPUT:
            name = "standard input"
            begin = file.peek(1 << 12).removeprefix(codecs.BOM_UTF8).lstrip()
            format_name = "json" * begin.startswith(b"{")
        if format_name:
            rows: Iterator[Any] = read_rows(file, name, format_name)
        else:
            refuse_other_name(name)
            rows = plain_lines(read_lines(file, name), name)
        first = next(rows, None)
        if first is None:
            raise UserError(f"{name} holds no {content}.")
        yield from itertools.chain([first], rows)


def read_texts(
    path: epath.Path,
    key: str,
    field: str,
    *,
    note_size: Callable[[int], None] | None = None,
) -> Iterator[str]:
    """The text of a file in pieces: of plain text, or of one column of its rows.

    Args:
      path: the file.
      key: the configuration key that names it, for messages.
      field: the column, a newline after each row; if empty, all files are plain text.
      note_size: told at the end how many bytes the file has, unpacked.

    Raises:
      UserError: as `read_pieces` and `read_rows`, or naming the row without text there.
    """
    name = str(path)
    with open_file(path) as file:
        format_name = format_of(name) if field else ""
        if not format_name:
            for piece in read_pieces(file, name, may_be_json=not field):
                if "\r" in piece:
                    piece = piece.replace("\r\n", "\n").replace("\r", "\n")
                yield piece
        else:
            for where, cells in read_rows(file, name, format_name, column=field):
                text = cells.get(field)
                if field not in cells:
                    raise UserError(missing_field(where, field, cells, key))
                if not isinstance(text, str):
                    raise UserError(
                        f"{where}: the field {field!r} is {brief(text)}, not text."
                    )
                yield text + "\n"
        if note_size:
            note_size(file.tell())


def missing_field(where: str, field: str, there: Iterable[Any], key: str = "") -> str:
    """The message on a row or file of training text that lacks a field."""
    way_out = "; leave the file out" * bool(key)
    if key.startswith("config.data."):
        way_out = "; name the text's field with --config.data.text_field=NAME"
    return (
        f"{where}: there is no field {field!r}; it has "
        f"{', '.join(map(repr, there)) or 'none':.200}{way_out}."
    )


# --- JSON -----------------------------------------------------------------------


def _read_json(lines: Iterator[str], name: str, column: str) -> Rows:
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
        if size > _LONGEST_LIST:
            raise UserError(
                f"{name} is a list of over {_LONGEST_LIST >> 20} MB; write its objects "
                f"on lines, for example with jq -c '.[]' {name}"
            )
    return _parse_json("".join(parts), name)


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
    return _check_object(value, where, column, may_be_broken="\\u" in text)


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where}: this JSON is nested too deeply.") from error
    except ValueError as error:  # also of numbers with more than 4,300 digits
        raise UserError(f"{where}: this is not JSON: {error}.") from error


def _check_object(
    value: Any, where: str, column: str, may_be_broken: bool = True
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: this is {brief(value)}, not a JSON object: {{...}}.")
    if may_be_broken:  # an escape may stand for half of a character
        used = value.get(column) if column else value
        check_encodable(json.dumps(used, ensure_ascii=False), where)
    return value


# --- tables ---------------------------------------------------------------------


def _csv_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    first = next(lines, "")
    reader = csv.reader(itertools.chain([first], lines), strict=True)
    line = 1  # where the row starts: quoted cells may hold line ends
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        hint = _separator_hint([first]) if line == 1 and "," not in first else ""
        raise UserError(f"{name}:{line}: this is not CSV: {error}.{hint}") from error


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
            names = row if header else range(len(row))
            if len(set(names)) < len(names) and not as_published:
                twice = next(each for each in names if names.count(each) > 1)
                problem = f"two columns are named {twice!r}; rename one"
                raise UserError(f"{where}: {problem}.")
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
    if short:
        logging.warning(
            "%d rows with too few columns are left out; the first is %s.",
            len(short),
            short[0],
        )


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


def require_column(cells: Mapping[Any, Any], column: Any, where: str) -> Any:
    """The cell of a column.

    Raises:
      UserError: if the row has no such column, naming those it has.
    """
    if column not in cells:
        near = difflib.get_close_matches(str(column), map(str, cells), 1, cutoff=0.85)
        raise UserError(
            f"{where}: there is no column {column!r}; the columns are "
            f"{', '.join(map(str, cells))}."
            f"{_separator_hint(cells) or ''.join(f' Did you mean {n}?' for n in near)}"
        )
    return cells[column]


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
