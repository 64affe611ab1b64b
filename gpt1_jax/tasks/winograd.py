"""Tasks that ask what a pronoun stands for, and that only zero-shot evaluation reads.

Definite pronoun resolution is the paper's (Figure 2, right); WSC273 is the Winograd
schema challenge itself. Others, such as PDP-60 and WSC-285, can be given the columns of
either, with more than two candidates where they have them. An example becomes the texts
around the pronoun, with the candidates that may take its place.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt1_jax.data.text import brief
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import Record, Task

_CANDIDATES = (  # names of the labels, of which most schemas need two
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)


def _around_the_word(record: Record) -> Record:
    """DPR: the pronoun is named, and found in the sentence."""
    _need(record, ("sentence", "pronoun"), "candidates (a list)")
    columns = record.columns
    sentence, pronoun = columns["sentence"], columns["pronoun"]
    if not isinstance(sentence, str) or not isinstance(pronoun, str):
        raise UserError(
            f"{record.where}: columns 'sentence' and 'pronoun' must hold texts, not "
            f"{brief(sentence)} and {brief(pronoun)}."
        )
    candidates = columns.get("candidates")
    start = _after(sentence, candidates if isinstance(candidates, list) else ())
    word = re.compile(rf"(?<!\w){re.escape(pronoun)}(?!\w)", re.IGNORECASE)
    match = word.search(sentence, start) or word.search(sentence)
    if match is None or not pronoun:
        raise UserError(
            f"{record.where}: the pronoun {brief(pronoun)} is not a word of "
            f"{brief(sentence)}."
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
    """WSC273: the pronoun's place is given, and each candidate has a column."""
    names = ("text", "pronoun_start", "pronoun_end")
    _need(record, names, "option1 and option2 (and so on, or a list: options)")
    text, start, end = (record.columns[name] for name in names)
    if not (
        isinstance(text, str)
        and isinstance(start, int)
        and isinstance(end, int)
        and 0 <= start < end <= len(text)
    ):
        raise UserError(
            f"{record.where}: columns 'pronoun_start' and 'pronoun_end' hold "
            f"{brief(start)} and {brief(end)}, not the place of a pronoun in "
            f"{brief(text)}: its first character, counted from 0, and the one behind "
            "its last."
        )
    if "options" not in record.columns:
        numbered = (f"option{number}" for number in itertools.count(1))
        found = itertools.takewhile(record.columns.__contains__, numbered)
        options = [record.columns[name] for name in found]
        record = record._replace(columns={**record.columns, "options": options})
    return _split(record, text, start, end)


def _need(record: Record, names: Sequence[str], candidates: str) -> None:
    """Refuses a record that lacks a column, and names all that an example needs."""
    missing = [name for name in names if name not in record.columns]
    if missing:
        raise UserError(
            f"{record.where}: there is no column {' or '.join(map(repr, missing))}; an "
            f"example has {', '.join(names)}, {candidates} and label."
        )


def _split(record: Record, text: str, start: int, end: int) -> Record:
    columns = {**record.columns, "before": text[:start], "after": text[end:]}
    return record._replace(columns=columns)


_DPR = Task(
    name="dpr",
    title="DPR",
    transform="multiple_choice",
    text=("before", "after"),
    choices=("candidates",),
    fewer_choices=True,
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
    choices=("options",),
    prepare=_around_the_place,
    tfds={"test": {"": "wsc273:test"}},
)

WINOGRAD: Mapping[str, Task] = {task.name: task for task in (_DPR, _WSC273)}
