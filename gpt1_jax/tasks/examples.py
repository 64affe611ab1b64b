"""The checked examples of a task, from any of its sources, and their token ids.

`tfds`: TensorFlow Datasets without TensorFlow; `jsonl`: files DIR/TASK/SPLIT.jsonl
with the column names of TFDS; `official`: the files as their authors distribute them;
`files`: a file for each split of the user's own task.

TFDS differs from the official files in three ways: it shuffles the rows once, so Story
Cloze is divided differently; it reads SciTail's quotation marks as CSV quoting and so
lacks 499 training examples; and it stores scores as float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config import TaskDataConfig
from gpt1_jax.data.files import locate
from gpt1_jax.data.tables import FORMATS
from gpt1_jax.data.tfds import NotPrepared, open_dataset
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.batches import EncodedExamples, draw_examples
from gpt1_jax.tasks.rows import find, questions, read_table
from gpt1_jax.tasks.task import NO_LABEL, Example, FileLayout, Record, Task
from gpt1_jax.tasks.transforms import encode_examples, room

SPLITS = ("train", "dev", "test")
SOURCES = ("tfds", "jsonl", "official", "files")
_NAMES = {"train": "training", "dev": "dev", "test": "test"}  # for messages
_OTHERWISE = "set the source to 'official' and read the files as distributed"
_WITHOUT_FILES = "set the source to 'jsonl' and give the examples as JSON lines"

Found = tuple[str, epath.Path, FileLayout]  # a subset's name, path and table


class MissingData(FileNotFoundError):
    """The data of a split is not where it should be."""


def load_task(
    task: Task, config: TaskDataConfig, tokenizer: Tokenizer, max_seq_len: int
) -> dict[str, EncodedExamples]:
    """Reads and encodes all splits of a task.

    Args:
      task: the task to load.
      config: where its examples are, and how many to take.
      tokenizer: the pre-trained model's tokenizer.
      max_seq_len: the most tokens in a sequence, special tokens included.

    Returns:
      The splits "train" and "dev", and "test" if there is one.

    Raises:
      MissingData: if there is no training or no development split, or the test file
        that is named does not exist.
      UserError: naming the file and line of a broken example, or the split of which
        `config.drop_long` leaves nothing; if the dev split is the training split.
    """

    def read(split: str) -> list[Example]:
        return load_split(
            task,
            split,
            source=config.source,
            directory=config.dir,
            paths=config.paths(),
        )

    train, dev = read("train"), read("dev")
    _refuse_same(task, train, dev)
    try:
        test = read("test")
    except MissingData:
        if config.test:
            raise
        test = []
    splits = {}
    for split, examples, limit in (
        ("train", train, config.max_train_examples),
        ("dev", dev, config.max_dev_examples),
        ("test", test, config.max_test_examples),
    ):
        if not examples:
            continue
        drop_long = config.drop_long and split != "test"
        if not drop_long:
            examples = draw_examples(examples, limit)
        encoded = encode_examples(
            task, examples, tokenizer, max_seq_len, drop_long=drop_long
        )
        if not len(encoded):
            raise UserError(
                f"All {len(examples):,} {_NAMES[split]} examples of {task.title} are "
                f"longer than {max_seq_len} tokens, and config.data.drop_long=True "
                "leaves them out. Use a model with a larger max_seq_len, or let them "
                "be cut."
            )
        splits[split] = encoded.draw(limit)
    return splits


def _refuse_same(task: Task, train: list[Example], dev: list[Example]) -> None:
    """Refuses to choose a checkpoint by what it was trained on."""

    def content(examples: list[Example]) -> set[tuple[Any, ...]]:
        return {(each.text, each.choices, each.label) for each in examples}

    if len(train) == len(dev) and content(train) == content(dev):
        raise UserError(
            f"{task.title}: the dev split holds the examples of the training split, "
            f"from {dev[0].where} on, so its score would say nothing of others. Hold "
            "some out, for example as --config.data.dev=FILE; training examples are "
            "scored by --config.eval.train_examples=NUMBER."
        )


def describe_long_examples(
    task: Task, splits: Mapping[str, EncodedExamples], max_seq_len: int
) -> str:
    """A line on examples that were too long, or "" if there were none."""
    dropped = [
        f"{split.num_dropped:,} {_NAMES[name]}"
        for name, split in splits.items()
        if split.num_dropped
    ]
    cut = [
        f"{split.cut.sum():,} of {len(split):,} {_NAMES[name]}"
        for name, split in splits.items()
        if split.cut.any()
    ]
    lines, fitting = [], room(task, max_seq_len)
    if dropped:
        lines.append(
            f"{_listed(dropped)} examples were left out: they do not fit {fitting}."
        )
    if cut:
        lines.append(f"{_listed(cut)} examples were cut to fit {fitting}.")
    return " ".join(lines)


def _listed(parts: list[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def load_split(
    task: Task,
    split: str,
    *,
    source: str,
    directory: str,
    paths: Mapping[str, str] | None = None,
) -> list[Example]:
    """The checked examples of a split, its subsets one after another.

    Args:
      task: the task to load.
      split: "train", "dev" or "test"; the labels of "test" may be withheld.
      source: "tfds", "jsonl", "official" or "files".
      directory: the data folder; for "tfds" its data_dir, empty for its default.
      paths: for the source "files": a .jsonl, .tsv or .csv file for each split,
        whose fields or first line name the task's columns.

    Returns:
      The examples in the order of the source; those of a divided dev split in the
      order of the released code.

    Raises:
      MissingData: if the split's data is not there.
      ValueError: naming file and line of what cannot be read; if there are no
        examples, or too few to divide; for an unknown split or source.
    """
    for value, known in ((split, SPLITS), (source, SOURCES)):
        if value not in known:
            raise UserError(f"{value!r} is not one of {', '.join(known)}.")
    divided = bool(task.dev_split) and split != "test"
    records = _records(task, "dev" if divided else split, source, directory, paths)
    checked = (task.example(record, needs_label=split != "test") for record in records)
    examples = [example for example in checked if example is not None]
    if not examples:
        raise UserError(
            f"{task.title}: the {split} split of source {source!r} holds no examples; "
            "is its file complete?"
        )
    return _divide(task, examples, split) if divided else examples


def _divide(task: Task, examples: list[Example], split: str) -> list[Example]:
    from sklearn.model_selection import train_test_split  # takes a second to import

    num_dev, seed = task.dev_split or (0, 0)
    if len(examples) <= num_dev:
        raise UserError(
            f"{task.title}: the published dev split is divided into {num_dev} examples "
            f"for dev and the rest for train, but it holds {len(examples)}; is its "
            "file complete?"
        )
    train, dev = train_test_split(examples, test_size=num_dev, random_state=seed)
    return train if split == "train" else dev


def _records(
    task: Task,
    split: str,
    source: str,
    directory: str,
    paths: Mapping[str, str] | None,
) -> Iterator[Record]:
    places = {"tfds": task.tfds, "official": task.files}.get(source)
    if places is not None and split not in places:
        raise MissingData(f"{task.title}: source {source!r} has no {split} split.")
    if source == "tfds":
        yield from dataset_records(task, split, directory)
        return
    if source == "files":
        yield from own_records(split, paths or {})
        return
    folder = locate(directory)
    if source == "jsonl":
        found = _jsonl_files(task, split, folder)
    else:
        found = _official_files(task, split, folder)
    optional = task.label if split == "test" else ""
    for subset, path, table in found:
        yield from read_table(path, table, subset=subset, optional=optional)


def _jsonl_files(task: Task, split: str, folder: epath.Path) -> list[Found]:
    """`SPLIT.jsonl`, the first subset; then each `SPLIT_SUBSET.jsonl` that exists."""
    subsets = [] if task.subset_column else list(task.tfds.get(split, ()))
    first, *others = subsets or [""]
    stems = [(first, split)]
    stems += [(subset, f"{split}_{subset}") for subset in (first, *others) if subset]
    files = [(subset, folder / task.name / f"{stem}.jsonl") for subset, stem in stems]
    found = [(subset, path) for subset, path in files if path.exists()]
    names = [subset for subset, _ in found]
    if first not in names:
        raise MissingData(
            f"There is no {split} data of {task.title}: {files[0][1]} does not exist. "
            "It should hold a JSON object on each line, with the field names of "
            "TensorFlow Datasets."
        )
    if names.count(first) > 1:
        raise UserError(
            f"{task.title}: {found[0][1]} and {found[1][1]} both hold the subset "
            f"{first!r}; remove one of them."
        )
    table = FileLayout("", format="jsonl")
    return [(subset, path, table) for subset, path in found]


def _official_files(task: Task, split: str, folder: epath.Path) -> list[Found]:
    found = []
    for subset, table in task.files[split].items():
        matches = find(folder, table.path)
        if not matches and subset in task.optional:
            continue
        if not matches:
            raise MissingData(
                f"There is no {split} data of {task.title}: {folder / table.path} does "
                "not exist. Unpack the files there as their authors distribute them."
            )
        if len(matches) > 1:
            raise UserError(
                f"{task.title}: {folder / table.path} matches {len(matches)} files: "
                f"{', '.join(path.name for path in matches)}; keep one of them."
            )
        found.append((subset, matches[0], table))
    return found


def own_records(split: str, paths: Mapping[str, str]) -> Iterator[Record]:
    """The records of a user's own file.

    Args:
      split: the split to read.
      paths: a .jsonl, .tsv or .csv file for each split.

    Raises:
      MissingData: if no file is given, or it does not exist.
      ValueError: if the file is of another kind, or a line is broken.
    """
    if not paths.get(split):
        raise MissingData(
            f"No file is given for the {split} split; name it with "
            f"--config.data.{split}=FILE."
        )
    path = locate(paths[split])
    if path.suffix.lower() not in FORMATS:
        raise UserError(
            f"{path} ends in {path.suffix!r}; examples are read from "
            f"{', '.join(FORMATS)}."
        )
    if not path.exists():
        raise MissingData(f"The {split} file {path} does not exist.")
    yield from read_table(path, FileLayout("", format=FORMATS[path.suffix.lower()]))


def dataset_records(task: Task, split: str, directory: str) -> Iterator[Record]:
    """The records of a split, which TFDS prepares if it has not done so before.

    Args:
      task: the task, which names its datasets.
      split: "train", "dev" or "test".
      directory: TFDS' data_dir; empty for its default.

    Raises:
      MissingData: if the dataset is not prepared and cannot be.
      ValueError: if TFDS does not know the dataset, or it is stored as TFRecord.
    """
    for subset, spec in task.tfds[split].items():
        try:
            rows = _rows(spec, directory, _OTHERWISE if task.files else _WITHOUT_FILES)
        except FileNotFoundError:
            if subset not in task.optional:
                raise
            continue
        for index in range(len(rows)):
            row = {name: _plain(value) for name, value in rows[index].items()}
            where = f"{spec}[{index}]"
            if spec.startswith("race/"):
                yield from questions(row, where, subset)
                continue
            if task.tfds_first_label and row[task.label] != NO_LABEL:
                row[task.label] -= task.tfds_first_label
            yield Record(row, where, subset)


def _rows(spec: str, directory: str, otherwise: str) -> Sequence[Any]:
    try:
        return open_dataset(spec, directory, where=spec, otherwise=otherwise).rows
    except NotPrepared as error:
        raise MissingData(str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):  # the shortest decimal number, as in the files
        return float(str(np.float32(value)))
    return value
