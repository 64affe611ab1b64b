"""The zero-shot tasks (sec. 5; Figure 2, right), and their examples.

Two tasks ask what a pronoun stands for: definite pronoun resolution (the paper's,
Figure 2, right) and WSC273, the Winograd schema challenge. Their examples become the
texts around the pronoun, and candidates to take its place. Data such as PDP-60 and
WSC-285 can be given the columns of either, with more than two candidates.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt1_jax.data.text import brief
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.studies.answers import CANDIDATES, Answers, AnswersTask, encode_answers
from gpt1_jax.studies.zero_shot.config import ZeroShotDataConfig
from gpt1_jax.tasks.batches import draw_examples
from gpt1_jax.tasks.examples import SPLITS, load_split
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example, Inputs, Published, Record, Target, Task

ALL = "all"

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
    """WSC273: divides the text at the pronoun's place; each candidate has a column.

    On the Hub, the candidates are a list, and the place is that of the first character.
    """
    begin, pronoun = map(record.columns.get, ("pronoun_loc", "pronoun"))
    if isinstance(begin, int) and isinstance(pronoun, str):
        places = {"pronoun_start": begin, "pronoun_end": begin + len(pronoun)}
        record = record._replace(columns={**record.columns, **places})
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

_DPR_SPLITS = ("train", "test")
_DPR_FILES = "hf://datasets/community-datasets/definite_pronoun_resolution/plain_text"
_WSC_FILES = "hf://datasets/ErnestSDavis/winograd_wsc@refs/convert/parquet/wsc273"
_DPR = Task(
    name="dpr",
    title="DPR",
    inputs=Inputs(
        transform="multiple_choice",
        text=("before", "after"),
        choices=("candidates",),
        fewer_choices=True,
        may_be_empty="all",  # a pronoun may be the first word
    ),
    target=Target(labels=CANDIDATES),
    published=Published(
        prepare=_around_the_word,
        tfds={
            each: {"": f"definite_pronoun_resolution:{each}"} for each in _DPR_SPLITS
        },
        hub={each: {"": f"{_DPR_FILES}/{each}-*.parquet"} for each in _DPR_SPLITS},
    ),
)
_WSC273 = dataclasses.replace(
    _DPR,
    name="wsc273",
    title="WSC273",
    inputs=dataclasses.replace(_DPR.inputs, choices=("options",)),
    published=Published(
        tfds={"test": {"": "wsc273:test"}},
        hub={"test": {"": f"{_WSC_FILES}/test/*.parquet"}},
        prepare=_around_the_place,
    ),
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
    AnswersTask(TASKS["cola"], scored="{sentence}", threshold_split="train"),
    AnswersTask(
        TASKS["sst2"],
        context="{sentence} very",
        scored=" {answer}",
        answers=("negative", "positive"),
        mean=False,
    ),
    AnswersTask(
        TASKS["race"], passage="{article}", context="{question}", scored=" {answer}"
    ),
    AnswersTask(
        _DPR, context="{before}{answer}", scored="{after}", splits=("test", "train")
    ),
    AnswersTask(_STORY_CLOZE, context="{context}", scored=" {answer}"),
    AnswersTask(_COPA, context="{premise} {question}", scored=" {answer}"),
    AnswersTask(
        _WSC273, context="{before}{answer}", scored="{after}", splits=("test",)
    ),
)

ZERO_SHOT: Mapping[str, AnswersTask] = {each.task.name: each for each in _TASKS}


def select_zero_shot_tasks(names: Sequence[str]) -> list[AnswersTask]:
    """The tasks named, each once; "all" stands for all of them.

    Args:
      names: names of tasks; NAME:SPLIT selects a split.

    Raises:
      UserError: if there is no such task or split.
    """
    selected: dict[str, AnswersTask] = {}
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


# Figure 2 (right) is relative to chance and to the best score published before GPT-1,
# in points. The paper does not print these constants. The best scores are those that it
# cites or the best published; not all are of a single model, as the figure's are said
# to be.
CHANCE: Mapping[str, float] = {
    **dict.fromkeys(ZERO_SHOT, 50.0),
    "cola": 0.0,
    "race": 25.0,
}
BEST_BEFORE: Mapping[str, float] = {
    "cola": 35.0,  # Table 4: single-task BiLSTM with ELMo, attention
    "sst2": 93.2,  # Table 4: sparse byte mLSTM
    "race": 53.3,  # Table 3: BiAttention MRU, an ensemble of nine
    "dpr": 76.4,  # Peng et al. 2015, test split of 564
    "story_cloze": 77.6,  # Table 3: hidden coherence model
    "copa": 71.2,  # announcement of GPT-1
    "wsc273": 63.7,  # Trinh and Le 2018, an ensemble
}


# --- their examples --------------------------------------------------------------


def load_answers(
    task: AnswersTask, data: ZeroShotDataConfig, tokenizer: Tokenizer, max_seq_len: int
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
    if train and len(set(train.labels.tolist())) == 1:
        raise UserError(
            f"All {len(train.labels):,} examples of {task.task.name}:"
            f"{train.split} have the same label, but the threshold is chosen between "
            "two labels; take more examples."
        )
    return load(task.splits)._replace(threshold_on=train)


def read_labelled(
    task: AnswersTask, splits: Sequence[str], source: str, directory: str
) -> tuple[str, list[Example]]:
    """The first of these splits whose data is at hand, and its labelled examples.

    Source and directory are as `load_split` takes them.

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
