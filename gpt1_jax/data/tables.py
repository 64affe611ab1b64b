"""Tables written row by row, as .csv, .tsv or .npz."""

import abc
import contextlib
import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.data.array_files import ArrayWriter, open_arrays
from gpt1_jax.data.files import append_to, whole_file

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
