"""The words of a text or a table, their tokens, and the windows read to score them.

A word is what white space separates, punctuation included. Words are encoded one by
one: no token reaches across white space, so the ids of a line are those of its words,
one after another. There is one exception: GPT-1's own tokenizer looks at more than a
word when it repairs garbled text. If a tokenizer marks where words begin rather than
where they end, each word is encoded together with the one before it.

Files are read row by row, so a text may be larger than memory.
"""

import bisect
import collections
import hashlib
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencex

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.config.reading import ReadingConfig
from gpt1_jax.data import text_files
from gpt1_jax.data.records import cell_text, read_rows, require_column
from gpt1_jax.data.text import brief, clean
from gpt1_jax.data.text_files import FORMATS, format_of, unpacked_name
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError

_WORD = re.compile(r"\S+")
_TEXT = ".txt"


class Word(NamedTuple):
    """A word: its position in a text, its tokens and, once scored, its surprisal.

    Its fields are filled in on the way. With punctuation apart, a part of a word is a
    `Word` too, and so is a line or a table's cell that is read as a whole.
    """

    line: int = 1  # from 1; in a table, the number of the text that the word is in
    sentence: int = 0  # from 1, through the text; the end of a line ends one
    position: int = 0  # in its sentence, from 1
    start: int = 0  # offset of its first character in the text
    end: int = 0  # offset behind its last character
    word: str = ""  # as it stands there
    tokens: tuple[str, ...] = ()  # as text
    num_tokens: int = 0
    nats: float = math.nan  # its surprisal; NaN if nothing is read before it
    bits: float = math.nan
    rank: float = math.nan  # rank of its first token among all; 1 is the likeliest
    entropy_nats: float = math.nan  # of the next token, before the word
    ids: tuple[int, ...] = ()  # its tokens; the last one ends the word
    where: str = ""  # file:line, for messages
    cells: Mapping[str, Any] = {}  # the columns of its row in a table


POSITION = Word._fields[:6]  # the columns of a word's position in a text
SURPRISAL = Word._fields[6:12]  # and those of its surprisal


class ReadingWindow(NamedTuple):
    """Tokens that a model reads at once to score some of them."""

    ids: Sequence[int]
    num_context: int  # how many of the first are only read, not scored
    words: Sequence[Word] = ()  # the words that it is read for, if any
    spans: Sequence[tuple[int, int]] = ()  # the tokens [first, stop) of each word

    @property
    def content(self) -> list[int]:
        """What a score depends on, for `content_digest`."""
        return [self.num_context, *self.ids]


