"""Punctuation apart from the words that it stands at."""

import unicodedata
from collections.abc import Iterator, Sequence

from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import Word


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
