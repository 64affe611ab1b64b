"""Parquet files, read a few rows at a time and written whole, by pyarrow.

Only this module imports it.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_jax.data.records import Rows, check_names
from gpt1_jax.data.text_files import open_file, unpacked_name
from gpt1_jax.errors import UserError, from_extra

with from_extra("text", "a Parquet file"):
    import pyarrow
    from pyarrow import parquet

_BATCH_BYTES, _BATCH_ROWS = 1 << 22, 1 << 13  # decoded at a time, about
# What pyarrow raises for a damaged file, besides its own errors.
_DAMAGED = (pyarrow.ArrowException, OSError, ValueError, LookupError, OverflowError)


def read_rows(name: str, column: str = "") -> Rows:
    """The rows of a Parquet file, one at a time.

    Memory grows with the largest row group of the file, not with the file.

    Args:
      name: the file, local or in a bucket.
      column: the only column to read, if there is such a column; all by default.

    Yields:
      Where the row is, "FILE, row NUMBER" counted from 1, and its cells by column:
      text, numbers, None, lists, and dictionaries for nested columns.

    Raises:
      FileNotFoundError: if the file cannot be read.
      UserError: if the file is damaged, encrypted or no Parquet file, has two columns
        of one name, or holds text that is not UTF-8.
    """
    if unpacked_name(name) != name:
        raise UserError(f"{name} is a compressed file of Parquet; unpack it first.")
    number = 0
    with open_file(name) as file:
        try:
            opened = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
            every = opened.schema_arrow.names
            check_names([each.strip() for each in every], name)
            used = [each for each in every if each.strip() == column]
            for index in range(opened.num_row_groups):
                group = opened.metadata.row_group(index)
                row_bytes = group.total_byte_size // max(group.num_rows, 1)
                rows = min(max(_BATCH_BYTES // max(row_bytes, 1), 1), _BATCH_ROWS)
                for batch in opened.iter_batches(
                    rows, [index], used or None, use_threads=False
                ):
                    names = [each.strip() for each in batch.schema.names]
                    columns = [each.to_pylist() for each in batch.columns]
                    for cells in zip(*columns, strict=True):
                        number += 1
                        where = f"{name}, row {number}"
                        yield where, dict(zip(names, cells, strict=True))
        except _DAMAGED as error:
            if isinstance(error, UserError):
                raise
            reason = str(error).partition("\n")[0].rstrip(" .:")
            raise UserError(
                f"{name} cannot be read as Parquet ({reason}), from row {number + 1} "
                "on; it may be damaged or encrypted; fetch or write it again."
            ) from error


def make_table(columns: Mapping[str, Sequence[Any]], name: str) -> pyarrow.Table:
    """Columns as Parquet holds them; in an array of floats, NaN stands for null.

    Args:
      columns: values by column, all of a column of one kind.
      name: the file, for messages.

    Raises:
      UserError: naming the file and a column that no Parquet file can hold.
    """
    arrays = {}
    for column, values in columns.items():
        is_array = isinstance(values, np.ndarray)
        try:
            arrays[column] = pyarrow.array(values, from_pandas=is_array)
        except _DAMAGED as error:
            reason = str(error).partition("\n")[0].rstrip(" .:")
            raise UserError(
                f"{name} cannot hold the column {column!r}, as its values are not all "
                f"of one kind ({reason}); write a .jsonl or .csv file instead."
            ) from error
    return pyarrow.table(arrays)


def format_columns(columns: Mapping[str, Sequence[Any]], name: str) -> bytes:
    """The bytes of a Parquet file; arguments and errors as of `make_table`."""
    file = io.BytesIO()
    parquet.write_table(make_table(columns, name), file)
    return file.getvalue()
