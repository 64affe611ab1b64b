"""Examples of zero-shot tasks as token ids: what is read, and what is scored.

There is no start token, so a text begins with a newline, as a paragraph does in
training; its first token is then scored like the others. Texts are cleaned as the
corpus is.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import Example
from gpt1_jax.tasks.zero_shot import ZeroShot

Encode = Callable[[str], list[int]]


class Answer(NamedTuple):
    """An answer to an example: what is read, and what is scored after it."""

    context: list[int]
    continuation: list[int]


class EncodedAnswers(NamedTuple):
    """The answers to N examples, those of an example next to one another."""

    answers: list[Answer]
    num_answers: list[int]  # of each example; A is the most
    num_cut: int  # examples whose text was too long

    def compare(self, log_probs: Sequence[np.ndarray], *, mean: bool) -> np.ndarray:
        """[N, A] float64: the mean or sum of each answer's log-probabilities, nats.

        Minus infinity stands for the answers that an example has fewer than others.
        """
        combine = np.mean if mean else np.sum
        counts = np.asarray(self.num_answers)
        values = np.full((len(counts), counts.max()), -np.inf)
        values[np.arange(counts.max()) < counts[:, None]] = [
            combine(each, dtype=np.float64) for each in log_probs
        ]
        return values


def encode_answers(
    way: ZeroShot, examples: Sequence[Example], tokenizer: Tokenizer, max_seq_len: int
) -> EncodedAnswers:
    """Token ids of all answers to examples.

    A text that is too long is cut: the passage at its end; without one, the context at
    its beginning. Question and answers stay whole, and the answers of an example lose
    the same.

    Args:
      way: how the task is put.
      examples: one or more.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that the model reads.

    Raises:
      ValueError: naming the example whose answers do not fit or have no tokens.
    """
    encode = functools.lru_cache(maxsize=4096)(
        lambda text: tokenizer.encode(clean(text))
    )
    answers: list[Answer] = []
    num_answers: list[int] = []
    num_cut = 0
    for example in examples:
        columns = dict(zip(way.task.text, example.text, strict=True))
        passage = encode(way.passage.format(**columns))
        lines = [
            encode_line(
                way.context.format(answer=answer, **columns),
                way.scored.format(answer=answer, **columns),
                encode,
            )
            for answer in way.answers or example.choices or ("",)
        ]
        try:
            whole = _begun(passage, lines, tokenizer.newline_id)
            fitting = _begun(*_cut(passage, lines, max_seq_len), tokenizer.newline_id)
        except ValueError as error:
            raise UserError(f"{example.where}: {error}") from error
        answers += fitting
        num_answers.append(len(fitting))
        num_cut += fitting != whole
    return EncodedAnswers(answers, num_answers, num_cut)


def encode_line(context: str, scored: str, encode: Encode) -> Answer:
    """A line, divided where the tokens of its end begin.

    It is encoded whole, since what follows a word decides how it is spelled: with or
    without a mark of its end. A token that reaches across counts as read.

    Args:
      context: the beginning of the line, which is read; may be empty.
      scored: its end.
      encode: text to ids.
    """
    ids, end = encode(context + scored), encode(scored)
    pairs = zip(reversed(ids), reversed(end), strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    first = len(ids) - len(list(same))
    return Answer(ids[:first], ids[first:])


def _begun(passage: list[int], lines: list[Answer], newline: int) -> list[Answer]:
    """The lines after the passage, and a newline before all."""
    begin = [newline, *passage, newline] if passage else [newline]
    return [Answer(begin + line.context, line.continuation) for line in lines]


def _cut(
    passage: list[int], lines: list[Answer], max_seq_len: int
) -> tuple[list[int], list[Answer]]:
    """Passage and lines that fit, with the newlines, into `max_seq_len` tokens.

    Raises:
      ValueError: if what stays whole does not fit, or nothing would be scored.
    """
    if not all(line.continuation for line in lines):
        raise UserError("an answer is empty, so there is nothing to score.")
    longest = max(len(line.context) + len(line.continuation) for line in lines)
    newlines = 2 if passage else 1
    excess = newlines + len(passage) + longest - max_seq_len
    if excess <= 0:
        return passage, lines
    shortest = min(len(line.context) for line in lines)
    if excess > (len(passage) if passage else shortest):
        kept = "question and answer" if passage else "the scored text"
        whole = longest if passage else longest - shortest
        raise UserError(
            f"there are {whole} tokens of {kept}, which stay whole; with the newlines "
            f"before them that is more than the {max_seq_len} that this model reads. "
            "Leave the task out, or choose a model with a larger max_seq_len."
        )
    if passage:
        return passage[:-excess], lines
    return passage, [Answer(line.context[excess:], line.continuation) for line in lines]
