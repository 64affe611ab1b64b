"""The words of a text, the tokens that spell them, and windows of tokens to read.

A word is what white space separates, punctuation included. Words are encoded one by
one: no token of either tokenizer reaches across white space, so the ids of a line are
those of its words, one after another. Only the repair of garbled text by GPT-1's own
tokenizer looks at more than a word.
"""

import collections
import dataclasses
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import sentencex

from gpt1_jax.config import ReadingConfig
from gpt1_jax.data.text import clean, split_lines
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError

_WORD = re.compile(r"\S+")
_SHOWN = 40  # characters of a word in a message


class Word(NamedTuple):
    """A word of a text, or a part of one: punctuation may be apart from it."""

    text: str  # as it stands there
    start: int  # offset of its first character in the text
    end: int  # offset behind its last character
    line: int  # from 0
    ids: tuple[int, ...]  # its tokens; the last of a word ends it


class Span(NamedTuple):
    """Where the tokens of a word are in a window: from `first` to before `stop`."""

    word: Word
    first: int
    stop: int


class Window(NamedTuple):
    """Tokens that a model reads at once, and the words that they are read for."""

    ids: list[int]
    num_context: int  # how many of the first are there to be read before the words
    spans: list[Span]


@dataclasses.dataclass(frozen=True)
class Context:
    """What is read before a word.

    Attributes:
      max_seq_len: the most tokens in a window.
      newline_id: begins a text, as it does a paragraph in training: there is no start
        token.
      overlap: tokens at the end of a full window that the next one reads again.
      num_words: words read before each word, which then has a window of its own; 0
        reads as many as fit. Parts of a word count as one.
      across_lines: whether earlier lines are context, or each line is a text.
      after_newline: whether a text begins with a newline. If not, its first word is
        itself context.

    Raises:
      ValueError: if the overlap is not from 1 to `max_seq_len` - 1.
    """

    max_seq_len: int
    newline_id: int
    overlap: int
    num_words: int = 0
    across_lines: bool = True
    after_newline: bool = True

    def __post_init__(self):
        if not 1 <= self.overlap < self.max_seq_len:
            raise UserError(
                f"overlap={self.overlap} does not go with windows of "
                f"{self.max_seq_len} tokens; choose 1 to {self.max_seq_len - 1}."
            )

    @classmethod
    def of(
        cls, reading: ReadingConfig, max_seq_len: int, newline_id: int, **more: bool
    ) -> "Context":
        """As configured; windows overlap by half if nothing else is said."""
        return cls(
            max_seq_len,
            newline_id,
            overlap=reading.overlap or max_seq_len // 2,
            num_words=reading.context_words,
            across_lines=reading.context == "text",
            **more,
        )


def split_words(tokenizer: Tokenizer, text: str) -> Iterator[Word]:
    """The words of a text, in order."""
    start = 0
    for number, line in enumerate(split_lines(text)):
        for match in _WORD.finditer(line):
            ids = tuple(tokenizer.encode(clean(match[0])))
            begin, end = start + match.start(), start + match.end()
            yield Word(match[0], begin, end, number, ids)
        start += len(line)


def whole_words(words: Iterable[Word]) -> Iterator[list[Word]]:
    """The parts of each word: those with nothing between them, in most cases one."""
    parts: list[Word] = []
    for word in words:
        if parts and (word.line, word.start) != (parts[-1].line, parts[-1].end):
            yield parts
            parts = []
        parts.append(word)
    if parts:
        yield parts


def joined(parts: Sequence[Word]) -> Word:
    """The word of which these are the parts."""
    text = "".join(part.text for part in parts)
    ids = tuple(token for part in parts for token in part.ids)
    return Word(text, parts[0].start, parts[-1].end, parts[0].line, ids)


def check_fits(word: Word, max_seq_len: int, where: str) -> None:
    """Refuses a word without tokens, or without room for what is read before it.

    Args:
      word: the word.
      max_seq_len: the most tokens in a window.
      where: its place, for the message.

    Raises:
      ValueError: naming the word.
    """
    if not word.ids:
        raise nothing_left(word.text, where)
    if 1 + len(word.ids) >= max_seq_len:
        raise UserError(
            f"{where}: the word {word.text[:_SHOWN]!r} has {len(word.ids)} tokens; "
            f"this model reads {max_seq_len} at a time, some before the word. Leave it "
            "out."
        )


def nothing_left(text: str, where: str) -> UserError:
    """The error for text that encodes to no token."""
    return UserError(
        f"{where}: nothing is left of {text[:_SHOWN]!r} without its invisible "
        "characters; leave it out."
    )


def windows(words: Iterable[Word], context: Context) -> Iterator[Window]:
    """Windows in which each word has one span; the other tokens are its context.

    A newline stands between words of different lines, however many lie between them. A
    word in parts has a span for each, and all of them in one window: what is read does
    not depend on how words come apart.

    Raises:
      ValueError: if a word has no tokens, or more than fit.
    """
    read = _one_each if context.num_words else _strided
    if context.across_lines:
        yield from read(words, context)
    else:
        for _, line in itertools.groupby(words, key=lambda word: word.line):
            yield from read(line, context)


