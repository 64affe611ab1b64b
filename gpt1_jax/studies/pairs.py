"""Minimal pairs as zero-shot tasks: which of several sentences is the likeliest?

The answers to an example are its sentences. They are compared by the log-probability of
the whole sentence, or its end after a context. BLiMP's paradigms make a task for each
term; a file of the user's own pairs makes one too. The subset of an example is its
paradigm.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

from gpt1_jax.data.files import locate
from gpt1_jax.data.named_texts import find_files
from gpt1_jax.data.records import cell_text, check_can_read, require_column
from gpt1_jax.data.text_files import FORMATS, unpacked_name
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.interop.hub_files import fetch_tasks
from gpt1_jax.studies.answers import CANDIDATES, Answers, AnswersTask, encode_answers
from gpt1_jax.studies.blimp import FIELDS, PARADIGMS, TERMS
from gpt1_jax.studies.config import PairsDataConfig
from gpt1_jax.tasks.batches import draw_examples
from gpt1_jax.tasks.examples import check_records, load_split, read_records
from gpt1_jax.tasks.task import (
    Example,
    FileLayout,
    Inputs,
    Published,
    Record,
    Target,
    Task,
    is_blank,
)

BLIMP, CUSTOM = "blimp", "custom"
_SPLIT = "test"  # nothing is trained on any pair
_GOOD = "(the better sentence)"  # a column that no file has


def select_pairs(names: Sequence[str], data: PairsDataConfig) -> list[AnswersTask]:
    """The tasks that a configuration names.

    Args:
      names: `BLIMP`, or any of its paradigms, terms and fields; or `CUSTOM` alone.
      data: which, for `CUSTOM`, names the files.

    Raises:
      FileNotFoundError, UserError: if there is no such paradigm, term, field or file.
    """
    custom = tuple(names) == (CUSTOM,)
    if custom != (data.source == "files"):
        raise UserError(
            f"config.tasks={tuple(names)} does not go with config.data.source="
            f"{data.source!r}: pairs of your own (the preset custom) are "
            "read from source='files', BLiMP's from the others."
        )
    if custom:
        return _own_tasks(data)
    chosen: dict[str, str] = {}  # paradigms, and their terms
    for name in names:
        found = {
            paradigm.name: paradigm.term
            for paradigm in PARADIGMS.values()
            if name in (BLIMP, paradigm.name, paradigm.term, paradigm.field)
        }
        if not found:
            raise UserError(
                f"BLiMP has no paradigm, term or field {name!r}; its fields are "
                f"{', '.join(FIELDS)}, its terms {', '.join(TERMS)}, and its paradigms "
                "those of gpt1_jax/studies/blimp.py."
            )
        chosen |= found
    by_term = {term: [p for p, of in chosen.items() if of == term] for term in TERMS}
    return [_blimp_task(term, own) for term, own in by_term.items() if own]


def _blimp_task(term: str, paradigms: Sequence[str]) -> AnswersTask:
    task = Task(
        name=term,
        title=term.replace("_", " "),
        inputs=Inputs("multiple_choice", (), choices=("sentence_good", "sentence_bad")),
        target=Target(labels=("good", "bad"), column=_GOOD),
        published=Published(
            prepare=_prepare_blimp,
            tfds={_SPLIT: {name: f"blimp/{name}:train" for name in paradigms}},
            hub={
                _SPLIT: {
                    name: f"hf://datasets/nyu-mll/blimp/{name}/train-*.parquet"
                    for name in paradigms
                }
            },
            files={_SPLIT: {name: FileLayout(f"{name}.jsonl") for name in paradigms}},
        ),
    )
    return AnswersTask(task, scored="{answer}", mean=False, splits=(_SPLIT,), cut=False)


def _prepare_blimp(record: Record) -> Record:
    """The first sentence is the better one; TFDS and the Hub name ids differently."""
    columns = record.columns
    identity = columns.get("pairID", columns.get("pair_id"))
    return record._replace(columns={**columns, _GOOD: 0, "idx": identity})


def fetch_pairs(tasks: Sequence[AnswersTask]) -> list[AnswersTask]:
    """Downloads BLiMP's files from the Hub, those of all tasks together.

    Args:
      tasks: BLiMP's tasks.

    Returns:
      The tasks with the files' local paths.

    Raises:
      MissingData: if the Hub lacks one of them.
      UserError, OSError: if the Hub does not answer, or the disk lacks room.
    """
    paradigms = [name for each in tasks for name in each.task.published.hub[_SPLIT]]
    together = dataclasses.replace(_blimp_task(BLIMP, paradigms).task, title="BLiMP")
    found, _ = fetch_tasks([together])
    local = found[BLIMP].published.hub[_SPLIT]
    fetched = []
    for each in tasks:
        places = {name: local[name] for name in each.task.published.hub[_SPLIT]}
        published = dataclasses.replace(each.task.published, hub={_SPLIT: places})
        task = dataclasses.replace(each.task, published=published)
        fetched.append(dataclasses.replace(each, task=task))
    return fetched


# --- the user's own pairs -------------------------------------------------------


def _own_tasks(data: PairsDataConfig) -> list[AnswersTask]:
    """A task for each file."""
    tasks: dict[str, AnswersTask] = {}
    for path in find_files(data.files, "config.data.files", tuple(FORMATS)):
        check_can_read(path)
        name = Path(unpacked_name(path.name)).stem
        if name in tasks:
            raise UserError(
                f"config.data.files names two files {name!r}, whose scores would have "
                "one name; rename one."
            )
        tasks[name] = _own_task(data, str(path), name)
    return list(tasks.values())


def _context_column(data: PairsDataConfig) -> str:
    """Our column for what stands before the sentences, none of which has its name."""
    return "(the context)" if "context" in data.sentences else "context"


def _own_task(data: PairsDataConfig, path: str, name: str) -> AnswersTask:
    listed = len(data.sentences) == 1
    context = _context_column(data)
    task = Task(
        name=name,
        title=name,
        inputs=Inputs(
            transform="multiple_choice",
            text=(context,),
            choices=data.sentences,
            fewer_choices=listed,
            may_be_empty="all",  # a context; an empty sentence is refused as an answer
        ),
        target=Target(labels=CANDIDATES if listed else data.sentences, column=_GOOD),
        published=Published(
            prepare=functools.partial(_prepare_own, data, name),
            files={_SPLIT: {"": FileLayout(path)}},
        ),
    )
    return AnswersTask(
        task,
        context=f"{{{context}}}",
        scored="{answer}",
        mean=False,
        splits=(_SPLIT,),
        cut=False,
    )


def _prepare_own(data: PairsDataConfig, file: str, record: Record) -> Record:
    columns = record.columns

    def cell(column: str, otherwise: object) -> object:
        if not column:
            return otherwise
        return require_column(columns, column, record.where)

    for sentence in data.sentences:  # before columns of ours are among those named
        require_column(columns, sentence, record.where)
    context = cell_text(cell(data.context, ""), data.context, record.where)
    good = cell(data.good, 0)
    if is_blank(good):
        raise UserError(f"{record.where}: there is no label in column {data.good!r}.")
    if context.strip():
        context = f"{context.rstrip()} "
    more = {_context_column(data): context, _GOOD: good}
    paradigm = cell_text(cell(data.paradigm, file), data.paradigm, record.where)
    return record._replace(columns={**columns, **more}, subset=paradigm)


# --- pairs as tokens ------------------------------------------------------------


def load_pairs(
    task: AnswersTask, data: PairsDataConfig, tokenizer: Tokenizer, max_seq_len: int
) -> Answers:
    """Reads the pairs of a task and encodes their sentences.

    Args:
      task: one of `select_pairs`.
      data: where its pairs are, and how many of each paradigm to draw.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that the model reads.

    Raises:
      MissingData: if there is no data.
      UserError: naming the file and line of a pair that cannot be used.
    """
    if data.source == "files":
        examples = _read_own(task.task)
    else:
        examples = load_split(task.task, _SPLIT, source=data.source, directory=data.dir)
    by_paradigm = itertools.groupby(
        sorted(examples, key=lambda each: each.subset), lambda each: each.subset
    )
    drawn = [
        example
        for _, of_paradigm in by_paradigm
        for example in draw_examples(list(of_paradigm), data.max_pairs)
    ]
    return encode_answers(task, _SPLIT, drawn, tokenizer, max_seq_len)


def _read_own(task: Task) -> list[Example]:
    layout = task.published.files[_SPLIT][""]
    records = read_records(locate(layout.path), layout)
    examples = check_records(task, records, needs_label=True)
    if not examples:
        raise MissingData(f"{layout.path} holds no pairs.")
    return examples
