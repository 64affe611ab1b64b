"""Parquet files, read a few rows at a time by pyarrow, only in this module."""

from typing import BinaryIO

from gpt1_jax.data.records import Rows, missing_field
from gpt1_jax.errors import UserError, from_extra

with from_extra("text", "a Parquet file"):
    import pyarrow
    from pyarrow import parquet

_BATCH_BYTES, _BATCH_ROWS = 1 << 22, 1 << 13  # decoded at a time, about


def read_rows(file: BinaryIO, name: str, column: str = "") -> Rows:
    """The rows of a Parquet file, one at a time; memory does not grow with the file.

    Args:
      file: the file, which can be sought.
      name: its name, for messages.
      column: the only column to read; all by default.

    Yields:
      Where the row is, "FILE, row NUMBER" counted from 1, and its cells by column:
      text, numbers, None, lists, and dictionaries for nested columns.

    Raises:
      UserError: if the file is damaged, encrypted or no Parquet file, lacks the column,
        has two columns of one name, or holds text that is not UTF-8.
    """
    number = 0
    try:
        opened = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        names = opened.schema_arrow.names
        if column and column not in names:
            raise UserError(missing_field(name, column, names, "config.data.train"))
        for index in range(opened.num_row_groups):
            group = opened.metadata.row_group(index)
            row_bytes = group.total_byte_size // max(group.num_rows, 1)
            rows = min(max(_BATCH_BYTES // max(row_bytes, 1), 1), _BATCH_ROWS)
            columns = [column] if column else None
            for batch in opened.iter_batches(rows, [index], columns, use_threads=False):
                for cells in batch.to_pylist():
                    number += 1
                    yield f"{name}, row {number}", cells
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = str(error).partition("\n")[0].rstrip(" .:")
        raise UserError(
            f"{name} cannot be read as Parquet ({reason}), from row {number + 1} on; "
            "it may be damaged or encrypted; fetch or write it again."
        ) from error
