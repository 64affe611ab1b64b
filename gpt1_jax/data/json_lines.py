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
    for where, value in read_json_lines(lines, str(path), only_column=field):
        if field not in value:
            name = "Name the text's field with --config.data.jsonl_field=NAME, or leave"
            raise UserError(
                f"{where}: the object has no field {field!r}; it has "
                f"{', '.join(map(repr, value)) or 'none':.200}. "
                f"{name if key.startswith('config.data.') else 'Leave'} the file out."
            )
        text = value[field]
        if not isinstance(text, str):
            raise UserError(f"{where}: the field {field!r} is {brief(text)}, not text.")
        yield text + "\n"


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
