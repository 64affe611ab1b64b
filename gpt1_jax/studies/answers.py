"""Answers to examples as texts, which a language model scores without training.

Each answer to an example becomes a text to read and a text to score, by format strings
over the columns of the task. There is no start token, so a text begins with a newline,
as a paragraph does in training; its first token is then scored like the others. Texts
are cleaned as the corpus is.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.data.text import brief, clean
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import ReadingWindow, content_digest, encode_line
from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.tasks.task import Example, Task

CANDIDATES = (  # names of the labels; most schemas need two
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)


@dataclasses.dataclass(frozen=True)
class AnswersTask:
    """A task, and how it is put to a language model as text.

    In the format strings `{answer}` stands for an answer, and a column's name for its
    text.

    Attributes:
      task: the task, whose labels number the answers and whose first metric is used.
      scored: the text whose log-probability decides.
      context: the text read before it, on the same line.
      passage: the text read before that, on its own lines. Its end is cut off if the
        model's context is too short; without a passage, the beginning of `context` is.
      answers: the texts for `{answer}`, in the order of the labels; empty: the choices
        of each example.
      mean: whether answers are compared by the mean over the scored tokens, or by the
        sum, which is the log-probability of the text as a whole.
      threshold_split: the split on which to choose a threshold, above which the label
        is 1. Empty: the best answer wins.
      splits: the splits to evaluate on; the first whose data is at hand is used.
      cut: whether texts that are too long are cut. If not, they are read in windows.
    """

    task: Task
    scored: str
    context: str = ""
    passage: str = ""
    answers: tuple[str, ...] = ()
    mean: bool = True
    threshold_split: str = ""
    splits: tuple[str, ...] = ("dev",)
    cut: bool = True


class Answers(NamedTuple):
    """The answers to N examples of a task, as a tokenizer spells them."""

    task: AnswersTask
    split: str
    examples: list[Example]
    windows: list[ReadingWindow]  # those of an example next to one another
    num_answers: list[int]  # of each example; A is the most
    num_long: int  # examples whose text is longer than the model's context
    threshold_on: "Answers | None" = None  # where to choose a threshold

    @property
    def all_windows(self) -> list[ReadingWindow]:
        """All windows to score: first those on which the threshold is chosen."""
        others = self.threshold_on.windows if self.threshold_on else []
        return others + self.windows

    @property
    def labels(self) -> np.ndarray:
        """[N] label numbers."""
        return np.asarray([example.label for example in self.examples])

    def by_example(self) -> Iterator[tuple[Example, list[ReadingWindow]]]:
        """Each example with the windows of its answers."""
        start = 0
        for example, count in zip(self.examples, self.num_answers, strict=True):
            yield example, self.windows[start : start + count]
            start += count

    def content_digest(self) -> str:
        """The content digest of the labels and of the answers' token ids."""
        contents: list[str | list[int]] = []
        for part in filter(None, (self, self.threshold_on)):
            contents.append(f"{part.split} {part.labels.tolist()}")
            if len(set(part.num_answers)) > 1:
                contents.append(f"{part.num_answers}")
            for ids, count, *_ in part.windows:
                contents.append([count, *ids[:count], len(ids) - count, *ids[count:]])
        return content_digest(contents)

    def equal(self) -> list[str]:
        """The examples of which two answers are the same tokens: "SUBSET ID"."""
        return [
            f"{example.subset} {example.id or example.where}"
            for example, windows in self.by_example()
            if len({(tuple(w.ids), w.num_context) for w in windows}) < len(windows)
        ]

    def compare(self, log_probs: Sequence[np.ndarray]) -> np.ndarray:
        """[N, A] float64: the mean or sum of each answer's log-probabilities, nats.

        If an example has fewer answers than others, minus infinity fills its row.
        """
        combine = np.mean if self.task.mean else np.sum
        counts = np.asarray(self.num_answers)
        values = np.full((len(counts), counts.max()), -np.inf)
        values[np.arange(counts.max()) < counts[:, None]] = [
            combine(each, dtype=np.float64) for each in log_probs
        ]
        return values


