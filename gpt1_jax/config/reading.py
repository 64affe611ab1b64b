"""The context that a word of a text is scored in, and the definition of a word."""

import dataclasses
from typing import Literal

from gpt1_jax.config.checks import NotNegative, Section


@dataclasses.dataclass(frozen=True)
class ReadingConfig(Section):
    """The context that is read before a word of a text."""

    context: Literal["line", "text"]
    context_words: NotNegative[int]
    overlap: NotNegative[int]


@dataclasses.dataclass(frozen=True)
class WordsConfig(ReadingConfig):
    """Adds which words are scored and what counts as a word."""

    first_word: Literal["scored", "unscored"]
    punctuation: Literal["with_word", "apart"]


DEFAULT_WORDS = WordsConfig(
    context="line",
    context_words=0,
    overlap=0,
    first_word="scored",
    punctuation="with_word",
)
