"""The surprisal of words: -log P(word | context).

The chain rule gives the probability of a word from those of its tokens. The last of
them ends the word (`</w>`, or the space that a SentencePiece token ends in), so no
correction is needed, as it is for tokens that begin words (Pimentel and Meister 2024,
arXiv 2406.14561). The tokens are the tokenizer's own spelling of the word. A model also
gives some probability to other spellings, so the probabilities of all possible next
words sum to a little less than one (docs/surprisal.md has the measured share).
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator

import jax

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.reading import WordsConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import ReadingWindow, Word, reading_windows
from gpt1_jax.inference.scoring import BATCH_TOKENS, Scorer
from gpt1_jax.model.language_model import Params

_WORD_END = "▁"  # shown for a token that only ends a word
_CHUNK_TOKENS = 64 * BATCH_TOKENS  # of windows scored before more are made


def word_windows(
    words: Iterable[Word], reading: WordsConfig, model: ModelConfig, newline_id: int
) -> Iterator[ReadingWindow]:
    """The windows that are read to score words, as `reading_windows` makes them."""
    return reading_windows(
        words,
        reading,
        model.max_seq_len,
        newline_id,
        after_newline=reading.first_word == "scored",
    )


def score_words(
    model: ModelConfig,
    params: Params,
    tokenizer: Tokenizer,
    texts: Iterable[Iterable[Word]],
    reading: WordsConfig,
) -> Iterator[Word]:
    """Computes the surprisal of the words of texts, a few windows at a time.

    Args:
      model: configuration of the language model; bfloat16 is less precise.
      params: its parameters.
      tokenizer: its tokenizer.
      texts: the words of each text, with their tokens. Texts are read apart.
      reading: the context to read before a word.

    Yields:
      Each word, in order, with its surprisal.

    Raises:
      UserError: if a word has no tokens or more than the model reads, or the windows'
        overlap does not fit.
    """
    score = Scorer(model, tokenizer.vocab_size, ranks_and_entropies=True)

    @functools.cache
    def token_text(token: int) -> str:
        return tokenizer.decode([token]) or _WORD_END

    windows = itertools.chain.from_iterable(
        word_windows(words, reading, model, tokenizer.newline_id) for words in texts
    )
    for chunk in window_chunks(windows):
        scored = [index for index, window in enumerate(chunk) if _has_scores(window)]
        with jax.default_matmul_precision("highest"):  # for float32 on accelerators
            scores = score(params, [chunk[index] for index in scored])
        by_window = dict(zip(scored, scores, strict=True))
        for index, window in enumerate(chunk):
            found = by_window.get(index)
            for word, (first, stop) in zip(window.words, window.spans, strict=True):
                tokens = tuple(map(token_text, word.ids))
                word = word._replace(tokens=tokens, num_tokens=len(tokens))
                if found is None or first < window.num_context:
                    yield word
                    continue
                first, stop = first - window.num_context, stop - window.num_context
                nats = abs(float(found.log_probs[first:stop].sum(dtype="float64")))
                yield word._replace(
                    nats=nats,
                    bits=nats / math.log(2),
                    rank=int(found.ranks[first]),
                    entropy_nats=float(found.entropies[first]),
                )


def _has_scores(window: ReadingWindow) -> bool:
    """Whether a window has a context, and a token to score after it."""
    return 0 < window.num_context < len(window.ids)


def window_chunks(windows: Iterable[ReadingWindow]) -> Iterator[list[ReadingWindow]]:
    """Lists of windows, long enough that those of about one length fill batches."""
    chunk: list[ReadingWindow] = []
    tokens = 0
    for window in windows:
        chunk.append(window)
        tokens += len(window.ids)
        if tokens >= _CHUNK_TOKENS:
            yield chunk
            chunk, tokens = [], 0
    if chunk:
        yield chunk
