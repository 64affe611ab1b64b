"""What a report consists of, before it becomes a page."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What means something to Markdown, but for an underscore within a word.
_MARKUP = re.compile(r"[\\`*\[\]<>|~&$#!^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


class Text(NamedTuple):
    """Markdown; what comes from a run folder in it is `escaped` or `verbatim`."""

    markdown: str


class Picture(NamedTuple):
    """A figure."""

    name: str  # of its file, without the ending
    alt: str  # what it shows, in words
    draw: "Callable[[], Figure]"  # called once in each style


class Folded(NamedTuple):
    """Markdown that is shown on demand."""

    title: str  # plain text
    markdown: str


Block = Text | Picture | Folded


class Section(NamedTuple):
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """The fragment of its address, as GitHub makes it from the title."""
        kept = re.sub(r"[^\w\- ]", "", self.title.lower())
        return kept.replace(" ", "-")


class Document(NamedTuple):
    """A report."""

    title: str  # plain text
    introduction: str  # Markdown
    sections: Sequence[Section]

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Picture)]


def escaped(text: str) -> str:
    """Text as one line of Markdown that shows it and does nothing else.

    Also in a table's cell. What cannot be seen, or not be written, becomes U+FFFD.
    """
    line = " ".join(_printable(text).split())
    return _MARKUP.sub(r"\\\g<0>", line)


def verbatim(text: str) -> str:
    """Text as a block of Markdown that shows its lines as they are."""
    return _fenced(text, "text")


def escaped_below(value: Any) -> Any:
    """A JSON value with all of its texts escaped; names of keys stay as they are."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {key: escaped_below(each) for key, each in value.items()}
    if isinstance(value, list):
        return [escaped_below(each) for each in value]
    return value


def counted(number: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def missing(what: str, command: str) -> Text:
    """Says that something is not there, and the command that makes it."""
    return Text(f"**Missing:** {what}. Made by:\n\n{_fenced(command, 'bash')}")


def _fenced(text: str, language: str) -> str:
    text = _printable(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _printable(text: str) -> str:
    unseen = ("Cc", "Cf", "Co", "Cs")
    return "".join(
        letter
        if letter in "\n\t" or unicodedata.category(letter) not in unseen
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