def content_digest(parts: Iterable[str | Sequence[int]]) -> str:
    """The SHA-256, in hexadecimal, of texts and of ids, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
        else:
            digest.update(np.asarray(part, np.int32).tobytes())
    return digest.hexdigest()


# --- words in files ---------------------------------------------------------------


def check_words_source(source: str, words_column: str, lines_column: str = "") -> None:
    """Refuses a file whose ending does not say how to read it.

    Args:
      source: a text, or a table of `FORMATS`.
      words_column: a table's column of words; "" if there is none.
      lines_column: its column of lines, instead.

    Raises:
      UserError: naming the endings, or the key that is missing or should not be set.
    """
    is_text = unpacked_name(source).lower().endswith(_TEXT)
    is_table = bool(format_of(source))
    if not (is_text or is_table):
        raise UserError(
            f"config.input={source!r} must end in {_TEXT} (text) or in "
            f"{', '.join(FORMATS)} (a column of words)."
        )
    column = words_column or lines_column
    if is_text and column:
        key = "words_column" if words_column else "lines_column"
        raise UserError(
            f"config.{key}={column!r} names a column, but config.input={source!r} is "
            "plain text, which has none."
        )
    if is_table and not column:
        raise UserError(
            f"config.input={source!r} is a table: name its column of words with "
            "--config.words_column=NAME."
        )


def read_lines(source: str) -> Iterator[Word]:
    """The lines of a text file that are not blank, each as a whole.

    Raises:
      FileNotFoundError: if the file cannot be read.
      UserError: naming a line that is not UTF-8; if the file is not plain text, or all
        lines are blank.
    """
    with text_files.open_file(source) as file:
        yield from _filled_lines(text_files.read_lines(file, source), source)


def lines_of(text: str, name: str) -> Iterator[Word]:
    """The lines of a text that are not blank, each as a whole.

    Args:
      text: lines, with the offsets of characters counted through the text.
      name: the text's name, for messages.

    Raises:
      UserError: naming a line with half of a character; or if all lines are blank.
    """
    return _filled_lines(text_files.split_lines(text), name)


def _filled_lines(lines: Iterable[str], name: str) -> Iterator[Word]:
    start, empty = 0, True
    for number, line in enumerate(lines, 1):
        if line.strip():
            empty, where, text = False, f"{name}:{number}", line.rstrip("\r\n")
            check_encodable(line, where)
            end = start + len(text)
            yield Word(line=number, start=start, end=end, word=text, where=where)
        start += len(line)
    if empty:
        raise UserError(f"{name} holds no word.")


def read_column(source: str, column: str, text_column: str = "") -> Iterator[Word]:
    """The words in a column of a table, with all cells of their rows.

    Args:
      source: a file of `FORMATS`.
      column: the column; a cell may hold several words, or a line.
      text_column: a column whose value changes where a new text begins; "" if all rows
        are one text.

    Raises:
      FileNotFoundError: if the file cannot be read.
      UserError: naming a row that cannot be read, lacks a column, has other columns
        than the first, or holds no word; or if there is no row.
    """
    names: list[str] = []
    number, text = 0, ""
    for where, cells in read_rows(source):
        for name in filter(None, (column, text_column)):
            require_column(cells, name, where)
        names = names or list(cells)
        if cells.keys() != set(names):
            raise UserError(
                f"{where}: the row's columns are {', '.join(cells)}, those of the "
                f"first {', '.join(names)}; give all rows the same."
            )
        cells = {name: cells[name] for name in names}
        word = cell_text(cells[column], column, where)
        if not word.strip():
            raise UserError(
                f"{where}: the column {column!r} holds {brief(cells[column])}, not a "
                "word; remove the row, or write its word."
            )
        previous = text
        if text_column:
            text = cell_text(cells[text_column], text_column, where)
        number += not number or text != previous
        yield Word(number, end=len(word), word=word, where=where, cells=cells)
    if not names:
        raise UserError(f"{source} holds no row of words.")


# --- words and their tokens -------------------------------------------------------


def split_words(tokenizer: Tokenizer, lines: Iterable[Word]) -> Iterator[Word]:
    """The words of lines, in order, with their tokens."""
    words = (
        line._replace(
            start=line.start + match.start(),
            end=line.start + match.end(),
            word=match[0],
        )
        for line in lines
        for match in _WORD.finditer(line.word)
    )
    return encode_whole(tokenizer, words)


def encode_whole(tokenizer: Tokenizer, lines: Iterable[Word]) -> Iterator[Word]:
    """Words, lines or cells of a table, with the tokens of all their words.

    Raises:
      UserError: if a token reaches across the space between two words.
    """
    number, previous = 0, ""
    for line in lines:
        if line.line != number:
            number, previous = line.line, ""
        text = clean(" ".join(line.word.split()))
        ids = _encode_behind(tokenizer, previous, text, line.where)
        yield line._replace(ids=tuple(ids))
        previous = text.rpartition(" ")[2] or previous


def _encode_behind(
    tokenizer: Tokenizer, previous: str, text: str, where: str
) -> list[int]:
    """The ids of a text that follows a word of its line; "" if it begins the line."""
    if tokenizer.marks_word_ends or not previous or not text:
        return tokenizer.encode(text)
    before = tokenizer.encode(previous)
    ids = tokenizer.encode(f"{previous} {text}")
    if ids[: len(before)] != before:
        raise UserError(
            f"{where}: a token of this model reaches from {brief(previous)} into "
            f"{brief(text)}, so words have no tokens of their own. Choose a model "
            "whose tokenizer cuts text at spaces."
        )
    return ids[len(before) :]


def word_of_each(
    tokenizer: Tokenizer, text: str, ids: Sequence[int]
) -> list[int] | None:
    """The number of the word that each token of a text is part of, from 0.

    Args:
      tokenizer: the model's tokenizer.
      text: the text.
      ids: its tokens.

    Returns:
      A number for each token, -1 for one between words, such as a newline; None if the
      words' own tokens are not those of the text.
    """
    numbers: list[int] = []
    lines = lines_of(text, "the text") if text.strip() else iter(())
    try:
        words = list(split_words(tokenizer, lines))
    except UserError:  # a token reaches across a space
        return None
    for number, word in enumerate(words):
        while ids[len(numbers) : len(numbers) + 1] == [tokenizer.newline_id]:
            numbers.append(-1)
        stop = len(numbers) + len(word.ids)
        if list(ids[len(numbers) : stop]) != list(word.ids):
            return None
        numbers += [number] * len(word.ids)
    behind = ids[len(numbers) :]
    if set(behind) - {tokenizer.newline_id}:
        return None
    return numbers + [-1] * len(behind)


def words_in_sentences(
    tokenizer: Tokenizer, lines: Iterable[Word], *, apart: bool
) -> Iterator[Word]:
    """The words of lines, with their tokens and their positions in sentences.

    Args:
      tokenizer: the model's tokenizer.
      lines: the lines of a text.
      apart: whether punctuation is split from the words it is attached to.
    """
    sentence = 0
    for line in lines:
        starts = sentence_starts(line.word)
        begun = position = 0
        for word in split_words(tokenizer, [line]):
            for part in punctuation_apart(tokenizer, word) if apart else (word,):
                reached = bisect.bisect_right(starts, part.start - line.start)
                if reached != begun:
                    begun, position, sentence = reached, 0, sentence + 1
                position += 1
                yield part._replace(sentence=sentence, position=position)


# --- reading windows --------------------------------------------------------------


def encode_line(
    context: str, scored: str, encode: Callable[[str], Sequence[int]]
) -> ReadingWindow:
    """A line, divided where the tokens of its end begin.

    The line is encoded as a whole, because the spelling of a word depends on its
    neighbours: some tokenizers mark where it ends, others where it begins. A token
    across the border counts as read.

    Args:
      context: the beginning of the line, which is read; may be empty.
      scored: its end.
      encode: text to ids.
    """
    ids, read = encode(context + scored), context.rstrip()
    if read != context or scored[:1].isspace():
        before = encode(read)
        if ids[: len(before)] == before:
            return ReadingWindow(ids, len(before))
    end = encode(scored)
    pairs = zip(reversed(ids), reversed(end), strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    first = len(ids) - len(list(same))
    return ReadingWindow(ids, first)


def window_overlap(reading: ReadingConfig, max_seq_len: int) -> int:
    """The tokens at the end of a full window that the next one reads again.

    Raises:
      UserError: if they do not fit into a window with at least one more.
    """
    overlap = reading.overlap or max_seq_len // 2
    if not 1 <= overlap < max_seq_len:
        raise UserError(
            f"overlap={overlap} does not go with windows of {max_seq_len} tokens; "
            f"choose 1 to {max_seq_len - 1}."
        )
    return overlap


def reading_windows(
    words: Iterable[Word],
    reading: ReadingConfig,
    max_seq_len: int,
    newline_id: int,
    *,
    after_newline: bool,
) -> Iterator[ReadingWindow]:
    """Windows that hold each word once, after its context.

    A newline stands between words of different lines, however many lie between them. A
    word in parts has a span for each part, all in one window: what is read does not
    depend on how words are split.

    Args:
      words: words with their tokens.
      reading: whether each line is a text; how many words are read before each, which
        then has a window of its own (parts of a word count as one); or, if as many as
        fit, how many tokens of a full window the next one reads again.
      max_seq_len: the most tokens in a window.
      newline_id: begins a text, as it does a paragraph in training: there is no start
        token.
      after_newline: whether a text begins with a newline. If not, its first word is
        itself context.

    Raises:
      UserError: if a word has no tokens or more than fit, or the overlap does not fit.
    """
    overlap = window_overlap(reading, max_seq_len)
    texts: Iterable[Iterable[Word]] = (words,)
    if reading.context != "text":
        texts = (line for _, line in itertools.groupby(words, lambda word: word.line))
    for text in texts:
        parts = _with_newlines(text, max_seq_len, newline_id, after_newline)
        if reading.context_words:
            yield from _window_for_each(parts, max_seq_len, reading.context_words)
        else:
            yield from _full_windows(parts, max_seq_len, overlap)


def _full_windows(
    text: Iterable[tuple[list[int], list[int], list[Word]]],
    max_seq_len: int,
    overlap: int,
) -> Iterator[ReadingWindow]:
    """Windows filled with as many whole words as fit."""
    ids: list[int] = []
    num_context, words, spans = 0, list[Word](), list[tuple[int, int]]()
    for newline, word_ids, parts in text:
        room = max_seq_len - len(newline) - len(word_ids)
        if len(ids) > room:
            if words:
                yield ReadingWindow(ids, num_context, words, spans)
            ids = ids[-min(overlap, room) :]
            num_context, words, spans = len(ids), [], []
        ids += newline + word_ids
        words += parts
        spans += _last_spans(parts, len(ids))
        num_context = num_context or _num_begun(spans)
    if words:
        yield ReadingWindow(ids, num_context, words, spans)


def _window_for_each(
    text: Iterable[tuple[list[int], list[int], list[Word]]],
    max_seq_len: int,
    num_words: int,
) -> Iterator[ReadingWindow]:
    """A window for each word: the words before it, and the word."""
    read: collections.deque[tuple[list[int], list[int]]]
    read = collections.deque(maxlen=min(num_words, max_seq_len) + 1)
    for number, (newline, word_ids, parts) in enumerate(text):
        read.append((newline, word_ids))
        ids = [token for both in read for each in both for token in each]
        if number > num_words:
            # In the middle of a text, no newline before the first word that is read.
            ids = ids[len(read[0][0]) :]
        ids = ids[-max_seq_len:]
        spans = _last_spans(parts, len(ids))
        yield ReadingWindow(ids, _num_begun(spans), parts, spans)


def _with_newlines(
    text: Iterable[Word], max_seq_len: int, newline_id: int, after_newline: bool
) -> Iterator[tuple[list[int], list[int], list[Word]]]:
    """Each word of a text: the newline before it, if any, its tokens and its parts."""
    line: int | None = None
    for parts in _whole_words(text):
        ids = [token for part in parts for token in part.ids]
        _check_fits(parts, len(ids), max_seq_len)
        starts_line = after_newline if line is None else line != parts[0].line
        line = parts[0].line
        yield [newline_id] * starts_line, ids, parts


def _whole_words(words: Iterable[Word]) -> Iterator[list[Word]]:
    """The parts of each word: those with nothing between them, in most cases one."""
    parts: list[Word] = []
    for word in words:
        if parts and (word.line, word.start) != (parts[-1].line, parts[-1].end):
            yield parts
            parts = []
        parts.append(word)
    if parts:
        yield parts


def _check_fits(parts: Sequence[Word], num_tokens: int, max_seq_len: int) -> None:
    """Refuses a word without tokens, or without room for what is read before it."""
    text, where = "".join(part.word for part in parts), parts[0].where
    if not num_tokens:
        raise nothing_left(text, where)
    if 1 + num_tokens >= max_seq_len:
        raise UserError(
            f"{where}: the word {brief(text)} has {num_tokens} tokens; this model "
            f"reads {max_seq_len} at a time, some before the word. Leave it out or, if "
            "the language is written without spaces, put them between its words."
        )


def nothing_left(text: str, where: str) -> UserError:
    """The error for text that encodes to no token."""
    return UserError(
        f"{where}: nothing is left of {brief(text)} without its invisible "
        "characters; leave it out."
    )


def _last_spans(parts: Sequence[Word], stop: int) -> list[tuple[int, int]]:
    """The spans of the parts of a word whose tokens are the last before `stop`."""
    sizes = [len(part.ids) for part in parts]
    borders = itertools.accumulate(sizes, initial=stop - sum(sizes))
    return list(itertools.pairwise(borders))


def _num_begun(spans: Sequence[tuple[int, int]]) -> int:
    """The tokens that begin a text: a newline or, without one, its first word's."""
    first, stop = spans[0]
    return first or stop


