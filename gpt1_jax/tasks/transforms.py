"""Figure 1: an example as sequences of tokens with start, delimiter and extract.

A field that is too long keeps its beginning. Two fields get half the room each, as in
the released code (254 tokens of 512), or the longer one is cut first
(`Inputs.cut_longer`); if a question follows the context, question and choice stay whole
and the context is cut. Texts are cleaned as the corpus is.
"""

import functools
from collections.abc import Sequence

import numpy as np
from etils import epy

from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import (
    NUM_SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
    special_tokens,
)
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.batches import EncodedExamples
from gpt1_jax.tasks.task import Example, Label, Task

with epy.lazy_imports():  # it takes a moment, and only outputs need it
    from scipy import special

_SHORTEST = 2 * NUM_SPECIAL_TOKENS  # leaves each text of a pair one token


class _NoRoom(UserError):
    """An example whose question and choice leave no room for the extract token."""


def encode_examples(
    task: Task,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_seq_len: int,
    *,
    drop_long: bool = False,
) -> EncodedExamples:
    """Encodes examples as token ids, with their targets.

    Args:
      task: the task, with its transform and labels.
      examples: the examples.
      tokenizer: the pre-trained model's tokenizer.
      max_seq_len: the most tokens in a sequence, special tokens included.
      drop_long: whether examples that are too long are left out instead of cut.

    Raises:
      UserError: if question and choice of an example leave no room for the extract
        token, unless such examples are left out.
    """
    if max_seq_len < _SHORTEST:
        raise UserError(
            f"Sequences of {max_seq_len} tokens have no room for two texts and three "
            f"special tokens; config.data.max_seq_len must be at least {_SHORTEST}."
        )
    encode = functools.lru_cache(maxsize=4096)(
        lambda text: np.asarray(tokenizer.encode(clean(text)), np.int32)
    )
    specials = special_tokens(tokenizer.vocab_size)
    kept: list[Example] = []
    sequences: list[list[np.ndarray]] = []
    cut: list[bool] = []
    for example in examples:
        text = [encode(field) for field in task.inputs.format_text(example)]
        choices = [encode(choice) for choice in example.choices]
        try:
            made = transform(task, text, choices, specials, max_seq_len)
        except _NoRoom as error:
            if drop_long:
                continue
            raise UserError(f"{example.where}: {error}") from error
        is_cut = _is_cut(task, text, choices, made)
        if not (is_cut and drop_long):
            kept.append(example)
            sequences.append(made)
            cut.append(is_cut)
    labels = [example.label for example in kept]
    return EncodedExamples.collect(
        kept, sequences, targets(task, labels), cut, len(examples) - len(kept)
    )


def _is_cut(
    task: Task,
    text: Sequence[np.ndarray],
    choices: Sequence[np.ndarray],
    sequences: Sequence[np.ndarray],
) -> bool:
    """Whether a sequence of an example lacks tokens of its texts."""
    fixed = sum(map(len, text)) + (2 if task.inputs.transform == "single" else 3)
    whole = [fixed + len(choice) for choice in choices] or [fixed] * len(sequences)
    return any(len(s) < n for s, n in zip(sequences, whole, strict=True))


