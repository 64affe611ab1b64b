"""Markdown: tables, blocks of code, and text that is displayed as it is."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

# Characters with a meaning in Markdown, except an underscore within a word.
_MARKUP = re.compile(r"[\\`*\[\]<>|~&$#!^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int
) -> str:
    """A table whose first columns are text; the others are numbers, aligned right."""
    rule = ["---"] * text_columns
    rule += ["---:"] * (len(header) - text_columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *rows])


def code_block(text: str, language: str = "text") -> str:
    """A fenced block that displays the lines of a text as they are."""
    text = _replace_invisible(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def escape(text: str) -> str:
    """Text as one line that displays it and has no other effect, even in a table.

    Characters that are invisible, or cannot be encoded, become U+FFFD.
    """
    line = " ".join(_replace_invisible(text).split())
    return _MARKUP.sub(r"\\\g<0>", line)


def escape_strings(value: Any) -> Any:
    """A JSON value with all its strings escaped, but not the keys of objects."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {key: escape_strings(each) for key, each in value.items()}
    if isinstance(value, list):
        return [escape_strings(each) for each in value]
    return value


def counted(number: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _replace_invisible(text: str) -> str:
    invisible = ("Cc", "Cf", "Co", "Cs")
    return "".join(
        letter
        if letter in "\n\t" or unicodedata.category(letter) not in invisible
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
