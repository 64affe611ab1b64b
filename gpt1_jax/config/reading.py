"""The context that a word of a text is scored in, and the definition of a word."""

import dataclasses
from typing import Literal

from gpt1_jax.config.checks import NotNegative, Section


@dataclasses.dataclass(frozen=True)
class ReadingConfig(Section):
    """The context that is read before a word of a text."""

    # The context of a word: "line", the words before it in its line (in a table: in its
    # text), or "text", all words before it, including line ends.
    context: Literal["line", "text"] = "line"
    context_words: NotNegative[int] = 0  # to read before each word; 0: all that fit
    # For texts longer than the model's context: tokens that a reading window shares
    # with the next one; 0: half of the context.
    overlap: NotNegative[int] = 0


@dataclasses.dataclass(frozen=True)
class WordsConfig(ReadingConfig):
    """Adds which words are scored and what counts as a word."""

    # "scored" as if after a line end; "unscored": without a value.
    first_word: Literal["scored", "unscored"] = "scored"
    # "apart": in its own rows, where tokens allow it.
    punctuation: Literal["with_word", "apart"] = "with_word"


DEFAULT_WORDS = WordsConfig()
