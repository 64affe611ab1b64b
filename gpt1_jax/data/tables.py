"""Writes arrays to .npz and .h5 and tables to .csv, .tsv and .npz, row by row.

Also a user's own table with columns added to it, as .csv, .tsv, .jsonl or .parquet.
"""

import abc
import collections
import contextlib
import csv
import decimal
import io
import json
import math
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.data.files import format_json, whole_file, write_whole
from gpt1_jax.data.records import parse_number
from gpt1_jax.errors import find_named, from_extra

# --- files of arrays: .npz, which NumPy reads, and .h5, HDF5's ----------------

Rows = np.ndarray | list[str]
ATTRIBUTES = "attributes"  # the array of an .npz file that holds them
_CHUNK_BYTES = 1 << 18  # HDF5 reads and writes this much at a time
_COPY_BYTES = 1 << 22


class ArrayWriter(abc.ABC):
    """A file of arrays, open for writing."""

    @abc.abstractmethod
    def append(self, name: str, rows: Rows) -> None:
        """Adds rows to an array, which the first rows create.

        Args:
          name: the array's name.
          rows: [number, ...], with the shape and type of earlier rows; or texts.
        """


@contextlib.contextmanager
def open_arrays(path: Path, attributes: Mapping[str, Any]) -> Iterator[ArrayWriter]:
    """A new file of arrays that takes its name once it is whole, or vanishes.

    Args:
      path: a local file, .npz or .h5. One that is there is replaced.
      attributes: numbers, texts and lists of them. In an .h5 file they are its
        attributes, in an .npz file JSON in an array named `ATTRIBUTES`.
    """
    with whole_file(path) as partial:
        if path.suffix == ".h5":
            with _h5py().File(partial, "w") as file:
                file.attrs.update(attributes)
                yield _Hdf5Writer(file)
        else:
            writer = _NpzWriter(partial.parent)
            yield writer
            writer.append(ATTRIBUTES, [json.dumps(dict(attributes))])
            writer.pack(partial)


def check_library(path: Path) -> None:
    """Refuses an .h5 file if h5py is not installed, before any work.

    Raises:
      MissingPackage: naming the package.
    """
    if path.suffix == ".h5":
        _h5py()


