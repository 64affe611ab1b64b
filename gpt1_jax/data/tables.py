"""Reads and writes rows: JSON lines, CSV, TSV, and arrays in .npz and .h5.

Files are read and written row by row, so they may be larger than memory.
"""

import abc
import codecs
import contextlib
import csv
import difflib
import io
import itertools
import json
import logging
import math
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.documents import decode
from gpt1_jax.data.files import append_to, locate, whole_file
from gpt1_jax.data.json_lines import (
    RowsRead,
    read_json,
    read_json_lines,
    read_texts,
    whole_lines,
)
from gpt1_jax.data.text import (
    brief,
    encoding_hint,
    refuse_binary,
    refuse_json,
    refuse_other_name,
    unpacked_name,
)
from gpt1_jax.errors import UserError, from_extra

# --- rows of files: JSON lines and tables -------------------------------------

FORMATS = {".jsonl": "jsonl", ".tsv": "tsv", ".csv": "csv"}  # by a file's suffix
STANDARD_INPUT = "-"
_MOST_CHARACTERS = 1 << 24  # in a CSV cell: a whole book; not a file after a quote


def open_input(
    source: str, *, or_standard_input: bool = False
) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    """Opens a file that the user names.

    Args:
      source: the file; with `or_standard_input`, "-" is standard input.
      or_standard_input: whether "-" stands for standard input.

    Raises:
      FileNotFoundError: if the file cannot be read.
    """
    if or_standard_input and source == STANDARD_INPUT:
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return locate(source).open("rb")
    except OSError as error:
        another = f", or {STANDARD_INPUT} for standard input" * or_standard_input
        raise FileNotFoundError(
            f"{source} cannot be read ({error.strerror}); name another file{another}."
        ) from error


def read_input(source: str, content: str) -> Iterator[tuple[str, str | dict[str, Any]]]:
    """Reads users' input to a model: plain lines, or rows with columns.

    Args:
      source: a file, or "-" for standard input. A `.jsonl` or `.ndjson` file holds a
        JSON object on each line, a `.json` file may also be a list of them, and a
        `.tsv` or `.csv` file has a header. Any other file holds plain lines. Standard
        input does too, unless it begins with "{": then it holds JSON lines.
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
    suffix = epath.Path(source).suffix.lower()
    is_empty = True
    with open_input(source, or_standard_input=True) as file:
        if source == STANDARD_INPUT:
            file, format_name = _detect_json(file)
        else:
            format_name = {**FORMATS, ".json": "json", ".ndjson": "jsonl"}.get(suffix)
        rows: Iterator[tuple[str, str | dict[str, Any]]]
        if format_name:
            rows = read_rows(file, name, format_name)
        else:
            refuse_other_name(name)
            rows = plain_lines(refuse_json(text_lines(file, name), name), name)
        for row in rows:
            is_empty = False
            yield row
    if is_empty:
        raise UserError(f"{name} holds no {content}.")


def plain_lines(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Where each line that is not blank is, and the line without its end.

    Raises:
      UserError: naming a line with half of a character.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}:{number}"
            check_encodable(line, where)
            yield where, line.rstrip("\r\n")


def _detect_json(lines: Iterable[bytes]) -> tuple[Iterable[bytes], str | None]:
    """The same lines, and "jsonl" if they begin with "{"."""
    lines = iter(lines)
    first: list[bytes] = []  # up to the first line that is not blank
    for line in lines:
        first.append(line)
        if line.strip():
            break
    begin = first[-1].removeprefix(codecs.BOM_UTF8).lstrip() if first else b""
    return itertools.chain(first, lines), "jsonl" if begin[:1] == b"{" else None


def read_rows(
    file: Iterable[bytes],
    name: str,
    format_name: str,
    *,
    header: bool = True,
    as_published: bool = False,
    skip_short: bool = False,
) -> RowsRead:
    """Reads the rows of an open file, one at a time. All files of rows are read here.

    For example, the words of a table:

        with open_input(source) as file:
            for where, cells in read_rows(file, source, "csv"):
                word = require_column(cells, "word", where)

    Args:
      file: a binary file, or anything else that yields its lines.
      name: the file's name, for messages.
      format_name: "jsonl", an object on each line; "json", the same or a list of
        objects; "csv"; or "tsv", which has no quotes. See `FORMATS`.
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
    lines = text_lines(file, name)
    if format_name == "jsonl":
        return read_json_lines(lines, name)
    if format_name == "json":
        return read_json(lines, name)
    return _read_table(lines, name, format_name, header, as_published, skip_short)


