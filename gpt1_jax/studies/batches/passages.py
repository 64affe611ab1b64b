"""Finds where a passage stands in the tokens of a prepared corpus."""

from collections.abc import Iterator

import numpy as np

from gpt1_jax.data.shards import TokenReader
from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError

_TOGETHER = 1 << 22  # tokens searched at a time
_TOKENS_OF_CHARACTER = 4  # at most: a character may be spelled in UTF-8 bytes
_UNFINISHED = 3  # characters that stand for the bytes of one, at most


def find_passage(
    reader: TokenReader, tokenizer: Tokenizer, passage: str
) -> Iterator[tuple[int, int]]:
    """Finds all places of a passage in a split, however it is divided into lines.

    The tokens of its inner words must be those of the text, as must all characters of
    its first and last word, which may be parts of words: tokens there depend on what
    stands beside them, such as a comma. White space is ignored, and so is any
    difference that the tokenizer removes, such as that between upper and lower case.
    One of two words, and a passage of one word, is found only where its tokens are
    those of the word between spaces.

    Args:
      reader: reads the split.
      tokenizer: the one that made its tokens.
      passage: the text to find.

    Yields:
      The positions of its first token and of the first token behind it, in order.

    Raises:
      UserError: if the passage holds no token, or the tokens of a word depend on
        whether it begins a line.
    """
    if not tokenizer.marks_word_ends:
        raise UserError(
            "Passages cannot be found in this run: its tokenizer may spell a word in "
            "another way where a line begins, and a passage may be divided into lines "
            "anywhere. Ask for updates instead, with --config.steps=STEPS."
        )
    words = [word for word in clean(passage).split() if tokenizer.encode(word)]
    if not words:
        raise UserError(
            f"The passage {passage!r:.80} has no tokens, only white space or control "
            "characters; give some words."
        )
    ways = [("", words, "")]
    if len(words) == 2:  # one of them is whole
        ways = [("", words[:1], words[1]), (words[0], words[1:], "")]
    elif len(words) > 2:
        ways = [(words[0], words[1:-1], words[-1])]
    found: dict[int, int] = {}  # where each begins and, without an end mark, ends
    for way in ways:
        for start, end in _find(reader, tokenizer, *way):
            found[start] = min(end, found.get(start, end))
    yield from sorted(found.items())


def _find(
    reader: TokenReader, tokenizer: Tokenizer, head: str, inner: list[str], tail: str
) -> Iterator[tuple[int, int]]:
    """Places of some words between the ends of two others, which may be empty."""
    core = tokenizer.encode(" ".join(inner))
    head, tail = (_characters(tokenizer, tokenizer.encode(w)) for w in (head, tail))
    for first, last in _find_tokens(reader, core, tokenizer.newline_id):
        start = _begin(reader, tokenizer, first, head)
        end = _end(reader, tokenizer, last + 1, tail)
        if start is not None and end is not None:
            yield start, end


def _find_tokens(
    reader: TokenReader, wanted: list[int], newline: int
) -> Iterator[tuple[int, int]]:
    """Positions of the first and last of some tokens, newlines between left out."""
    size = len(wanted)
    ids = positions = np.zeros(0, np.int64)
    for start in range(0, len(reader), _TOGETHER):
        block = reader.read(start, _TOGETHER)
        kept = np.flatnonzero(block != newline)
        ids = np.concatenate([ids, block[kept]])
        positions = np.concatenate([positions, start + kept])
        found = np.arange(max(len(ids) - size + 1, 0))
        for place, token in enumerate(wanted):
            found = found[ids[found + place] == token]
        for index in found:
            yield int(positions[index]), int(positions[index + size - 1])
        rest = max(len(ids) - size + 1, 0)
        ids, positions = ids[rest:], positions[rest:]


def _begin(
    reader: TokenReader, tokenizer: Tokenizer, first: int, head: str
) -> int | None:
    """Where a text begins that ends before a position; None if it is another text."""
    if not head:
        return first
    low = max(first - _most_tokens(head), 0)
    ids = reader.read(low, first - low)
    for index in reversed(range(len(ids))):
        found = _characters(tokenizer, ids[index:])
        if found.endswith(head):
            return low + index
        if len(found) > len(head) + _UNFINISHED:
            break
    return None


def _end(reader: TokenReader, tokenizer: Tokenizer, last: int, tail: str) -> int | None:
    """Where a text ends that begins at a position; None if it is another text."""
    if not tail:
        return last
    ids = reader.read(last, _most_tokens(tail))
    for index in range(len(ids)):
        found = _characters(tokenizer, ids[: index + 1])
        if found.startswith(tail):
            return last + index + 1
        if len(found) > len(tail) + _UNFINISHED:
            break
    return None


def _most_tokens(text: str) -> int:
    return _TOKENS_OF_CHARACTER * len(text) + 1  # and a line end


def _characters(tokenizer: Tokenizer, ids: np.ndarray | list[int]) -> str:
    """The characters of tokens, without white space."""
    return "".join(tokenizer.decode([int(i) for i in ids]).split())
