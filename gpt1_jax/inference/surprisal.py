"""How surprising words are: -log P(word | what is read before it).

The chain rule gives the probability of a word from those of its tokens. The last of
them ends the word (`</w>`, or the space that a SentencePiece token ends in), so nothing
needs the correction that tokens which begin words do (Pimentel and Meister 2024, arXiv
2406.14561). The tokens are those by which the tokenizer spells the word. A model gives
some probability to other spellings, too, so the probabilities of all words that may
come next sum to a little less than one (docs/surprisal.md has the measured share).
"""

import bisect
import functools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax

from gpt1_jax.config import ModelConfig, WordsConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import (
    Context,
    Span,
    Window,
    Word,
    punctuation_apart,
    sentence_starts,
    split_words,
    windows,
)
from gpt1_jax.inference.scoring import BATCH_TOKENS, Pair, Scorer, TokenScores
from gpt1_jax.model.language_model import Params

_WORD_END = "▁"  # shown for a token that is nothing but the end of a word
_CHUNK_TOKENS = 16 * BATCH_TOKENS  # of windows that are scored before more are made


class Place(NamedTuple):
    """Where a word stands in a text."""

    line: int  # from 1
    sentence: int  # from 1, through the text; a line's end ends one
    position: int  # in its sentence, from 1
    start: int  # offset of the word's first character in the text
    end: int  # offset behind its last character
    word: str  # as it stands there


class Surprisal(NamedTuple):
    """How surprising a word is."""

    tokens: tuple[str, ...]  # as text
    num_tokens: int
    nats: float  # NaN if nothing is read before the word
    bits: float
    rank: float  # of its first token among all tokens, the likeliest 1; NaN if none
    entropy_nats: float  # of the next token, before the word


class WordSurprisal(NamedTuple):
    """A word of a text: `Place` and `Surprisal`."""

    line: int
    sentence: int
    position: int
    start: int
    end: int
    word: str
    tokens: tuple[str, ...]
    num_tokens: int
    nats: float
    bits: float
    rank: float
    entropy_nats: float


class WordScorer:
    """Computes how surprising words are, a few windows at a time.

    Args:
      model: configuration of the language model; in bfloat16 values are rougher.
      tokenizer: the model's tokenizer.
      reading: what is read before a word.

    Raises:
      ValueError: if the overlap does not fit the model's context.
    """

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer, reading: WordsConfig):
        self._score = Scorer(model, tokenizer.vocab_size)
        self._token_text = functools.lru_cache(maxsize=None)(
            lambda token: tokenizer.decode([token]) or _WORD_END
        )
        self._context = Context.of(
            reading,
            model.max_seq_len,
            tokenizer.newline_id,
            after_newline=reading.first_word == "scored",
        )

    def __call__(self, params: Params, words: Iterable[Word]) -> Iterator[Surprisal]:
        """The surprisal of each word, in order.

        Args:
          params: the language model's parameters.
          words: with their tokens and lines.

        Raises:
          ValueError: if a word has no tokens, or more than the model reads.
        """
        for chunk in _chunks(windows(words, self._context)):
            # Without a context, or without a token behind it, there is nothing to ask.
            asked = [n for n, w in enumerate(chunk) if 0 < w.num_context < len(w.ids)]
            with jax.default_matmul_precision("highest"):  # of float32, on accelerators
                scores = self._score(params, [_pair(chunk[n]) for n in asked])
            found = dict(zip(asked, scores, strict=True))
            for number, window in enumerate(chunk):
                for span in window.spans:
                    yield self._of_word(span, window.num_context, found.get(number))

    def _of_word(
        self, span: Span, num_context: int, scores: TokenScores | None
    ) -> Surprisal:
        """The surprisal of a word of a window."""
        tokens = tuple(map(self._token_text, span.word.ids))
        first, stop = span.first - num_context, span.stop - num_context
        if scores is None or first < 0:
            return Surprisal(tokens, len(tokens), *[math.nan] * 4)
        nats = abs(float(scores.log_probs[first:stop].sum(dtype="float64")))
        return Surprisal(
            tokens,
            len(tokens),
            nats,
            nats / math.log(2),
            int(scores.ranks[first]),
            float(scores.entropies[first]),
        )


def place_words(
    tokenizer: Tokenizer, lines: Iterable[tuple[int, int, str]], apart: bool
) -> Iterator[tuple[Place, Word]]:
    """The words of a text, and where they stand.

    Args:
      tokenizer: the model's tokenizer.
      lines: of each its number, from 1, the characters before it, and the line itself.
      apart: whether punctuation is apart from the words it stands at.
    """
    sentence = 0
    for number, offset, text in lines:
        starts = sentence_starts(text)
        begun = position = 0
        for word in split_words(tokenizer, text):
            for part in punctuation_apart(tokenizer, word) if apart else (word,):
                if (reached := bisect.bisect_right(starts, part.start)) != begun:
                    begun, position, sentence = reached, 0, sentence + 1
                position += 1
                place = Place(
                    number,
                    sentence,
                    position,
                    offset + part.start,
                    offset + part.end,
                    part.text,
                )
                yield place, part._replace(line=number - 1)


def _pair(window: Window) -> Pair:
    return Pair(window.ids[: window.num_context], window.ids[window.num_context :])


def _chunks(read: Iterable[Window]) -> Iterator[list[Window]]:
    """Lists of windows, long enough that those of about one length fill batches."""
    chunk: list[Window] = []
    tokens = 0
    for window in read:
        chunk.append(window)
        tokens += len(window.ids)
        if tokens >= _CHUNK_TOKENS:
            yield chunk
            chunk, tokens = [], 0
    if chunk:
        yield chunk