def transform(
    task: Task,
    text: Sequence[np.ndarray],
    choices: Sequence[np.ndarray],
    specials: SpecialTokens,
    max_seq_len: int,
) -> list[np.ndarray]:
    """The sequences of one example (Figure 1).

    | transform       | sequences of an example                    |
    | --------------- | ------------------------------------------ |
    | single          | [s] text [e]                               |
    | pair            | [s] a [$] b [e]                            |
    | similarity      | [s] a [$] b [e] and [s] b [$] a [e]        |
    | multiple_choice | [s] context question [$] choice [e], each  |

    Args:
      task: the task, with its `transform`.
      text: [length] ids of each text.
      choices: [length] ids of each choice.
      specials: ids of the special tokens.
      max_seq_len: the most tokens in a sequence, special tokens included.

    Returns:
      C arrays of ids.

    Raises:
      UserError: if question and choice leave no room for the extract token.
    """
    if task.inputs.transform == "single":
        return [_join(specials, text[0][: max_seq_len - 2])]
    half = _half(max_seq_len)
    if task.inputs.cut_longer:
        room = max_seq_len - 3
        first = text[0][: max(room - len(text[1]), room - room // 2)]
        second = text[1][: max(room - len(text[0]), room // 2)]
        return [_join(specials, first, second)]
    if task.inputs.transform == "pair":
        return [_join(specials, text[0][:half], text[1][:half])]
    if task.inputs.transform == "similarity":
        first, second = text[0][:half], text[1][:half]
        return [_join(specials, first, second), _join(specials, second, first)]
    if len(text) == 1:
        return [_join(specials, text[0][:half], c[:half]) for c in choices]
    context, question = text[0], np.concatenate(text[1:])
    sequences = []
    for choice in choices:
        room = max_seq_len - 3 - len(question) - len(choice)
        if room < 0:
            raise _NoRoom(
                f"question and choice take {len(question)} and {len(choice)} tokens; "
                f"with three special tokens that is more than the {max_seq_len} the "
                "model reads, and the extract token would be cut off. Leave the "
                "example out (config.data.drop_long=True does, in training and dev "
                "splits), or use a model with a larger max_seq_len."
            )
        sequence = _join(specials, np.concatenate([context[:room], question]), choice)
        sequences.append(sequence)
    return sequences


def describe_room(task: Task, max_seq_len: int) -> str:
    """The most tokens that an example may have, in words for messages."""
    shared = task.inputs.cut_longer or (
        task.inputs.choices and len(task.inputs.formats or task.inputs.text) > 1
    )
    if task.inputs.transform == "single" or shared:
        return f"{max_seq_len} tokens"
    return f"{max_seq_len} tokens, {_half(max_seq_len)} for each text"


def _half(max_seq_len: int) -> int:
    """The most tokens of each of two fields, as in the released code."""
    return max_seq_len // 2 - 2


def _join(specials: SpecialTokens, *fields: np.ndarray) -> np.ndarray:
    """[s] field [$] field ... [e]."""
    parts: list[np.ndarray | list[int]] = [[specials.start], fields[0]]
    for field in fields[1:]:
        parts += [[specials.delimiter], field]
    return np.concatenate([*parts, [specials.extract]]).astype(np.int32)


def num_outputs(task: Task) -> int:
    """K, the number of columns in the targets."""
    if task.target.score_range and task.target.score_loss == "soft_labels":
        return len(_score_classes(task))
    return len(task.target.labels) if task.target.labels else 1


def output_names(task: Task) -> tuple[str, ...]:
    """What the head's outputs stand for: labels or scores; () if it is a score."""
    if task.target.labels or num_outputs(task) == 1:
        return task.target.labels
    return tuple(f"{score:g}" for score in _score_classes(task))


def _score_classes(task: Task) -> np.ndarray:
    low, high = task.target.score_range or (0.0, 0.0)
    return np.arange(low, high + 1, dtype=np.float32)


def targets(task: Task, labels: Sequence[Label | None]) -> np.ndarray:
    """Target probabilities or scores of the head.

    A label gets probability 1, and so does each of several. With "soft_labels", a score
    y becomes two probabilities: floor(y) + 1 - y of class floor(y), and y - floor(y) of
    the next (utils.py of the released code: 3.8 gives 0.2 and 0.8). With "regression"
    it stays y.

    Returns:
      [examples, K] float32; rows of zeros for examples without a label.
    """
    rows = np.zeros((len(labels), num_outputs(task)), np.float32)
    for row, label in zip(rows, labels, strict=True):
        if label is None:
            continue
        if task.target.labels:
            row[np.asarray(label, int)] = 1.0
        elif task.target.score_loss == "regression":
            row[:] = label
        else:
            row[:] = np.maximum(0.0, 1.0 - np.abs(_score_classes(task) - label))
    return rows


def read_outputs(task: Task, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and probabilities from the head's outputs.

    Args:
      task: the task, with its labels.
      logits: [examples, K], the outputs.

    Returns:
      [examples] label numbers (int) or scores (float), and [examples, K]
      probabilities, [examples, 0] for a regression. Of several labels an example,
      [examples, K] whether each has a probability of at least 0.5.
    """
    if task.target.multilabel:
        probabilities = special.expit(logits.astype(np.float64))
        return probabilities >= 0.5, probabilities
    if task.target.score_range and task.target.score_loss == "regression":
        return logits[:, 0].astype(np.float64), np.zeros((len(logits), 0))
    probabilities = special.softmax(logits.astype(np.float64), axis=1)
    if task.target.score_range:
        return probabilities @ _score_classes(task), probabilities
    return logits.argmax(axis=1), probabilities