class _NpzWriter(ArrayWriter):
    """Keeps the rows of each array in a file until their number is known."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._arrays: dict[str, np.ndarray] = {}  # by name, one without rows
        self._counts: collections.Counter[str] = collections.Counter()

    def append(self, name: str, rows: Rows) -> None:
        if isinstance(rows, list):
            empty = np.array(["", *rows], np.str_)[:0]  # as wide as the longest
            lines = (f"{json.dumps(_without_nul(row))}\n" for row in rows)
            data = "".join(lines).encode()
        else:
            empty, data = rows[:0], np.ascontiguousarray(rows).tobytes()
        known = self._arrays.setdefault(name, empty)
        self._arrays[name] = known if known.itemsize >= empty.itemsize else empty
        self._counts[name] += len(rows)
        with self._file(name).open("ab") as file:
            file.write(data)

    def pack(self, path: Path) -> None:
        """Makes the archive of all arrays."""
        with zipfile.ZipFile(path, "w") as archive:
            for name, empty in self._arrays.items():
                shape = (self._counts[name], *empty.shape[1:])
                shape = () if name == ATTRIBUTES else shape
                is_text = empty.dtype.kind == "U"
                member = zipfile.ZipInfo(f"{name}.npy")
                # Texts are padded to the longest; states are noise to a compressor.
                member.compress_type = zipfile.ZIP_DEFLATED * is_text
                with (
                    self._file(name).open("rb") as file,
                    archive.open(member, "w", force_zip64=True) as target,
                ):
                    descr = np.lib.format.dtype_to_descr(empty.dtype)
                    header = {"descr": descr, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_2_0(target, header)
                    if is_text:
                        for line in file:
                            row = np.array(json.loads(line), empty.dtype)
                            target.write(row.tobytes())
                    else:
                        shutil.copyfileobj(file, target, _COPY_BYTES)
                self._file(name).unlink()  # the archive takes its space on the disk

    def _file(self, name: str) -> Path:
        """The file of an array, by its number: names may hold any character."""
        return self._folder / f"{list(self._arrays).index(name)}.rows"


class _Hdf5Writer(ArrayWriter):
    """Appends to resizable datasets."""

    def __init__(self, file: Any):
        self._file = file

    def append(self, name: str, rows: Rows) -> None:
        if isinstance(rows, list):
            dtype, shape = _h5py().string_dtype(), ()
            rows = list(map(_without_nul, rows))
        else:
            dtype, shape = rows.dtype, rows.shape[1:]
        if name not in self._file:
            together = max(1, _CHUNK_BYTES // (dtype.itemsize * math.prod(shape)))
            self._file.create_dataset(
                name,
                (0, *shape),
                dtype,
                maxshape=(None, *shape),
                chunks=(together, *shape),
            )
        dataset = self._file[name]
        count = len(dataset)
        dataset.resize(count + len(rows), axis=0)
        dataset[count:] = rows


def _without_nul(text: str) -> str:
    return text.replace("\0", "\ufffd")  # HDF5 takes no NUL, NumPy drops it at the end


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
            partial.open("w", encoding="utf-8", newline="") as file,
        ):
            yield _TextTable(file, path.suffix)


def cell(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6f}"
    if isinstance(value, tuple):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def format_table(
    rows: Iterable[Row], suffix: str, as_cell: Callable[[Any], str] = cell
) -> str:
    """The text of a `.csv` or `.tsv` file with these rows; "" if there are none.

    Args:
      rows: the rows.
      suffix: `.csv` or `.tsv`.
      as_cell: makes the text of a cell of a value, or of a column's name.
    """
    file = io.StringIO()
    _TextTable(file, suffix, as_cell).append(rows)
    return file.getvalue()


class _TextTable(TableWriter):
    """A `.csv` or `.tsv` file: a header, then a line for each row."""

    def __init__(self, file: Any, suffix: str, as_cell: Callable[[Any], str] = cell):
        self._file, self._begun, self._as_cell = file, False, as_cell
        # Cells with either character that ends a line of the writer are quoted.
        lines = SimpleNamespace(write=lambda line: file.write(f"{line[:-2]}\n"))
        csv_writer = csv.writer(lines, lineterminator="\r\n")
        self._write = self._write_tsv if suffix == ".tsv" else csv_writer.writerow

    def append(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if not self._begun:
                self._begun = True
                self._write(map(self._as_cell, row))
            self._write(map(self._as_cell, row.values()))

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


# --- tables of a user: .csv, .tsv, .jsonl and .parquet ----------------------------

OWN_TABLES = (".jsonl", ".tsv", ".csv", ".parquet")
_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")
Columns = Mapping[str, Sequence[Any]]  # all with the same number of rows


def check_own_table(path: epath.Path, columns: Columns, suffix: str) -> None:
    """Refuses columns that `write_own_table` cannot write, before any work.

    Raises:
      MissingPackage: naming the package that writes Parquet.
      UserError: naming the column.
    """
    if suffix == ".parquet":
        _parquet(path).make_table(columns, str(path))


def write_own_table(path: epath.Path, columns: Columns, suffix: str) -> None:
    """Writes a user's table, with values as they were read.

    Args:
      path: the file, local or in a bucket; it is written whole or not at all.
      columns: what rows hold: text, numbers, dates, lists, dictionaries, or a tuple of
        labels. None and NaN are empty.
      suffix: of `OWN_TABLES`. A `.jsonl` has null for what is empty. A `.csv` or `.tsv`
        has an empty cell, labels with "|" between them, and JSON for lists and
        dictionaries. In these two, a text that a spreadsheet would run as a formula
        begins with "'", unless it is a number; a `.tsv` has no quotes, and a space for
        each tab or line end in a cell.
    """
    if suffix == ".parquet":
        write_whole(path, _parquet(path).format_columns(columns, str(path)))
        return
    rows = (
        dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    )
    if suffix == ".jsonl":
        text = "".join(f"{_format_object(row)}\n" for row in rows)
    else:
        text = format_table(rows, suffix, _harmless_cell)
    write_whole(path, text)


def _format_object(row: Row) -> str:
    values = {name: None if each != each else each for name, each in row.items()}
    return format_json(values, ensure_ascii=False, default=_as_json)


def _as_json(value: Any) -> float | str:
    """A value that JSON does not have: a decimal number, or a date."""
    return float(value) if isinstance(value, decimal.Decimal) else str(value)


def _harmless_cell(value: Any) -> str:
    """A value as the text of a cell that no spreadsheet runs."""
    if value is None or value != value:
        return ""
    if isinstance(value, tuple):
        value = "|".join(value)
    elif isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = str(value)
    is_formula = text.startswith(_BEGINS_FORMULA) and math.isnan(parse_number(text))
    return f"'{text}" if is_formula else text


def _parquet(path: epath.Path) -> Any:
    needed_by, otherwise = f"{path}, a Parquet file,", "write a .jsonl or .csv file"
    return find_named("gpt1_jax.data.parquet", needed_by, otherwise)
