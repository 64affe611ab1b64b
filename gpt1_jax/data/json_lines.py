"""JSON: an object on each line of a file or in its list, with a text in each."""

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.documents import decode
from gpt1_jax.data.text import brief
from gpt1_jax.errors import UserError

MOST_CHARACTERS = 1 << 26  # in a line of training text: more than any book has
_PIECE_CHARACTERS = 1 << 16
RowsRead = Iterator[tuple[str, dict[Any, Any]]]  # where a row is, and its cells


def read_json(chunks: Iterable[str], name: str, only_column: str = "") -> RowsRead:
    """The JSON objects of a file, on lines or in one list, and where each is.

    Args:
      chunks: the text, in pieces.
      name: the file's name, for messages.
      only_column: as for `parse_json_object`.

    Raises:
      UserError: naming the line, or the object of the list, that cannot be read.
    """
    begin, chunks = "", iter(chunks)
    while not begin.strip() and (chunk := next(chunks, None)) is not None:
        begin += chunk
    chunks = itertools.chain([begin], chunks)
    if begin.lstrip().startswith("["):
        return _read_list(chunks, name, only_column)
    return read_json_lines(whole_lines(chunks, name), name, only_column)


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
    """The text field of JSON objects, on lines or in one list, a newline after each.

    Args:
      path: the file, compressed or not.
      key: the configuration key that names it, for messages.
      field: the text field.

    Raises:
      UserError: naming what is not an object with text in that field.
    """
    return read_texts(read_json(decode(path), str(path), field), field, key)


def _read_list(chunks: Iterator[str], name: str, only_column: str) -> RowsRead:
    """The objects of a JSON list, and where each is; a part of it is in memory."""
    decoder, text, position, number = json.JSONDecoder(), "", 0, 0
    for before in itertools.chain("[", itertools.repeat(",")):
        where = f"{name}, object {number + 1} of the list"
        text, position = _more(text, position, 1, chunks)
        if number and text[position : position + 1] == "]":
            break
        if text[position : position + 1] != before:
            raise UserError(f"{where}: a comma or ] is missing before it.")
        text, position = _more(text, position + 1, 1, chunks)
        if not number and text[position : position + 1] == "]":
            break
        while True:
            try:
                _, end = decoder.raw_decode(text, position)
                break
            except RecursionError as error:
                raise UserError(f"{where}: this JSON is nested too deeply.") from error
            except ValueError as error:  # unless the object goes on
                size = len(text) - position
                text, position = _more(text, position, 2 * size + 1, chunks)
                if len(text) - position in (size, 0) or size > MOST_CHARACTERS:
                    raise UserError(f"{where}: this is not JSON: {error}.") from error
        number += 1  # noqa: SIM113
        yield where, parse_json_object(text[position:end], where, only_column)
        position = end
    if text[position + 1 :].strip() or "".join(chunks).strip():
        raise UserError(f"{name}: more text follows the list.")


def _more(
    text: str, position: int, wanted: int, chunks: Iterator[str]
) -> tuple[str, int]:
    """A text that has so many characters, if there are, at a position and after it.

    White space is passed over at the position.
    """
    while True:
        while text[position : position + 1].isspace():
            position += 1
        if len(text) - position >= wanted or (chunk := next(chunks, None)) is None:
            return text, position
        text, position = text[position:] + chunk, 0


def read_texts(rows: RowsRead, field: str, key: str) -> Iterator[str]:
    """The text in one field of each row, a newline after each.

    Args:
      rows: the rows of a file, and where they are.
      field: the text field.
      key: the configuration key that names the file, for messages.

    Raises:
      UserError: naming the row that has no text in that field.
    """
    texts: list[str] = []
    size = 0
    for where, row in rows:
        if field not in row:
            raise UserError(missing_field(where, field, row, key))
        if not isinstance(row[field], str):
            raise UserError(
                f"{where}: the field {field!r} is {brief(row[field])}, not text."
            )
        texts.append(row[field] + "\n")
        size += len(texts[-1])
        if size >= _PIECE_CHARACTERS:  # cutting blocks of many small pieces is slow
            yield "".join(texts)
            texts, size = [], 0
    yield "".join(texts)


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
        name = "name the text's field with --config.data.text_field=NAME, or "
        way_out = f"; {name * key.startswith('config.data.')}leave the file out"
    return (
        f"{where}: there is no field {field!r}; it has "
        f"{', '.join(map(repr, there)) or 'none':.200}{way_out}."
    )


def whole_lines(chunks: Iterable[str], name: str) -> Iterator[str]:
    """The lines of a text with their ends.

    Only a newline ends a line, as JSON may hold other line breaks.

    Args:
      chunks: the text, in pieces.
      name: the file's name, for messages.

    Raises:
      UserError: naming a line that is longer than any book.
    """
    parts: list[str] = []
    number, size = 1, 0
    for chunk in chunks:
        first, *others = chunk.split("\n")
        parts.append(first)
        size += len(first)
        if size > MOST_CHARACTERS:
            raise UserError(
                f"{name}:{number}: the line has more than {MOST_CHARACTERS:,} "
                "characters, which no text has; leave the file out."
            )
        for part in others:
            yield "".join(parts) + "\n"
            parts, size = [part], len(part)
        number += len(others)
    if last := "".join(parts):
        yield last