def encode_answers(
    task: AnswersTask,
    split: str,
    examples: list[Example],
    tokenizer: Tokenizer,
    max_seq_len: int,
) -> Answers:
    """Token ids of all answers to examples.

    A text that is too long is cut, unless the task says otherwise: the passage at its
    end; without one, the context at its beginning. Question and answers stay whole, and
    all answers to an example lose the same text.

    Args:
      task: the task, which says how examples become text.
      split: the name of the examples' split.
      examples: one or more.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that the model reads.

    Raises:
      UserError: naming the example whose answers do not fit or have no tokens.
    """
    encode = _remembering(tokenizer)
    windows: list[ReadingWindow] = []
    num_answers: list[int] = []
    num_long = 0
    for example in examples:
        columns = dict(zip(task.task.inputs.text, example.text, strict=True))
        passage = encode(task.passage.format(**columns))
        lines = [
            encode_line(
                task.context.format(answer=answer, **columns),
                task.scored.format(answer=answer, **columns),
                encode,
            )
            for answer in task.answers or example.choices or ("",)
        ]
        if not all(line.num_context < len(line.ids) for line in lines):
            raise UserError(
                f"{example.where}: an answer or sentence is empty, so there is nothing "
                "to score. (For a pronoun, the text after it is scored.)"
            )
        whole = _begun(passage, lines, tokenizer.newline_id)
        is_long = any(len(window.ids) > max_seq_len for window in whole)
        if is_long and task.cut:
            cut = _cut(passage, lines, max_seq_len, example.where)
            whole = _begun(*cut, tokenizer.newline_id)
        windows += whole
        num_answers.append(len(whole))
        num_long += is_long
    return Answers(task, split, examples, windows, num_answers, num_long)


class ContextWindows:
    """Windows of words after their contexts, from which items are made."""

    def __init__(self, tokenizer: Tokenizer):
        self.windows: list[ReadingWindow] = []
        self._newline = tokenizer.newline_id
        self._encode = _remembering(tokenizer)

    def add(self, context: str, word: str, where: str) -> int:
        """The number of the window of a word after a context, which may be empty."""
        before = f"{context.strip()} " if context.strip() else ""
        line = encode_line(before, word.strip(), self._encode)
        if line.num_context == len(line.ids):
            raise UserError(f"{where}: the word {brief(word)} is empty.")
        ids = [self._newline, *line.ids]
        self.windows.append(ReadingWindow(ids, 1 + line.num_context))
        return len(self.windows) - 1


def _remembering(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Cleans and encodes texts; remembers their ids, since many texts recur."""
    return functools.lru_cache(maxsize=4096)(lambda text: tokenizer.encode(clean(text)))


def _begun(
    passage: list[int], lines: list[ReadingWindow], newline: int
) -> list[ReadingWindow]:
    """The lines after the passage, and a newline before all."""
    begin = [newline, *passage, newline] if passage else [newline]
    return [
        ReadingWindow([*begin, *line.ids], len(begin) + line.num_context)
        for line in lines
    ]


def _cut(
    passage: list[int], lines: list[ReadingWindow], max_seq_len: int, where: str
) -> tuple[list[int], list[ReadingWindow]]:
    """Passage and lines that fit, with the newlines, into `max_seq_len` tokens.

    An example (at `where`) whose part that stays whole does not fit is refused.
    """
    longest = max(len(line.ids) for line in lines)
    excess = len(passage) + longest + (2 if passage else 1) - max_seq_len
    shortest = min(line.num_context for line in lines)
    if excess > (len(passage) if passage else shortest):
        kept = "question and answer" if passage else "the scored text"
        whole = longest if passage else longest - shortest
        raise UserError(
            f"{where}: there are {whole} tokens of {kept}, which stay whole; with the "
            f"newlines before them that is more than the {max_seq_len} that this model "
            "reads. Leave the task out, or choose a model with a larger max_seq_len."
        )
    if passage:
        return passage[:-excess], lines
    return passage, [
        ReadingWindow(line.ids[excess:], line.num_context - excess) for line in lines
    ]


# --- minimal pairs ----------------------------------------------------------------


def score_pairs(
    answers: Answers, score: Scorer, params: Params
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Scores the sentences of N minimal pairs, and how often the better one wins.

    Returns:
      predictions: [N] the number of the likeliest sentence, the first of equals.
      log_probs: [N, A] of the sentences, nats.
      scores: "n"; "num_long", the pairs read in several windows; and "paradigms", for
        each "n", "accuracy", its "standard_error", and "ties". A tie counts as one
        divided by the sentences that are tied: half a point for two.
    """
    log_probs = [each.log_probs for each in score(params, answers.windows)]
    values, labels = answers.compare(log_probs), answers.labels
    best = values == values.max(axis=1, keepdims=True)
    points = best[np.arange(len(labels)), labels] / best.sum(axis=1)
    subsets = np.asarray([example.subset for example in answers.examples])
    paradigms = {}
    for name in dict.fromkeys(subsets.tolist()):
        own = subsets == name
        count = int(own.sum())
        paradigms[name] = {
            "n": count,
            "accuracy": float(points[own].mean()),
            "standard_error": float(points[own].std() / math.sqrt(count)),
            "ties": int((best[own].sum(axis=1) > 1).sum()),
        }
    scores = {"n": len(labels), "num_long": answers.num_long, "paradigms": paradigms}
    return values.argmax(axis=1), values, scores
