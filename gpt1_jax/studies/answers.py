"""Zero-shot tasks (sec. 5): how a language model answers without training.

Each answer to an example becomes a text to read and a text to score, by format strings
over the columns of the task. There is no start token, so a text begins with a newline,
as a paragraph does in training; its first token is then scored like the others. Texts
are cleaned as the corpus is.

Two tasks ask what a pronoun stands for: definite pronoun resolution (the paper's,
Figure 2, right) and WSC273, the Winograd schema challenge. Their examples become the
texts around the pronoun, and candidates to take its place. Data such as PDP-60 and
WSC-285 can be given the columns of either, with more than two candidates.
"""

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.data.text import brief, clean
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.studies.config import ZeroShotDataConfig
from gpt1_jax.tasks.batches import draw_examples
from gpt1_jax.tasks.examples import SPLITS, load_split
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example, Inputs, Published, Record, Target, Task

ALL = "all"
CANDIDATES = (  # names of the labels; most schemas need two
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)


Encode = Callable[[str], list[int]]


@dataclasses.dataclass(frozen=True)
class ZeroShotTask:
    """A task, and how it is put to a language model as text.

    In the format strings `{answer}` stands for an answer, and a column's name for its
    text.

    Attributes:
      task: the task, whose labels number the answers and whose first metric is used.
      scored: the text whose log-probability decides.
      context: what is read before it, on the same line.
      passage: what is read before that, on lines of its own. Its end is cut off if the
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

    task: ZeroShotTask
    split: str
    examples: list[Example]
    windows: list[ReadingWindow]  # those of an example next to one another
    num_answers: list[int]  # of each example; A is the most
    num_long: int  # examples whose text is longer than the model's context
    threshold_on: "Answers | None" = None  # where to choose a threshold

    @property
    def all_windows(self) -> list[ReadingWindow]:
        """All windows to score: first those on which the threshold is chosen."""
        return [
            *(self.threshold_on.windows if self.threshold_on else ()),
            *self.windows,
        ]

    @property
    def labels(self) -> np.ndarray:
        """[N] label numbers."""
        return np.asarray([example.label for example in self.examples])

    def content_digest(self) -> str:
        """The SHA-256, in hexadecimal, of labels and of the answers' token ids."""
        digest = hashlib.sha256()
        for part in filter(None, (self, self.threshold_on)):
            digest.update(f"{part.split} {part.labels.tolist()}".encode())
            if len(set(part.num_answers)) > 1:
                digest.update(f"{part.num_answers}".encode())
            for window in part.windows:
                context = window.ids[: window.num_context]
                scored = window.ids[window.num_context :]
                ids = [len(context), *context, len(scored), *scored]
                digest.update(np.asarray(ids, np.int32).tobytes())
        return digest.hexdigest()

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


# --- columns of records ---------------------------------------------------------


def _with_open_premise(record: Record) -> Record:
    """COPA: the premise without its final period, so that a connective may follow."""
    premise = record.columns.get("premise")
    if not isinstance(premise, str):
        return record
    columns = {**record.columns, "premise": premise.rstrip().removesuffix(".")}
    return record._replace(columns=columns)


def _around_the_word(record: Record) -> Record:
    """DPR: divides the sentence at the pronoun, which is named."""
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
    """The offset behind the first mention of every candidate."""
    places = [
        (sentence.lower().find(name.lower()), len(name))
        for name in candidates
        if isinstance(name, str)
    ]
    return max((at + length for at, length in places if at >= 0), default=0)


def _around_the_place(record: Record) -> Record:
    """WSC273: divides the text at the pronoun's place; each candidate has a column."""
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


# --- the tasks ------------------------------------------------------------------

_DPR = Task(
    name="dpr",
    title="DPR",
    inputs=Inputs(
        transform="multiple_choice",
        text=("before", "after"),
        choices=("candidates",),
        fewer_choices=True,
        may_be_empty=True,  # a pronoun may be the first or the last word
    ),
    target=Target(
        labels=CANDIDATES,
    ),
    metrics=("accuracy",),
    published=Published(
        prepare=_around_the_word,
        tfds={
            split: {"": f"definite_pronoun_resolution:{split}"}
            for split in ("train", "test")
        },
    ),
)
_WSC273 = dataclasses.replace(
    _DPR,
    name="wsc273",
    title="WSC273",
    inputs=dataclasses.replace(_DPR.inputs, choices=("options",)),
    published=Published(tfds={"test": {"": "wsc273:test"}}, prepare=_around_the_place),
)
_COPA = dataclasses.replace(
    TASKS["copa"],
    inputs=dataclasses.replace(
        TASKS["copa"].inputs,
        wording={"question": {"cause": "because", "effect": "so"}},
    ),
    published=dataclasses.replace(TASKS["copa"].published, prepare=_with_open_premise),
)
# All of the published examples: nothing is trained on any.
_STORY_CLOZE = dataclasses.replace(
    TASKS["story_cloze"],
    published=dataclasses.replace(TASKS["story_cloze"].published, dev_split=None),
)

_TASKS = (
    ZeroShotTask(TASKS["cola"], scored="{sentence}", threshold_split="train"),
    ZeroShotTask(
        TASKS["sst2"],
        context="{sentence} very",
        scored=" {answer}",
        answers=("negative", "positive"),
        mean=False,
    ),
    ZeroShotTask(
        TASKS["race"], passage="{article}", context="{question}", scored=" {answer}"
    ),
    ZeroShotTask(
        _DPR,
        context="{before}{answer}",
        scored="{after}",
        splits=("test", "train"),
    ),
    ZeroShotTask(_STORY_CLOZE, context="{context}", scored=" {answer}"),
    ZeroShotTask(_COPA, context="{premise} {question}", scored=" {answer}"),
    ZeroShotTask(
        _WSC273,
        context="{before}{answer}",
        scored="{after}",
        splits=("test",),
    ),
)