def read_field(path: epath.Path, key: str, field: str) -> Iterator[str]:
    """The text column of a CSV or TSV file, a newline after each row.

    Args:
      path: the file, compressed or not; a TSV file's name says that it is one.
      key: the configuration key that names it, for messages.
      field: the column.

    Raises:
      UserError: as `read_rows`, or if there is no such column.
    """
    kind = "tsv" if unpacked_name(path.name).endswith(".tsv") else "csv"
    lines = whole_lines(decode(path), str(path))
    return read_texts(_read_table(lines, str(path), kind), field, key)


def _read_table(
    lines: Iterator[str],
    name: str,
    format_name: str,
    header: bool = True,
    as_published: bool = False,
    skip_short: bool = False,
) -> RowsRead:
    """The rows of a table's lines, as `read_rows` says."""
    rows = _csv_rows(lines, name) if format_name == "csv" else _tsv_rows(lines)
    names: Sequence[Any] = ()
    first_short, num_short = "", 0
    for number, row in rows:
        where = f"{name}:{number}"
        if not names:
            names = row if header else range(len(row))
            if not as_published:
                _check_names(names, where)
            if header:
                continue
        if len(row) < len(names) and skip_short:
            first_short, num_short = first_short or where, num_short + 1
            continue
        if len(row) < len(names) or (len(row) > len(names) and not as_published):
            raise UserError(
                f"{where}: the row has {len(row)} columns, and the first line has "
                f"{len(names)}.{_separator_hint(names)}"
            )
        yield where, dict(zip(names, row, strict=False))
    if num_short:
        logging.warning(
            "%d rows with too few columns are left out; the first is %s.",
            num_short,
            first_short,
        )


def _check_names(names: Sequence[Any], where: str) -> None:
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(f"{where}: two columns are named {twice!r}; rename one.")


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
    before = csv.field_size_limit(_MOST_CHARACTERS)  # for all readers in all threads
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


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


def _tsv_rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        if text := line.rstrip("\r\n"):
            yield number, text.split("\t")


def text_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of an open file with their ends, as `split_lines` divides them.

    Args:
      file: parts of the file that end where a line does, as a binary file yields them.
      name: the file's name, for messages.

    Raises:
      UserError: naming the file and the first line that is not UTF-8.
    """
    number, is_ascii = 0, True
    for part in file:
        if not number:
            refuse_binary(part, name)
        try:
            text = part.decode("utf-8" if number else "utf-8-sig")
        except UnicodeDecodeError as error:
            number += 1 + error.object.count(b"\r", 0, error.start)
            raise UserError(
                f"{name}:{number}: byte {error.object[error.start]:#04x} is not UTF-8 "
                f"text. {encoding_hint(error, after_utf8=not is_ascii)}"
            ) from error
        is_ascii = is_ascii and part.isascii()
        for line in split_lines(text):
            number += 1
            yield line


def split_lines(text: str) -> Iterator[str]:
    r"""Lines with their ends, which are "\n", "\r\n" or "\r" everywhere.

    Other breaks, such as U+2028, do not end a line.
    """
    return io.StringIO(text, newline="")


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
        is_number = not math.isnan(parse_number(str(cell).replace(",", "")))
        hint = " Write decimals with a point, and write no comma." if is_number else ""
        raise UserError(
            f"{where}: column {column!r} holds {brief(cell)}, not a number such as 3 "
            f"or 2.5.{hint}"
        )
    return number


_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_number(value: Any) -> float:
    """The number that a cell holds, as text or as a number; NaN if it holds none.

    Text is a decimal number in ASCII, with or without an exponent. Python's `float`
    takes more: `1_000`, digits of other scripts, infinity.
    """
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        return math.nan
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


# --- files of arrays: .npz, which NumPy reads, and .h5, HDF5's ----------------

Rows = np.ndarray | list[str]
ATTRIBUTES = "attributes"  # the array of an .npz file that holds them
_CHUNK_BYTES = 1 << 18  # HDF5 reads and writes this much at a time
_COPY_BYTES = 1 << 22
_HELD_BYTES = 1 << 22  # of all arrays, buffered before they are written
_TEXT_BYTES = 100  # rough size of a text in a list, besides its characters


class ArrayWriter(abc.ABC):
    """A file of arrays, open for writing."""

    def __init__(self) -> None:
        self._held: dict[str, list[Rows]] = {}
        self._held_bytes = 0

    def append(self, name: str, rows: Rows) -> None:
        """Adds rows to an array, which the first rows create.

        Args:
          name: the array's name.
          rows: [number, ...], with the shape and type of earlier rows; or texts.
        """
        if isinstance(rows, np.ndarray):
            self._held_bytes += rows.nbytes
        else:
            rows = [row.replace("\0", "\ufffd") for row in rows]  # HDF5 takes no NUL
            self._held_bytes += sum(_TEXT_BYTES + 4 * len(row) for row in rows)
        self._held.setdefault(name, []).append(rows)
        if self._held_bytes >= _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the rows buffered so far; writing many at once is faster."""
        for name, parts in self._held.items():
            if isinstance(parts[0], list):
                self._write(name, [row for part in parts for row in part])
            else:
                self._write(name, np.concatenate(parts))
        self._held.clear()
        self._held_bytes = 0

    @abc.abstractmethod
    def _write(self, name: str, rows: Rows) -> None: ...


