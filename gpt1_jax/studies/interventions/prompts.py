"""Pairs of answers to prompts, as a run reads them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import ReadingWindow, content_digest
from gpt1_jax.errors import UserError
from gpt1_jax.studies.answers import Answers, AnswersTask
from gpt1_jax.studies.interventions.config import PromptsDataConfig
from gpt1_jax.studies.interventions.effects import Pair
from gpt1_jax.studies.pairs import CUSTOM, load_pairs, select_pairs
from gpt1_jax.tasks.task import Example


class Prompts(NamedTuple):
    """The two answers to each of n prompts, or the sentences of n minimal pairs."""

    examples: Sequence[Example]  # where they are from
    pairs: Sequence[Pair]  # the answers, after corrupted prompts if there are such
    clean: Sequence[Pair] | None = None  # then the same after the clean prompts

    @property
    def all_windows(self) -> list[ReadingWindow]:
        """All windows that are read."""
        return [
            window for pair in (*self.pairs, *(self.clean or ())) for window in pair
        ]

    def content_digest(self) -> str:
        """The content digest of the token ids and of where they are scored."""
        windows = [window.content for window in self.all_windows]
        return content_digest([f"{len(self.pairs)}", *windows])


def load_prompts(
    task: AnswersTask, data: PromptsDataConfig, tokenizer: Tokenizer, max_seq_len: int
) -> Prompts:
    """Reads the pairs of a task, and the corrupted prompts if they are named.

    Args:
      task: one of `select_pairs`.
      data: where its pairs are, and how many of each paradigm to draw.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that the model reads.

    Raises:
      MissingData: if there is no data.
      UserError: naming the file and line of a pair that cannot be used: one that has
        not two sentences, is longer than the context, or whose corrupted prompt has
        another number of tokens than the clean one.
    """
    answers = load_pairs(task, data, tokenizer, max_seq_len)
    pairs = _pairs(answers, max_seq_len)
    if not data.corrupted:
        return Prompts(answers.examples, pairs)
    of_corrupted = dataclasses.replace(data, context=data.corrupted)
    twins = {each.task.name: each for each in select_pairs((CUSTOM,), of_corrupted)}
    twin = load_pairs(twins[task.task.name], of_corrupted, tokenizer, max_seq_len)
    corrupted = _pairs(twin, max_seq_len)
    for example, one, other in zip(answers.examples, pairs, corrupted, strict=True):
        _check_twins(example.where, one, other)
    return Prompts(answers.examples, corrupted, pairs)


def _pairs(answers: Answers, max_seq_len: int) -> list[Pair]:
    """The windows of each example, that of its label first."""
    pairs = []
    for example, windows in answers.by_example():
        longest = max(len(window.ids) for window in windows)
        if len(windows) != 2 or longest > max_seq_len:
            raise UserError(
                f"{example.where}: {len(windows)} sentences, the longest of {longest} "
                f"tokens; components are compared on two, of up to {max_seq_len} "
                "tokens."
            )
        better, worse = windows[::-1] if example.label else windows
        pairs.append((better, worse))
    return pairs


def _check_twins(where: str, clean: Pair, corrupted: Pair) -> None:
    """Refuses a corrupted prompt whose tokens do not stand where the clean one's do."""
    for one, other in zip(clean, corrupted, strict=True):
        lengths = one.num_context, other.num_context
        answers = (list(w.ids[w.num_context :]) for w in (one, other))
        if lengths[0] != lengths[1] or next(answers) != next(answers):
            raise UserError(
                f"{where}: the clean prompt has {lengths[0] - 1} tokens and the "
                f"corrupted one {lengths[1] - 1}, or their answers begin within a "
                "token; activations can be patched where tokens correspond one to one."
            )
