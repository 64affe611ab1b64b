"""Tasks that ask what a pronoun stands for, and that only zero-shot evaluation reads.

Definite pronoun resolution is the paper's (Figure 2, right); WSC273 is the Winograd
schema challenge itself. An example becomes the texts around the pronoun, with the
candidates that may take its place.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import Record, Task, shown

_CANDIDATES = ("first", "second")  # names of the labels


def _around_the_word(record: Record) -> Record:
    """DPR: the pronoun is named, and found in the sentence."""
    columns = record.columns
    sentence, pronoun = columns.get("sentence"), columns.get("pronoun")
    if not isinstance(sentence, str) or not isinstance(pronoun, str):
        raise UserError(
            f"{record.where}: columns 'sentence' and 'pronoun' must hold texts, not "
            f"{shown(sentence)} and {shown(pronoun)}."
        )
    candidates = columns.get("candidates")
    start = _after(sentence, candidates if isinstance(candidates, list) else ())
    word = re.compile(rf"(?<!\w){re.escape(pronoun)}(?!\w)", re.IGNORECASE)
    match = word.search(sentence, start) or word.search(sentence)
    if match is None or not pronoun:
        raise UserError(
            f"{record.where}: the pronoun {shown(pronoun)} is not a word of "
            f"{shown(sentence)}."
        )
    return _split(record, sentence, match.start(), match.end())


def _after(sentence: str, candidates: Iterable[Any]) -> int:
    """Where all candidates have been mentioned, the first time."""
    places = [
        (sentence.lower().find(name.lower()), len(name))
        for name in candidates
        if isinstance(name, str)
    ]
    return max((at + length for at, length in places if at >= 0), default=0)


def _around_the_place(record: Record) -> Record:
    """WSC273: the pronoun's place is given."""
    names = ("text", "pronoun_start", "pronoun_end")
    text, start, end = (record.columns.get(name) for name in names)
    if not (
        isinstance(text, str)
        and isinstance(start, int)
        and isinstance(end, int)
        and 0 <= start < end <= len(text)
    ):
        raise UserError(
            f"{record.where}: columns 'pronoun_start' and 'pronoun_end' hold "
            f"{shown(start)} and {shown(end)}, not the place of a pronoun in "
            f"{shown(text)}."
        )
    return _split(record, text, start, end)


def _split(record: Record, text: str, start: int, end: int) -> Record:
    columns = {**record.columns, "before": text[:start], "after": text[end:]}
    return record._replace(columns=columns)


_DPR = Task(
    name="dpr",
    title="DPR",
    transform="multiple_choice",
    text=("before", "after"),
    choices=("candidates",),
    labels=_CANDIDATES,
    metrics=("accuracy",),
    may_be_empty=True,  # a pronoun may be the first or the last word
    prepare=_around_the_word,
    tfds={
        split: {"": f"definite_pronoun_resolution:{split}"}
        for split in ("train", "test")
    },
)
_WSC273 = dataclasses.replace(
    _DPR,
    name="wsc273",
    title="WSC273",
    choices=("option1", "option2"),
    prepare=_around_the_place,
    tfds={"test": {"": "wsc273:test"}},
)

WINOGRAD: Mapping[str, Task] = {task.name: task for task in (_DPR, _WSC273)}
