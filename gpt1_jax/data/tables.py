"""Tables and arrays written row by row: .csv, .tsv, .npz and .h5.

What has been written is on disk, not in memory, so a file may be larger than that.
"""

import abc
import contextlib
import csv
import importlib
import io
import json
import math
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.data.files import append_to, whole_file
from gpt1_jax.errors import MissingPackage

# --- files of arrays: .npz, which NumPy reads, and .h5, HDF5's ----------------

Rows = np.ndarray | list[str]
_CHUNK_BYTES = 1 << 18  # of HDF5: what is read and written together
_COPY_BYTES = 1 << 22
_HELD_BYTES = 1 << 22  # of all arrays, before they are written
_TEXT_BYTES = 100  # about what a text in a list takes


class ArrayWriter(abc.ABC):
    """A file of arrays, open for writing."""

    def __init__(self) -> None:
        self._held: dict[str, list[Rows]] = {}
        self._held_bytes = 0

    def append(self, name: str, rows: Rows) -> None:
        """Adds rows to the array of a name, which the first rows make.

        Args:
          name: of the array.
          rows: [number, ..], like those before but for the number; or texts.
        """
        self._held.setdefault(name, []).append(rows)
        if isinstance(rows, np.ndarray):
            self._held_bytes += rows.nbytes
        else:
            self._held_bytes += _TEXT_BYTES * len(rows)
        if self._held_bytes >= _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that are still held: many at once is faster."""
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
      attributes: numbers, texts and lists of them: in .h5 attributes of the file, in
        .npz a text of that name, in JSON.
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
    """Refuses a file whose library is not there, before any work.

    Raises:
      ImportError: if it is an .h5 file and h5py is not installed.
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
                dtype, shape = np.array(["", *rows]).dtype, ()
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
            with archive.open("attributes.npy", "w") as member:
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
        self._raw(name).unlink()  # the archive takes its room on the disk

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
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise MissingPackage(
            "An .h5 file needs h5py, which is not installed: "
            "pip install -e '.[hdf5]'. An .npz file needs nothing more."
        ) from error


# --- tables of columns: .csv, .tsv and .npz -------------------------------------

_GAPS = re.compile(r"[\t\r\n]")
Row = Mapping[str, Any]  # of column names; all rows of a table have the same


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
      attributes: what an `.npz` says of itself, as `open_arrays` takes it.
    """
    if path.suffix == ".npz":
        with open_arrays(path, attributes) as arrays:
            yield _Arrays(arrays, kinds)
    else:
        with (
            whole_file(path) as partial,
            io.TextIOWrapper(append_to(partial), "utf-8", newline="") as file,
        ):
            yield _Tsv(file) if path.suffix == ".tsv" else _Csv(file)


def cell(value: Any) -> str:
    """A value as a table for people and programs shows it."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6f}"
    if isinstance(value, tuple):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Csv(TableWriter):
    def __init__(self, file: Any):
        self._writer = csv.writer(file, lineterminator="\n")
        self._begun = False

    def append(self, rows: Sequence[Row]) -> None:
        if not self._begun:
            self._begun = True
            self._writer.writerow(rows[0])
        self._writer.writerows(map(cell, row.values()) for row in rows)


class _Tsv(TableWriter):
    def __init__(self, file: Any):
        self._file = file
        self._begun = False

    def append(self, rows: Sequence[Row]) -> None:
        if not self._begun:
            self._begun = True
            self._write(rows[0])
        for row in rows:
            self._write(map(cell, row.values()))

    def _write(self, cells: Iterable[str]) -> None:
        self._file.write("\t".join(_GAPS.sub(" ", each) for each in cells) + "\n")


class _Arrays(TableWriter):
    def __init__(self, arrays: ArrayWriter, kinds: Mapping[str, type]):
        self._arrays, self._kinds = arrays, kinds

    def append(self, rows: Sequence[Row]) -> None:
        for name in rows[0]:
            values = [row[name] for row in rows]
            if (kind := self._kinds.get(name)) in (int, float):
                self._arrays.append(name, np.asarray(values, kind))
            else:
                self._arrays.append(name, [cell(value) for value in values])