@contextlib.contextmanager
def open_arrays(path: Path, attributes: Mapping[str, Any]) -> Iterator[ArrayWriter]:
    """A new file of arrays that takes its name once it is whole, or vanishes.

    Args:
      path: a local file, .npz or .h5. One that is there is replaced.
      attributes: numbers, texts and lists of them. In an .h5 file they are its
        attributes, in an .npz file JSON in an array named `ATTRIBUTES`.
    """
    writer: _NpzWriter | _Hdf5Writer
    with whole_file(path) as partial:
        if path.suffix == ".h5":
            with _h5py().File(partial, "w") as file:
                file.attrs.update(attributes)
                writer = _Hdf5Writer(file)
                yield writer
                writer.flush()
        else:
            writer = _NpzWriter(partial.parent)
            yield writer
            writer.flush()
            writer.pack(partial, attributes)


def check_library(path: Path) -> None:
    """Refuses an .h5 file if h5py is not installed, before any work.

    Raises:
      MissingPackage: naming the package.
    """
    if path.suffix == ".h5":
        _h5py()


class _NpzWriter(ArrayWriter):
    """Keeps each array in a file of its own until its size is known."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def _write(self, name: str, rows: Rows) -> None:
        with append_to(self._raw(name)) as file:
            if isinstance(rows, np.ndarray):
                dtype, shape = rows.dtype, rows.shape[1:]
                file.write(np.ascontiguousarray(rows).data)
            else:
                longest = max(map(len, rows), default=0)
                dtype, shape = np.dtype(f"<U{max(1, longest)}"), ()
                file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
        count, *_ = self._shapes.get(name, (0,))
        self._shapes[name] = count + len(rows), *shape
        self._dtypes[name] = np.promote_types(dtype, self._dtypes.get(name, dtype))

    def pack(self, path: Path, attributes: Mapping[str, Any]) -> None:
        """Makes the archive of all arrays."""
        with zipfile.ZipFile(path, "w") as archive:
            for name in self._shapes:
                self._copy(name, archive)
            text = json.dumps(dict(attributes), ensure_ascii=False)
            with archive.open(f"{ATTRIBUTES}.npy", "w") as member:
                np.lib.format.write_array(member, np.array(text), allow_pickle=False)

    def _copy(self, name: str, archive: zipfile.ZipFile) -> None:
        dtype = self._dtypes[name]
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": self._shapes[name],
        }
        text = dtype.kind == "U"
        member = zipfile.ZipInfo(f"{name}.npy")
        # Texts are padded to the longest; states are noise to a compressor.
        member.compress_type = zipfile.ZIP_DEFLATED if text else zipfile.ZIP_STORED
        with (
            self._raw(name).open("rb") as file,
            archive.open(member, "w", force_zip64=True) as target,
        ):
            np.lib.format.write_array_header_2_0(target, header)
            if text:
                for line in file:
                    target.write(np.array(json.loads(line), dtype).tobytes())
            else:
                shutil.copyfileobj(file, target, _COPY_BYTES)
        self._raw(name).unlink()  # the archive takes its space on the disk

    def _raw(self, name: str) -> Path:
        """The file of an array, by its number: names may hold any character."""
        number = self._numbers.setdefault(name, len(self._numbers))
        return self._folder / f"{number}.rows"


class _Hdf5Writer(ArrayWriter):
    """Appends to resizable datasets."""

    def __init__(self, file: Any):
        super().__init__()
        self._file = file

    def _write(self, name: str, rows: Rows) -> None:
        if name not in self._file:
            self._create(name, rows)
        dataset = self._file[name]
        count = len(dataset)
        dataset.resize(count + len(rows), axis=0)
        dataset[count:] = rows

    def _create(self, name: str, rows: Rows) -> None:
        if isinstance(rows, np.ndarray):
            dtype, shape = rows.dtype, rows.shape[1:]
        else:
            dtype, shape = _h5py().string_dtype(), ()
        together = max(1, _CHUNK_BYTES // (dtype.itemsize * int(np.prod(shape))))
        sizes = {"shape": (0, *shape), "maxshape": (None, *shape)}
        self._file.create_dataset(name, dtype=dtype, chunks=(together, *shape), **sizes)


def _h5py() -> Any:
    with from_extra("hdf5", "An .h5 file", "write an .npz file"):
        import h5py
    return h5py


# --- tables of columns: .csv, .tsv and .npz -------------------------------------

_GAPS = re.compile(r"[\t\r\n]")
Row = Mapping[str, Any]  # by column; all rows of a table have the same columns


class TableWriter(abc.ABC):
    """A table, open for writing."""

    @abc.abstractmethod
    def append(self, rows: Sequence[Row]) -> None:
        """Adds rows, at least one."""


@contextlib.contextmanager
def open_table(
    path: Path, kinds: Mapping[str, type], attributes: Mapping[str, Any]
) -> Iterator[TableWriter]:
    """A new table that takes its name once it is whole, or vanishes.

    Args:
      path: a local file. In a `.csv` or `.tsv`, NaN is an empty cell, and fractions
        have six digits; a `.tsv` has no quotes, and a space for each tab or line end in
        a cell. In an `.npz`, each column is an array.
      kinds: int or float for the columns of numbers; others are texts in an `.npz`.
      attributes: as in `open_arrays`; only an `.npz` keeps them.
    """
    if path.suffix == ".npz":
        with open_arrays(path, attributes) as arrays:
            yield _ArrayTable(arrays, kinds)
    else:
        with (
            whole_file(path) as partial,
            io.TextIOWrapper(append_to(partial), "utf-8", newline="") as file,
        ):
            yield _TextTable(file, path.suffix)


def format_table(rows: Iterable[Row], suffix: str) -> str:
    """The text of a `.csv` or `.tsv` file with these rows; "" if there are none."""
    file = io.StringIO()
    _TextTable(file, suffix).append(rows)
    return file.getvalue()


def cell(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6f}"
    if isinstance(value, tuple):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _TextTable(TableWriter):
    """A `.csv` or `.tsv` file: a header, then a line for each row."""

    def __init__(self, file: Any, suffix: str):
        self._file, self._begun = file, False
        # Cells with either character that ends a line of the writer are quoted.
        lines = SimpleNamespace(write=lambda line: file.write(f"{line[:-2]}\n"))
        csv_writer = csv.writer(lines, lineterminator="\r\n")
        self._write = self._write_tsv if suffix == ".tsv" else csv_writer.writerow

    def append(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if not self._begun:
                self._begun = True
                self._write(row)
            self._write(map(cell, row.values()))

    def _write_tsv(self, cells: Iterable[str]) -> None:
        self._file.write("\t".join(_GAPS.sub(" ", each) for each in cells) + "\n")


class _ArrayTable(TableWriter):
    """An `.npz` file: an array for each column."""

    def __init__(self, arrays: ArrayWriter, kinds: Mapping[str, type]):
        self._arrays, self._kinds = arrays, kinds

    def append(self, rows: Sequence[Row]) -> None:
        for name in rows[0]:
            values = [row[name] for row in rows]
            if (kind := self._kinds.get(name)) in (int, float):
                self._arrays.append(name, np.asarray(values, kind))
            else:
                self._arrays.append(name, [cell(value) for value in values])
