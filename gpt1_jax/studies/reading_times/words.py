"""Reads words with reading times from a table, with the times' other predictors.

The rows of a story, in order, are its text, and a model reads them in full windows; or
each row has a text of its own before it, as in BabyLM's data.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpt1_jax.config.reading import DEFAULT_WORDS
from gpt1_jax.data.named_texts import texts_in_files
from gpt1_jax.data.records import read_number, read_rows, require_column
from gpt1_jax.data.text_files import format_of
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import (
    ReadingWindow,
    Word,
    content_digest,
    encode_whole,
    reading_windows,
)
from gpt1_jax.errors import UserError
from gpt1_jax.studies.answers import ContextWindows
from gpt1_jax.studies.reading_times.config import (
    ReadingTimesConfig,
    ReadingTimesDataConfig,
)

BEFORE = 2  # how many preceding words add their predictors to a word's
NO_TIME, PUNCTUATION, UNKNOWN = "no time", "punctuation", "unknown"
TOO_EARLY, AFTER_UNKNOWN = "without two words before", "after an unknown one"
_MOST = 1e15  # of a number in the table: sums of squares stay finite, positions exact
# The columns of numbers, and the least of each.
_NUMBERS = {"position": 0.0, "time": 0.0, "length": 0.0, "log_frequency": -_MOST}
# From the first letter or digit to the last. A pattern for the characters around them
# would take quadratic time on a run of other characters.
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)

_KEPT = ("story", "position", "word", "time", "length", "log_frequency", "left_out")

# From a word to the logarithm of its frequency, and whether it was counted at all.
Frequency = Callable[[str], tuple[float, bool]]


@dataclasses.dataclass(frozen=True)
class TimedWords:
    """Words with reading times, as a model reads them.

    Attributes:
      rows: for each word "story", "position" (from 1), "word", "time" (milliseconds;
        None if it was not measured), "length" (characters), "log_frequency" and
        "left_out", the reason why a regression leaves it out; "" if it does not.
      all_windows: the windows that a model reads.
      tokens: of each word, its window and its scored tokens there, [first, stop).
    """

    rows: Sequence[Mapping[str, Any]]
    all_windows: Sequence[ReadingWindow]
    tokens: Sequence[tuple[int, int, int]]

    def content_digest(self) -> str:
        """The content digest of the rows and of the tokens."""
        windows = [window.content for window in self.all_windows]
        return content_digest([json.dumps([*self.rows]), *windows])


def load_timed_words(
    config: ReadingTimesConfig,
    frequency: Frequency | None,
    tokenizer: Tokenizer,
    max_seq_len: int,
) -> TimedWords:
    """Reads the table and cuts the stories into windows.

    Args:
      config: the table, its columns and the words to leave out.
      frequency: word frequencies; None if the table has a column of them.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that it reads.

    Raises:
      FileNotFoundError: if there is no such file.
      UserError: if a column is missing, a cell cannot be read, the words are not those
        of `config.data.text`, or fewer than two stories are left.
    """
    rows = _read_table(config.data, config.data.times, with_times=True)
    at = _by_place(rows, config.data.position)
    if config.data.text:
        _compare_words(rows, config.data)
    for row in rows:
        if row["length"] is None:
            row["length"] = float(len(row["word"]))
        row["known"] = row["log_frequency"] is not None
        if frequency:
            row["log_frequency"], row["known"] = frequency(row["word"])
    for row in rows:
        story = at[row["story"]]
        places = (row["position"] - n for n in range(1, BEFORE + 1))
        before = [story[place] for place in places if place in story]
        row["left_out"] = _reason(row, before, config.exclude)
    if len({row["story"] for row in rows if not row["left_out"]}) < 2:
        raise UserError(
            f"{config.data.times} holds fewer than two stories with words to compare, "
            f"told apart by the column {config.data.story!r}; a model of the times is "
            "fitted to some stories and judged by another."
        )
    read = (
        _read_alone(rows, tokenizer)
        if config.data.context
        else _read_as_stories(rows, tokenizer, max_seq_len)
    )
    return TimedWords([{name: row[name] for name in _KEPT} for row in rows], *read)


def _read_table(
    data: ReadingTimesDataConfig, source: str, with_times: bool
) -> list[dict[str, Any]]:
    """The rows of a table in the order of the stories."""
    # A table of another ending has tabs, as Natural Stories' .tok has.
    rows = [
        _read_row(data, cells, where, with_times)
        for where, cells in read_rows(source, format_of(source) or "tsv")
    ]
    if not rows:
        raise UserError(f"{source} holds no words, only the names of columns.")
    if data.position:
        order: dict[str, int] = {}
        for row in rows:
            order.setdefault(row["story"], len(order))
        rows.sort(key=lambda row: (order[row["story"]], row["position"]))
    elif data.context:
        _follow_contexts(rows)
    else:
        for number, row in enumerate(rows):
            begins = not number or row["story"] != rows[number - 1]["story"]
            row["position"] = 1 if begins else rows[number - 1]["position"] + 1
    return rows


def _follow_contexts(rows: Sequence[dict[str, Any]]) -> None:
    """Finds the sentences of rows that have texts of their own, in any order.

    A row continues the sentence that already holds the most of its text. Each sentence
    is continued once, since several may begin with the same words.
    """
    so_far: dict[bytes, collections.deque[str]] = {}  # by the digest of its words
    for row in sorted(rows, key=lambda row: len(row["context"].split())):
        before = row["context"].split()
        digests = _digests([*before, *row["word"].split()])
        starts = digests[: len(before)][::-1]
        begun = next((start for start in starts if so_far.get(start)), None)
        row["story"] = so_far[begun].popleft() if begun else row["where"]
        row["position"] = len(before) + 1
        so_far.setdefault(digests[-1], collections.deque()).append(row["story"])


def _digests(words: Iterable[str]) -> list[bytes]:
    """Digests of the first word, of the first two, and so on: in linear time."""
    digest, found = hashlib.blake2b(digest_size=16), []
    for word in words:
        digest.update(f"{word} ".encode())
        found.append(digest.digest())
    return found


def _by_place(
    rows: Iterable[dict[str, Any]], position: str
) -> Mapping[str, Mapping[int, Mapping[str, Any]]]:
    """Maps a story and a position to its row."""
    at: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        story = at.setdefault(row["story"], {})
        if story.setdefault(row["position"], row) is not row:
            raise UserError(
                f"{row['where']}: story {row['story']!r} has two words at position "
                f"{row['position']}; give each its own in the column {position!r}."
                if position
                else f"{row['where']}: story {row['story']!r} begins again after "
                "another; name the column of positions with --config.data.position."
            )
    return at


def _read_row(
    data: ReadingTimesDataConfig,
    cells: Mapping[str, Any],
    where: str,
    with_times: bool,
) -> dict[str, Any]:
    """A row of the table, with its own names."""
    cell = require_column(cells, data.word, where)
    word = "" if cell is None else str(cell).strip()
    if not word:
        raise UserError(f"{where}: the column {data.word!r} holds no word.")
    row: dict[str, Any] = {
        "story": str(require_column(cells, data.story, where)),
        "word": word,
        "where": where,
        "context": str(cells.get(data.context, "")).strip() if data.context else "",
    }
    for name in _NUMBERS if with_times else ("position",):
        column = getattr(data, name)
        row[name] = value = read_number(cells, column, where) if column else None
        if value is not None and not _NUMBERS[name] <= value <= _MOST:
            raise UserError(
                f"{where}: the column {column!r} holds {cells[column]!r:.40}, neither "
                f"NA nor a number from {_NUMBERS[name]:g} to {_MOST:g}."
            )
    if data.position:
        if row["position"] is None or not row["position"].is_integer():
            raise UserError(
                f"{where}: the column {data.position!r} holds "
                f"{cells[data.position]!r:.40}, not the whole number of a word."
            )
        row["position"] = int(row["position"])
    return row


def _compare_words(
    rows: Sequence[Mapping[str, Any]], data: ReadingTimesDataConfig
) -> None:
    """Refuses times whose words are not those of the text."""
    text = {
        (row["story"], row["position"]): row
        for row in _read_table(data, data.text, with_times=False)
    }
    for row in rows:
        there = text.pop((row["story"], row["position"]), None)
        if there is None or there["word"] != row["word"]:
            found = repr(there["word"]) if there else "no word"
            raise UserError(
                f"{row['where']}: {row['word']!r}, word {row['position']} of story "
                f"{row['story']!r}, but {data.text} has {found} there; the two files "
                "do not belong together."
            )
    if text:
        missing = next(iter(text.values()))
        raise UserError(
            f"{missing['where']}: {missing['word']!r} is not in {data.times}, whose "
            "rows are read as the text; give it a row, with NA as its time."
        )


def _reason(
    row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], exclude: Sequence[str]
) -> str:
    """The reason to leave out a word, given those before it; "" if there is none."""
    if row["time"] is None:
        return NO_TIME
    if PUNCTUATION in exclude and not _CORE.fullmatch(row["word"]):
        return PUNCTUATION
    if row["log_frequency"] is None or (UNKNOWN in exclude and not row["known"]):
        return UNKNOWN
    if len(before) < BEFORE:
        return TOO_EARLY
    if any(other["log_frequency"] is None for other in before):
        return AFTER_UNKNOWN
    return ""


def _read_as_stories(
    rows: Sequence[dict[str, Any]], tokenizer: Tokenizer, max_seq_len: int
) -> tuple[list[ReadingWindow], list[tuple[int, int, int]]]:
    """Windows and tokens of `TimedWords`, where the rows of each story are its text."""
    numbers: dict[str, int] = {}
    words = (
        Word(
            line=numbers.setdefault(row["story"], len(numbers) + 1),
            position=number,
            end=len(row["word"]),  # white space follows
            word=row["word"],
            where=row["where"],
        )
        for number, row in enumerate(rows)
    )
    windows: list[ReadingWindow] = []
    tokens = [(0, 0, 0)] * len(rows)
    for window in reading_windows(
        encode_whole(tokenizer, words),
        DEFAULT_WORDS,
        max_seq_len,
        tokenizer.newline_id,
        after_newline=True,
    ):
        for word, (first, stop) in zip(window.words, window.spans, strict=True):
            span = first - window.num_context, stop - window.num_context
            tokens[word.position] = len(windows), *span
        windows.append(ReadingWindow(window.ids, window.num_context))
    return windows, tokens


def _read_alone(
    rows: Sequence[dict[str, Any]], tokenizer: Tokenizer
) -> tuple[list[ReadingWindow], list[tuple[int, int, int]]]:
    """The same, if each row's word is read after that row's own text."""
    made = ContextWindows(tokenizer)
    tokens = []
    for row in rows:
        number = made.add(row["context"], row["word"], row["where"])
        window = made.windows[number]
        tokens.append((number, 0, len(window.ids) - window.num_context))
    return made.windows, tokens


# --- frequencies ----------------------------------------------------------------------


def count_words(paths: str, key: str, text_field: str = "text") -> Frequency:
    """Counts the words of a text.

    A word is the text between white space, in lower case, with all but letters and
    digits stripped from its ends. Words that are looked up are treated alike.

    Args:
      paths: files, folders and globs.
      key: the configuration key that has them, for messages.
      text_field: the field to read of records.

    Returns:
      A function from a word to log10 of its count plus one, per million words, and
      whether it was counted.

    Raises:
      FileNotFoundError, UserError: if there is no such text.
    """
    as_written: collections.Counter[str] = collections.Counter()
    for text in texts_in_files(paths, key, text_field):
        for block in text.blocks():
            as_written.update(block.split())
    counts: collections.Counter[str] = collections.Counter()
    for word, count in as_written.items():
        counts[normal_word(word)] += count
    total = sum(counts.values())

    @functools.cache
    def frequency(word: str) -> tuple[float, bool]:
        count = counts[normal_word(word)]
        return math.log10((count + 1) / total * 1e6), count > 0

    return frequency


def normal_word(word: str) -> str:
    """A word as it is counted: in lower case, without punctuation at its ends."""
    word = word.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    core = _CORE.search(word)
    return core[0] if core else ""
