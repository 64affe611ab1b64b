"""JSON lines: an object on each line of a file, and a text in each object."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.documents import decode
from gpt1_jax.data.text import brief
from gpt1_jax.errors import UserError

RowsRead = Iterator[tuple[str, dict[Any, Any]]]  # where a row is, and its cells


def read_json_lines(lines: Iterable[str], name: str, only_column: str = "") -> RowsRead:
    """The JSON objects on the lines that are not blank, and where each is.

    Args:
      lines: the lines, with or without their ends.
      name: the file's name, for messages.
      only_column: as for `parse_json_object`.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}:{number}"
            yield where, parse_json_object(line, where, only_column)


def parse_json_object(text: str, where: str, only_column: str = "") -> dict[str, Any]:
    """Reads a JSON object.

    Args:
      text: the JSON.
      where: its place, which begins each message.
      only_column: the only column that is used; the others may hold halves of
        characters. By default none may.

    Raises:
      UserError: if it is something else, or holds half of a character.
    """
    try:
        value = _parse_json(text, where)
        if not isinstance(value, dict):
            raise UserError(
                f"{where}: this is {brief(value)}, not a JSON object: {{...}}."
            )
        if "\\" in text:  # an escape may stand for half of a character
            used = value.get(only_column) if only_column else value
            _check_characters(used, where)
    except RecursionError as error:
        raise UserError(f"{where}: this JSON is nested too deeply.") from error
    return value


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: this is not JSON: {error}.") from error
    except ValueError as error:  # Python reads numbers of up to 4,300 digits
        raise UserError(f"{where}: a number is too long: {error}.") from error


def _check_characters(value: Any, where: str) -> None:
    """Refuses lone surrogates, which no tokenizer and no file takes."""
    if isinstance(value, str):
        check_encodable(value, where)
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            _check_characters(part, where)
    elif isinstance(value, list):
        for part in value:
            _check_characters(part, where)


# --- training text ------------------------------------------------------------


def read_field(path: epath.Path, key: str, field: str) -> Iterator[str]:
    """The text field of each object in a JSON lines file, a newline after each.

    Args:
      path: the file, gzipped or not.
      key: the configuration key that names it, for messages.
      field: the text field.

    Raises:
      UserError: naming the line that is not an object with text in that field.
    """
    lines = _lines(decode(path))
    rows = read_json_lines(lines, str(path), only_column=field)
    return read_texts(rows, field, key)


def read_texts(rows: RowsRead, field: str, key: str) -> Iterator[str]:
    """The text in one field of each row, a newline after each.

    Args:
      rows: the rows of a file, and where they are.
      field: the text field.
      key: the configuration key that names the file, for messages.

    Raises:
      UserError: naming the row that has no text in that field.
    """
    for where, row in rows:
        if field not in row:
            raise UserError(missing_field(where, field, row, key))
        if not isinstance(row[field], str):
            raise UserError(
                f"{where}: the field {field!r} is {brief(row[field])}, not text."
            )
        yield row[field] + "\n"


def missing_field(where: str, field: str, there: Iterable[Any], key: str = "") -> str:
    """The message on a row or file that lacks a field, or column.

    Args:
      where: the row or file.
      field: the field.
      there: the fields that are there.
      key: the configuration key that names a file of training text.
    """
    way_out = ""
    if key:
        name = "name the text's field with --config.data.jsonl_field=NAME, or "
        way_out = f"; {name * key.startswith('config.data.')}leave the file out"
    return (
        f"{where}: there is no field {field!r}; it has "
        f"{', '.join(map(repr, there)) or 'none':.200}{way_out}."
    )


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Whole lines; only a newline ends one, as JSON may hold other line breaks."""
    parts: list[str] = []
    for chunk in chunks:
        first, *others = chunk.split("\n")
        parts.append(first)
        for part in others:
            yield "".join(parts) + "\n"
            parts = [part]
    if last := "".join(parts):
        yield last
