"""Rows of files: tab- or comma-separated values, JSON lines, RACE's passages."""

from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from gpt1_jax.data.tables import parse_json_object, read_rows, require_column
from gpt1_jax.data.text import brief, text_lines
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import FileLayout, Record


def find(folder: epath.Path, pattern: str) -> list[epath.Path]:
    """The files below `folder` that match `pattern`, which may hold `*`."""
    if "*" in pattern:
        return sorted(folder.glob(pattern)) if folder.is_dir() else []
    return [folder / pattern] if (folder / pattern).exists() else []


def read_table(
    path: epath.Path, table: FileLayout, *, subset: str = "", optional: str = ""
) -> Iterator[Record]:
    """The records of a file, or of a folder of RACE's passages.

    Args:
      path: the file or folder.
      table: its format and the names of its columns; `table.path` is not used.
      subset: the records' subset.
      optional: a column of ours that the file may lack.

    Raises:
      ValueError: naming file and line of a row that cannot be read or lacks a column.
    """
    if table.format == "race":
        yield from _race(path, subset)
        return
    with path.open("rb") as file:
        rows = read_rows(
            file,
            str(path),
            table.format,
            header=not any(isinstance(each, int) for each in table.columns.values()),
            as_published=bool(table.columns),
            skip_short=table.may_be_short,
        )
        for where, cells in rows:
            if table.columns:
                cells = _renamed(cells, table, where, optional)
            yield Record(cells, where, subset)


def questions(passage: Mapping[str, Any], where: str, subset: str) -> Iterator[Record]:
    """The questions of a RACE passage, one record each.

    Args:
      passage: the passage's columns, named as in TensorFlow Datasets.
      where: its place, for messages.
      subset: the records' subset.

    Raises:
      ValueError: if a column is missing, or the numbers of questions, options and
        answers differ.
    """
    for name in ("article", "questions", "options", "answers", "example_id"):
        require_column(passage, name, where)
    lists = [passage[name] for name in ("questions", "options", "answers")]
    for values in lists:
        if not isinstance(values, list):
            raise UserError(f"{where}: the passage holds {brief(values)}, not a list.")
    if len({len(values) for values in lists}) != 1:
        raise UserError(
            f"{where}: the passage has {len(lists[0])} questions, {len(lists[1])} "
            f"lists of options and {len(lists[2])} answers; these numbers must agree."
        )
    shared = {name: passage[name] for name in ("article", "example_id")}
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        own = {"question": question, "options": options, "answer": answer}
        yield Record({**shared, **own}, f"{where}, question {number}", subset)


def _race(folder: epath.Path, subset: str) -> Iterator[Record]:
    for path in sorted(folder.glob("*.txt")):
        where = f"{path}:1"
        with path.open("rb") as file:
            passage = parse_json_object("".join(text_lines(file, str(path))), where)
        named = {("example_id" if k == "id" else k): v for k, v in passage.items()}
        yield from questions(named, where, subset)


def _renamed(
    cells: Mapping[Any, Any], table: FileLayout, where: str, optional: str
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for ours, theirs in table.columns.items():
        names = theirs if isinstance(theirs, tuple | list) else [theirs]
        if ours == optional and not all(name in cells for name in names):
            continue
        values = [require_column(cells, name, where) for name in names]
        if isinstance(theirs, list):
            columns[ours] = values
        else:
            columns[ours] = " ".join(values) if isinstance(theirs, tuple) else values[0]
    return columns
