"""Parquet files, read a few rows at a time by pyarrow, only in this module."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from gpt1_jax.data.json_lines import RowsRead, missing_field, read_texts
from gpt1_jax.errors import UserError, from_extra

with from_extra("text", "a Parquet file"):
    import pyarrow
    from pyarrow import parquet, types

_BATCH_BYTES = 1 << 22  # decoded at a time, about
_BATCH_ROWS = 1 << 13
_LARGE = 1 << 26  # bytes; no book has as many
_MOST_COMPRESSED = 200  # times; text is compressed 3 to 10 times


def read_rows(path: epath.PathLike, columns: Sequence[str] | None = None) -> RowsRead:
    """The rows of a Parquet file, one at a time.

    Memory does not grow with the file: a few megabytes are decoded at a time, and of a
    text that many rows share only one copy.

    Args:
      path: the file, local or in a bucket.
      columns: the columns to read; all by default.

    Yields:
      Where the row is, "FILE, row NUMBER" counted from 1, and its cells by column:
      text, numbers, None, lists, and dictionaries for nested columns.

    Raises:
      MissingPackage: if pyarrow is not installed.
      UserError: if the file is damaged, encrypted or no Parquet file, lacks one of
        `columns`, has two columns of one name, or holds text that is not UTF-8 or a
        row that is larger than any book.
    """
    number, file_name = 0, str(path)  # which takes as long as the row
    with _opened(path) as (file, kinds):
        names = list(kinds if columns is None else columns)
        for name in names:
            if name not in kinds:
                raise UserError(missing_field(str(path), name, kinds))
        for batch in _batches(file, names, path):
            try:
                cells = [_values(batch.column(name)) for name in names]
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, rows {number + 1} to {number + batch.num_rows}: text "
                    f"that is not UTF-8: {error}."
                ) from error
            for values in zip(*cells, strict=True):
                number += 1
                yield (
                    f"{file_name}, row {number}",
                    dict(zip(names, values, strict=True)),
                )


def _values(column: Any) -> list[Any]:
    """The cells of a column; of a text that many rows share, one copy."""
    if not types.is_dictionary(column.type):
        return column.to_pylist()
    shared = column.dictionary.to_pylist()
    return [None if i is None else shared[i] for i in column.indices.to_pylist()]


def read_field(path: epath.Path, key: str, field: str) -> Iterator[str]:
    """The text column of a Parquet file, a newline after each row.

    Args:
      path: the file.
      key: the configuration key that names it, for messages.
      field: the column.

    Raises:
      MissingPackage, UserError: as `read_rows`, or if the column or a row of it holds
        anything but text.
    """
    with _opened(path) as (_, kinds):
        if field not in kinds:
            raise UserError(missing_field(str(path), field, kinds, key))
        if not _is_text(kinds[field]):
            texts = ", ".join(filter(lambda name: _is_text(kinds[name]), kinds))
            raise UserError(
                f"{path}: the column {field!r} holds {kinds[field]!s:.80}, not text; "
                f"its columns of text are {texts or 'none':.200}."
            )
    return read_texts(read_rows(path, [field]), field, key)


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )


@contextlib.contextmanager
def _opened(path: epath.PathLike) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A pyarrow.parquet.ParquetFile and the types of its columns.

    Texts are read as dictionaries, so that one which many rows share is decoded once.
    """
    with epath.Path(path).open("rb") as file:
        try:
            schema = parquet.ParquetFile(file).schema_arrow
            names = schema.names
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise UserError(f"{path}: two columns are named {twice!r}; rename one.")
            kinds = dict(zip(names, schema.types, strict=True))
            opened = parquet.ParquetFile(
                file,
                read_dictionary=[name for name in names if _is_text(kinds[name])],
                pre_buffer=False,
                buffer_size=1 << 20,  # not a whole row group
            )
            yield opened, kinds
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0].rstrip(" .:")
            way_out = "it may be cut short or damaged; fetch or write it again"
            if "crypt" in reason:
                way_out = "write it again without encryption"
            raise UserError(
                f"{path} cannot be read as Parquet ({reason}); {way_out}."
            ) from error


def _batches(file: Any, names: list[str], path: epath.PathLike) -> Iterator[Any]:
    """Record batches of a few megabytes.

    Raises:
      UserError: before a row group is decoded that could fill the memory.
    """
    size = epath.Path(path).stat().length
    for index in range(file.num_row_groups):
        group = file.metadata.row_group(index)
        unpacked = group.total_byte_size
        row_bytes = unpacked // max(group.num_rows, 1)
        if row_bytes > _LARGE or unpacked > max(_LARGE, _MOST_COMPRESSED * size):
            raise UserError(
                f"{path}: in {size:,} bytes, row group {index + 1} holds "
                f"{group.num_rows:,} rows of {row_bytes:,} bytes each, which no text "
                "does; leave the file out."
            )
        rows = min(max(_BATCH_BYTES // max(row_bytes, 1), 1), _BATCH_ROWS)
        yield from file.iter_batches(rows, [index], names, use_threads=False)