ZERO_SHOT: Mapping[str, ZeroShotTask] = {each.task.name: each for each in _TASKS}


def select_zero_shot_tasks(names: Sequence[str]) -> list[ZeroShotTask]:
    """The tasks named, each once; "all" stands for all of them.

    Args:
      names: of tasks; NAME:SPLIT says which split to take.

    Raises:
      UserError: if there is no such task or split.
    """
    selected: dict[str, ZeroShotTask] = {}
    for name in ZERO_SHOT if tuple(names) == (ALL,) else names:
        task, colon, split = name.partition(":")
        if task not in ZERO_SHOT:
            raise UserError(
                f"There is no zero-shot task {task!r}; there are "
                f"{', '.join(ZERO_SHOT)}, or {ALL!r} alone."
            )
        if colon and split not in SPLITS:
            raise UserError(
                f"config.tasks names {name!r}, but {split!r} is none of the splits "
                f"{', '.join(SPLITS)}."
            )
        selected[task] = ZERO_SHOT[task]
        if colon:
            selected[task] = dataclasses.replace(ZERO_SHOT[task], splits=(split,))
    return list(selected.values())


# --- answers as tokens -----------------------------------------------------------


def load_answers(
    task: ZeroShotTask, data: ZeroShotDataConfig, tokenizer: Tokenizer, max_seq_len: int
) -> Answers:
    """Reads the examples of a task and encodes the answers to them.

    Args:
      task: the task; the first of its splits whose data is at hand is read.
      data: where examples come from, and how many to draw.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that the model reads.

    Raises:
      MissingData: if there is no data of any split.
      UserError: naming the example that cannot be used.
    """

    def load(splits: Sequence[str]) -> Answers:
        split, examples = read_labelled(task, splits, data.source, data.dir)
        examples = draw_examples(examples, data.max_examples)
        return encode_answers(task, split, examples, tokenizer, max_seq_len)

    train = load([task.threshold_split]) if task.threshold_split else None
    return load(task.splits)._replace(threshold_on=train)


def read_labelled(
    task: ZeroShotTask, splits: Sequence[str], source: str, directory: str
) -> tuple[str, list[Example]]:
    """The labelled examples of the first split whose data is at hand.

    Args:
      task: the task.
      splits: names of splits.
      source: as `load_split` takes it.
      directory: the same.

    Returns:
      The name of the split, and its examples.

    Raises:
      MissingData: if there is no data of any.
      UserError: as `load_split`, or if an example has no label.
    """
    definition, missing = task.task, MissingData("")
    for split in splits:
        try:
            examples = load_split(definition, split, source=source, directory=directory)
        except MissingData as error:
            missing = missing if str(missing) else error
            continue
        for example in examples:
            if example.label is None:
                raise UserError(
                    f"{example.where}: the example has no label, as in test splits "
                    f"whose labels are withheld; take another split of "
                    f"{definition.title}, such as {definition.name}:dev."
                )
        return split, examples
    raise missing


def encode_answers(
    task: ZeroShotTask,
    split: str,
    examples: list[Example],
    tokenizer: Tokenizer,
    max_seq_len: int,
) -> Answers:
    """Token ids of all answers to examples.

    A text that is too long is cut, unless the task says otherwise: the passage at its
    end; without one, the context at its beginning. Question and answers stay whole, and
    the answers of an example lose the same.

    Args:
      task: the task, which says how examples are put.
      split: the name of the examples' split.
      examples: one or more.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that the model reads.

    Raises:
      UserError: naming the example whose answers do not fit or have no tokens.
    """
    encode = functools.lru_cache(maxsize=4096)(
        lambda text: tokenizer.encode(clean(text))
    )
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
                "to score."
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


def encode_line(context: str, scored: str, encode: Encode) -> ReadingWindow:
    """A line, divided where the tokens of its end begin.

    It is encoded whole, since a word is spelled with or without a mark of its end,
    depending on what follows. A token across the border counts as read.

    Args:
      context: the beginning of the line, which is read; may be empty.
      scored: its end.
      encode: text to ids.
    """
    ids, end = encode(context + scored), encode(scored)
    pairs = zip(reversed(ids), reversed(end), strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    first = len(ids) - len(list(same))
    return ReadingWindow(ids, first)


class ContextWindows:
    """Windows of words after their contexts, from which items are made."""

    def __init__(self, tokenizer: Tokenizer):
        self.windows: list[ReadingWindow] = []
        self._newline = tokenizer.newline_id
        self._encode = functools.lru_cache(maxsize=4096)(
            lambda text: tokenizer.encode(clean(text))
        )

    def add(self, context: str, word: str, where: str) -> int:
        """The number of the window of a word after a context, which may be empty."""
        before = f"{context.strip()} " if context.strip() else ""
        line = encode_line(before, word.strip(), self._encode)
        if line.num_context == len(line.ids):
            raise UserError(f"{where}: the word {brief(word)} is empty.")
        ids = [self._newline, *line.ids]
        self.windows.append(ReadingWindow(ids, 1 + line.num_context))
        return len(self.windows) - 1


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

    Raises:
      UserError: naming the example (`where`), if the part that stays whole does not
        fit.
    """
    longest = max(len(line.ids) for line in lines)
    newlines = 2 if passage else 1
    excess = newlines + len(passage) + longest - max_seq_len
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