def _strided(words: Iterable[Word], context: Context) -> Iterator[Window]:
    """Windows as full as whole words make them."""
    window = Window([], 0, [])
    for piece in _pieces(words, context):
        if len(window.ids) + len(piece.ids) > context.max_seq_len:
            if window.spans:
                yield window
            room = context.max_seq_len - len(piece.ids)
            ids = window.ids[-min(context.overlap, room) :]
            window = Window(ids, len(ids), [])
        window = _with(window, piece)
    if window.spans:
        yield window


def _one_each(words: Iterable[Word], context: Context) -> Iterator[Window]:
    """A window for each word: those before it, and the word."""
    most = min(context.num_words, sys.maxsize)
    before: collections.deque[_Piece] = collections.deque(maxlen=most)
    for piece in _pieces(words, context):
        first, *others = [*before, piece]
        # In the middle of a text, no newline before the first word that is read.
        ids = list(first.ids if first.begins_text else first.without_newline)
        for each in others:
            ids += each.ids
        ids = ids[-context.max_seq_len :]
        spans = _spans(piece, ids)
        yield Window(ids, spans[0].first or spans[0].stop, spans)
        before.append(piece)


class _Piece(NamedTuple):
    """A word, in parts, with the newline before it, if there is one."""

    parts: list[Word]
    ids: tuple[int, ...]
    without_newline: tuple[int, ...]
    begins_text: bool


def _pieces(words: Iterable[Word], context: Context) -> Iterator[_Piece]:
    """The words of one text."""
    previous: Word | None = None
    for parts in whole_words(words):
        word = joined(parts)
        starts_line = previous is None or word.line != previous.line
        newline = starts_line and (previous is not None or context.after_newline)
        ids = (context.newline_id, *word.ids) if newline else word.ids
        check_fits(word, context.max_seq_len, f"line {word.line + 1}")
        yield _Piece(parts, ids, word.ids, begins_text=previous is None)
        previous = word


def _with(window: Window, piece: _Piece) -> Window:
    """The window with one more word; what begins it is context."""
    ids = [*window.ids, *piece.ids]
    spans = _spans(piece, ids)
    # At first that is the newline that begins a text, or else the first part of it.
    num_context = window.num_context if window.ids else spans[0].first or spans[0].stop
    return Window(ids, num_context, [*window.spans, *spans])


def _spans(piece: _Piece, ids: Sequence[int]) -> list[Span]:
    """The spans of the parts of a word whose tokens are the last of a window."""
    spans, stop = [], len(ids) - len(piece.without_newline)
    for part in piece.parts:
        first, stop = stop, stop + len(part.ids)
        spans.append(Span(part, first, stop))
    return spans


# --- punctuation apart from the words that it stands at -----------------------


def punctuation_apart(tokenizer: Tokenizer, word: Word) -> Iterator[Word]:
    """What stands before a word, the word and what stands behind it, each as a word.

    Only whole tokens come apart: the tokens of the parts are those of the word, so
    nothing that is read changes. What is punctuation altogether stays one.

    Args:
      tokenizer: the one that encoded it.
      word: what white space separates, for example `"don't!"`.

    Yields:
      One to three words, for example `"`, `don't` and `!"`.
    """
    text, ids = word.text, word.ids
    if all(map(_is_punctuation, text)):
        yield word
        return
    begin, first = _longest(tokenizer, text, ids, 1)
    size, count = _longest(tokenizer, text, ids[first:], -1)
    end, stop = len(text) - size, len(ids) - count
    for part, tokens in (
        ((0, begin), ids[:first]),
        ((begin, end), ids[first:stop]),
        ((end, len(text)), ids[stop:]),
    ):
        if part[0] < part[1]:
            start, behind = (word.start + offset for offset in part)
            yield Word(text[slice(*part)], start, behind, word.line, tokens)


def _longest(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], direction: int
) -> tuple[int, int]:
    """The most punctuation at an end that is tokens of its own: characters, tokens.

    `direction` is 1 for the beginning and -1 for the end.
    """
    most = 0
    while _is_punctuation(text[::direction][most]):
        most += 1
    if not most:
        return 0, 0
    # Of several tokens together: by itself, a byte of a character is none.
    spelled = [
        _plain(tokenizer.decode(ids[:count] if direction > 0 else ids[-count:]))
        for count in range(1, len(ids))
    ]
    for size in range(most, 0, -1):
        part = text[:size] if direction > 0 else text[-size:]
        wanted = _plain(tokenizer.decode(tokenizer.encode(clean(part))))
        if wanted and wanted in spelled:
            return size, spelled.index(wanted) + 1
    return 0, 0


def _plain(text: str) -> str:
    """Text without the spaces that decoding puts between tokens."""
    return "".join(text.split())


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


# --- where sentences begin ----------------------------------------------------


def sentence_starts(text: str) -> list[int]:
    """Where the sentences of a line begin: characters before each.

    By sentencex's rules for English, which know abbreviations ("Mr.", "e.g.", "p.m.")
    and keep what stands between quotation marks or brackets in the sentence around it.

    Args:
      text: a line, such as a paragraph.
    """
    # White space of several bytes makes some versions of sentencex panic.
    plain = re.sub(r"\s", " ", text)
    found = sentencex.get_sentence_boundaries("en", plain)
    return [each["start_index"] for each in found if each["text"].strip()]