# --- punctuation split from words ---------------------------------------------


def punctuation_apart(tokenizer: Tokenizer, word: Word) -> Iterator[Word]:
    """Splits punctuation off the ends of a word.

    Only whole tokens are split off: the parts have the tokens of the word, so the model
    reads the same. A word of nothing but punctuation stays whole.

    Args:
      tokenizer: the one that encoded the word.
      word: a word as white space separates it, for example `"don't!"`.

    Yields:
      One to three words, for example `"`, `don't` and `!"`.
    """
    text, ids = word.word, word.ids
    if all(map(_is_punctuation, text)):
        yield word
        return
    begin, first = _longest(tokenizer, text, ids, 1)
    size, count = _longest(tokenizer, text, ids[first:], -1)
    end, stop = len(text) - size, len(ids) - count
    for start, part, tokens in (
        (0, text[:begin], ids[:first]),
        (begin, text[begin:end], ids[first:stop]),
        (end, text[end:], ids[stop:]),
    ):
        if part:
            start += word.start
            yield word._replace(
                start=start, end=start + len(part), word=part, ids=tokens
            )


def _longest(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], direction: int
) -> tuple[int, int]:
    """The longest punctuation at one end of a word that is spelled by whole tokens.

    Args:
      tokenizer: the one that encoded the word.
      text: the word.
      ids: its tokens.
      direction: 1 for the beginning, -1 for the end.

    Returns:
      How many characters and how many tokens it has.
    """
    most = len(list(itertools.takewhile(_is_punctuation, text[::direction])))
    if not most:
        return 0, 0
    # Decoded together, since a token may be only one byte of a character.
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
    """The offsets at which the sentences of a line begin, in characters.

    Follows sentencex's rules for English, which know abbreviations ("Mr.", "e.g.",
    "p.m.") and keep a quotation or brackets in the sentence around them.

    Args:
      text: a line, such as a paragraph.
    """
    # White space of several bytes makes some versions of sentencex panic.
    plain = re.sub(r"\s", " ", text)
    found = sentencex.get_sentence_boundaries("en", plain)
    return [each["start_index"] for each in found if each["text"].strip()]
