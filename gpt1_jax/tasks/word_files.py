"""Text to score word by word, as people keep it: lines, or a column of words.

A file is read row by row, as often as it is asked for: what the model reads again at
another step never has to stay in memory.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.tables import FORMATS, open_input, read_rows, require_column
from gpt1_jax.data.text import brief, clean, text_lines
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import Word
from gpt1_jax.errors import UserError

LINES = ".txt"


class Line(NamedTuple):
    """A line that holds a word."""

    where: str  # file:line, for messages
    number: int  # from 1, blank lines counted
    start: int  # characters of the text before it
    text: str  # without its end


class Row(NamedTuple):
    """A row of a table whose words or lines are given."""

    where: str
    word: str  # or several, in one cell
    text: str  # equal in neighbours that belong to one text
    cells: Mapping[str, Any]


class GivenWord(NamedTuple):
    """A word of a table, with its tokens; its line is the number of its text."""

    where: str
    word: Word
    cells: Mapping[str, Any]


def check_source(source: str, words_column: str) -> None:
    """Refuses a file whose ending does not say how to read it.

    Raises:
      ValueError: naming the endings, or the key that is missing or too much.
    """
    suffix = epath.Path(source).suffix.lower()
    if suffix != LINES and suffix not in FORMATS:
        raise UserError(
            f"config.input={source!r} must end in {LINES} (text) or in "
            f"{', '.join(FORMATS)} (a column of words)."
        )
    if suffix == LINES and words_column:
        raise UserError(
            f"config.words_column={words_column!r} names a column, but "
            f"config.input={source!r} is plain text, which has none."
        )
    if suffix != LINES and not words_column:
        raise UserError(
            f"config.input={source!r} is a table: name its column of words with "
            "--config.words_column=NAME."
        )


def read_lines(source: str) -> Iterator[Line]:
    """The lines of a text file that hold a word; blank ones between them are skipped.

    Raises:
      FileNotFoundError: if the file cannot be read.
      ValueError: naming a line that is not UTF-8; or if there is no word at all.
    """
    with open_input(source) as file:
        yield from lines_of(text_lines(file, source), source)


def lines_of(lines: Iterator[str], name: str) -> Iterator[Line]:
    """The lines that hold a word.

    Args:
      lines: with or without their ends.
      name: the source's name, for messages.

    Raises:
      ValueError: naming a line with half of a character; or if there is no word.
    """
    start, empty = 0, True
    for number, line in enumerate(lines, 1):
        if line.strip():
            empty, where = False, f"{name}:{number}"
            check_encodable(line, where)
            yield Line(where, number, start, line.rstrip("\r\n"))
        start += len(line)
    if empty:
        raise UserError(f"{name} holds no word.")


def read_words(source: str, words_column: str, text_column: str = "") -> Iterator[Row]:
    """The rows of a table, each with a word.

    Args:
      source: a `.csv` or `.tsv` file with a header, or a `.jsonl` file.
      words_column: the column of words.
      text_column: a column whose value changes where a new text begins; "" if all rows
        are one text.

    Raises:
      FileNotFoundError: if the file cannot be read.
      ValueError: naming a row that cannot be read, lacks a column, has others than the
        first, or holds no word; or if there is no row.
    """
    names: list[str] = []
    with open_input(source) as file:
        format_name = FORMATS[epath.Path(source).suffix.lower()]
        for where, cells in read_rows(file, source, format_name):
            names = names or list(cells)
            for column in filter(None, (words_column, text_column)):
                require_column(cells, column, where)
            if list(cells) != names:
                raise UserError(
                    f"{where}: the row's columns are {', '.join(cells)}, those of the "
                    f"first {', '.join(names)}; give all rows the same."
                )
            word = cells[words_column]
            if not isinstance(word, str) or not word.strip():
                raise UserError(
                    f"{where}: the column {words_column!r} holds {brief(word)}, not a "
                    "word; remove the row, or write its word."
                )
            check_encodable(word, where)
            text = str(cells[text_column]) if text_column else ""
            yield Row(where, word, text, cells)
    if not names:
        raise UserError(f"{source} holds no row of words.")


def encode_words(
    tokenizer: Tokenizer, source: str, words_column: str, text_column: str
) -> Iterator[GivenWord]:
    """The words of a table, as `read_words` reads them, with their tokens."""
    rows = read_words(source, words_column, text_column)
    for number, (_, text) in enumerate(itertools.groupby(rows, lambda row: row.text)):
        for row in text:
            ids = tokenizer.encode(clean(" ".join(row.word.split())))
            word = Word(row.word, 0, len(row.word), number, tuple(ids))
            yield GivenWord(row.where, word, row.cells)
