"""The examples of a task: from any source to checked examples and their token ids.

A line of a file becomes an `Example` in four calls: `load_split` finds the files of a
split, `read_records` renames the columns of what `read_rows` reads, and
`Task.check_record` checks them.

There are six sources. `tfds`: TensorFlow Datasets without TensorFlow. `hub`: Parquet
files of the Hugging Face Hub, which `gpt1_jax.interop.hub_files.fetch_tasks` downloads.
`jsonl`: files DIR/TASK/SPLIT.jsonl with the column names of TFDS. `official`: the files
as their authors distribute them. `babylm`: the files of BabyLM's evaluation,
DIR/TASK.{train,valid}.jsonl, also with TFDS' names. `files`: a file for each split of
the user's own task. New examples, which only have to be labelled, come from a file or
standard input.

TFDS differs from the official files in three ways: it shuffles the rows once, so Story
Cloze is divided differently; it reads SciTail's quotation marks as CSV quoting and so
lacks 499 training examples; and it stores scores as float32.
"""

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from gpt1_jax.config.finetune import CUSTOM_TASK, TaskDataConfig
from gpt1_jax.data.files import (
    find_files,
    from_where,
    is_stream,
    json_digest,
    locate,
    sha256,
)
from gpt1_jax.data.records import (
    read_json_object,
    read_rows,
    require_column,
    warn_left_out,
)
from gpt1_jax.data.text import brief
from gpt1_jax.data.text_files import SUFFIXES, format_of
from gpt1_jax.data.tfds import Opened, open_dataset
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.tasks.batches import EncodedExamples, draw_examples
from gpt1_jax.tasks.held_out import hold_out
from gpt1_jax.tasks.task import (
    NO_LABEL,
    EmptyText,
    Example,
    FileLayout,
    NoLabel,
    Record,
    Task,
    UnknownLabel,
    UnusableRow,
)
from gpt1_jax.tasks.transforms import describe_room, encode_examples

SPLITS = ("train", "dev", "test")
_NAMES = {"train": "training", "dev": "dev", "test": "test", "new": "new"}
_OWN_NAMES = FileLayout("")  # of columns
_OTHERWISE = "set the source to 'official' and read the files as distributed"
_WITHOUT_FILES = "set the source to 'jsonl' and give the examples as JSON lines"

Unusable = list[tuple[Record, UnusableRow]]  # rows that cannot be used, and why

# --- all splits, encoded --------------------------------------------------------


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
      UserError: naming the file and line of a broken example, or all rows of a task of
        the user's own that cannot be used; naming a split whose examples are all too
        long; if the dev split is the training split.
    """
    loaded = _load_splits(task, config)
    _refuse_same(task, loaded["train"], loaded["dev"])
    limits = {
        "train": config.max_train_examples,
        "dev": config.max_dev_examples,
        "test": config.max_test_examples,
    }
    splits = {}
    for split, examples in loaded.items():
        limit = limits[split]
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
    """Refuses a dev split that would choose a checkpoint by its training examples."""

    def content(examples: list[Example]) -> set[tuple[Any, ...]]:
        return {(each.text, each.choices, each.label) for each in examples}

    if len(train) == len(dev) and content(train) == content(dev):
        own = task.name == CUSTOM_TASK
        how = ", for example as --config.data.dev=FILE" if own else ""
        raise UserError(
            f"{task.title}: the dev split holds the examples of the training split, "
            f"from {dev[0].where} on, so its score would say nothing about other "
            f"examples. Hold some out{how}; "
            "--config.eval.train_examples=NUMBER scores training examples."
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
    lines, fitting = [], describe_room(task, max_seq_len)
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


# --- the examples of a split ----------------------------------------------------


def load_split(
    task: Task,
    split: str,
    *,
    source: str,
    directory: str,
    paths: Mapping[str, str] | None = None,
    skip_empty: bool = False,
    skip_unlabelled: bool = False,
    unusable: Unusable | None = None,
) -> list[Example]:
    """Reads and checks the examples of a split, its subsets one after another.

    Args:
      task: the task to load.
      split: "train", "dev" or "test"; the labels of "test" may be withheld.
      source: as `TaskDataConfig.source`. For "hub", the files of the task must have
        been fetched.
      directory: the data folder; for "tfds" its data_dir, empty for its default; not
        used by "hub" and "files".
      paths: for the source "files", the file of each split: see `read_own_file`.
      skip_empty, skip_unlabelled, unusable: as for `check_records`.

    Returns:
      The examples in the order of the source; those of a divided dev split in the
      order of the released code.

    Raises:
      MissingData: if the split's data is not there.
      UserError: naming the file and line that cannot be read; if there are no
        examples, or too few to divide.
    """
    published = _published_split(task, split)
    if source == "tfds":
        records = _read_dataset(task, published, directory)
    elif source == "files":
        records = read_own_file(published, paths or {})
    else:
        records = _read_files(task, published, source, locate(directory))
    examples = check_records(
        task,
        records,
        needs_label=split != "test",
        skip_empty=skip_empty,
        skip_unlabelled=skip_unlabelled,
        unusable=unusable,
    )
    if not (examples or unusable):
        raise UserError(
            f"{task.title}: the {split} split of source {source!r} holds no examples; "
            "is its file complete?"
        )
    divided = task.published.dev_split and split != "test"
    return _divide(task, examples, split) if divided else examples


def _published_split(task: Task, split: str) -> str:
    """The published split that holds a split: the dev split, if it is divided."""
    return "dev" if task.published.dev_split and split != "test" else split


def count_training_examples(task: Task, config: TaskDataConfig) -> int:
    """The number of training examples of a task, of any length.

    Raises:
      MissingData, UserError: as `load_split` does.
    """
    if task.name == CUSTOM_TASK:  # all rows that cannot be used are named
        return len(_load_splits(task, config)["train"])
    return len(_load_configured(task, config, "train"))


def _load_splits(task: Task, config: TaskDataConfig) -> dict[str, list[Example]]:
    """The examples of all splits, with dev held out if the configuration says so."""
    unusable: Unusable | None = [] if task.name == CUSTOM_TASK else None
    loaded = {}
    for split in SPLITS:
        if split == "dev" and config.holds_out:
            continue
        try:
            loaded[split] = _load_configured(task, config, split, unusable)
        except MissingData:
            if split != "test" or config.test:
                raise
    _refuse_unusable(task, unusable or [])
    if config.holds_out:
        train, dev = hold_out(task, loaded.pop("train"), config)
        loaded = {"train": train, "dev": dev, **loaded}
    return loaded


def _refuse_unusable(task: Task, unusable: Unusable) -> None:
    """Refuses rows that cannot be used, all at once."""
    if not unusable:
        return
    if len(unusable) == 1:
        _, error = unusable[0]
        raise UserError(f"{error}{error.way_out}") from error

    def place(record: Record, error: UnusableRow) -> str:
        if isinstance(error, UnknownLabel):
            return f"{record.where} ({brief(record.columns[task.target.column])})"
        return record.where

    kinds: dict[str, Unusable] = {}
    for record, error in unusable:
        kinds.setdefault(error.kind, []).append((record, error))
    parts = []
    for kind, rows in kinds.items():
        record, error = rows[0]
        places = ", ".join(itertools.starmap(place, rows[:3]))
        more = ", .." if len(rows) > 3 else ""
        problem = str(error).removeprefix(f"{record.where}: ") + error.way_out
        parts.append(f"{len(rows):,} {kind} at {places}{more}: {problem}")
    raise UserError(
        f"{task.title}: {len(unusable):,} rows cannot be used. {' '.join(parts)}"
    )


def _load_configured(
    task: Task, config: TaskDataConfig, split: str, unusable: Unusable | None = None
) -> list[Example]:
    """The examples of a split, from where a configuration says."""
    return load_split(
        task,
        split,
        source=config.source,
        directory=config.dir,
        paths=config.paths(),
        skip_empty=config.skip_empty,
        skip_unlabelled=config.skip_unlabelled,
        unusable=unusable,
    )


def file_digests(task: Task, config: TaskDataConfig) -> dict[str, str]:
    """Digests of the files that a task's splits are read from; nothing is parsed.

    Equal files hold the same examples. Others may do so too, for example if they are
    compressed.

    Args:
      task: the task; of the source "hub" its files must have been fetched.
      config: where its examples are.

    Returns:
      The digests by split, but none of a dev split that is a part of the training
      file; none at all if a file is a pipe, which is read only once.

    Raises:
      MissingData, UserError: as `load_task`, if the files are not there or not clear.
    """
    digests = {}
    for split in SPLITS:
        if split == "dev" and config.holds_out:
            continue
        try:
            files = _source_files(task, split, config)
        except MissingData:
            if split != "test" or config.test:
                raise
            continue
        if any(is_stream(path) for _, path in files):
            return {}
        digests[split] = json_digest(
            [(subset, format_of(path.name), sha256(path)) for subset, path in files]
        )
    return digests


def _source_files(
    task: Task, split: str, config: TaskDataConfig
) -> list[tuple[str, epath.Path]]:
    """The files that hold a split, in order, each with the subset it belongs to."""
    split = _published_split(task, split)
    if config.source == "tfds":
        datasets = _open_datasets(task, split, config.dir)
        return [(subset, path) for subset, _, each in datasets for path in each.files]
    if config.source == "files":
        return [("", _own_file(split, config.paths()))]
    found = _find_all(task, split, config.source, locate(config.dir))
    return [
        (subset, file)
        for subset, _, path in found
        for file in (find_files(path, "*.txt") if path.is_dir() else [path])
    ]


def check_records(
    task: Task,
    records: Iterable[Record],
    *,
    needs_label: bool,
    skip_empty: bool = False,
    skip_unlabelled: bool = False,
    unusable: Unusable | None = None,
) -> list[Example]:
    """The checked examples of records, with the numbers of these.

    Args:
      task: the task.
      records: rows of a source.
      needs_label: False for test splits, whose labels may be withheld.
      skip_empty: whether rows without text are passed over, with one warning.
      skip_unlabelled: the same of rows that lack a label they need.
      unusable: takes the rows whose text or label cannot be used, and why. By default
        the first ends the reading.

    Raises:
      UserError: as `Task.check_record` does.
    """
    skipped = {EmptyText: skip_empty, NoLabel: skip_unlabelled}
    left_out: dict[str, list[str]] = {}  # where rows of each kind are
    examples = []
    for number, record in enumerate(records):
        try:
            example = task.check_record(record, needs_label=needs_label)
        except UnusableRow as error:
            if skipped.get(type(error)):
                left_out.setdefault(error.kind, []).append(record.where)
            elif unusable is None:
                raise
            else:
                unusable.append((record, error))
        else:
            if example is not None:
                examples.append(example._replace(number=number))
    for kind, places in left_out.items():
        warn_left_out(len(places), kind, places[0])
    return examples


def _divide(task: Task, examples: list[Example], split: str) -> list[Example]:
    """The training or the dev part of the published dev split."""
    from sklearn.model_selection import train_test_split  # takes a second to import

    num_dev, seed = task.published.dev_split or (0, 0)
    if len(examples) <= num_dev:
        raise UserError(
            f"{task.title}: the published dev split is divided into {num_dev} examples "
            f"for dev and the rest for train, but it holds {len(examples)}; is its "
            "file complete?"
        )
    train, dev = train_test_split(examples, test_size=num_dev, random_state=seed)
    return train if split == "train" else dev


# --- files ----------------------------------------------------------------------


class _Place(NamedTuple):
    """Where the examples of a subset are: files that match one of these patterns."""

    patterns: tuple[str, ...]
    layout: FileLayout = _OWN_NAMES
    is_optional: bool = False


_WHAT_TO_DO = {
    "hub": "Fetch them first",
    "jsonl": "Give a JSON object on each line, with the names of columns of the Hub",
    "official": "Unpack the files there as their authors distribute them",
    "babylm": "Name the folder with the tasks' files of BabyLM's evaluation, such as "
    "evaluation_data/full_eval/glue_filtered",
}


def _places(task: Task, split: str, source: str) -> Mapping[str, _Place]:
    """Where a source has the examples of a split, by subset."""
    published = task.published
    first, *others = published.subsets(split)
    if source == "hub":
        return {
            subset: _Place((path,), is_optional=subset in published.optional)
            for subset, path in published.hub.get(split, {}).items()
        }
    if source == "official":
        return {
            subset: _Place((layout.path,), layout, subset in published.optional)
            for subset, layout in published.files.get(split, {}).items()
        }
    if source == "babylm":
        name = {"train": "train", "dev": "valid"}.get(split)
        return {first: _Place((f"{task.name}.{name}.jsonl",))} if name else {}
    stem = f"{task.name}/{split}"
    if published.subset_column:  # one file holds them all
        return {"": _Place((f"{stem}.jsonl",))}
    names = (f"{stem}.jsonl", f"{stem}_{first}.jsonl") if first else (f"{stem}.jsonl",)
    return {first: _Place(names)} | {
        subset: _Place((f"{stem}_{subset}.jsonl",), is_optional=True)
        for subset in others
    }


def _read_files(
    task: Task, split: str, source: str, folder: epath.Path
) -> Iterator[Record]:
    """The records of a split in the files of a source."""
    optional = task.target.column if split == "test" else ""
    for subset, layout, path in _find_all(task, split, source, folder):
        records = read_records(path, layout, subset, optional)
        yield from map(_in_python, records) if source == "hub" else records


def _find_all(
    task: Task, split: str, source: str, folder: epath.Path
) -> Iterator[tuple[str, FileLayout, epath.Path]]:
    """The files or folders of a split, each with its subset and layout.

    Raises:
      MissingData: if they are not there.
      UserError: if two files may hold the same examples.
    """
    places = _places(task, split, source)
    _check_has_split(task, split, source, places)
    for subset, place in places.items():
        found = [path for name in place.patterns for path in _find(folder, name)]
        if not found and place.layout.newer_path:
            found = _find(folder, place.layout.newer_path)
        if not (found or place.is_optional):
            raise MissingData(
                f"There is no {split} data of {task.title}: "
                f"{folder / place.patterns[0]} does not exist{from_where(folder)}. "
                f"{_WHAT_TO_DO[source]}."
            )
        if len(found) > 1 and source != "hub":
            raise UserError(
                f"{task.title}: {' and '.join(map(str, found))} may hold the same "
                "examples; keep one of them."
            )
        yield from ((subset, place.layout, path) for path in found)


def _check_has_split(task: Task, split: str, source: str, places: object) -> None:
    if not places:
        raise MissingData(
            f"{task.title}: source {source!r} has no {split} split; name another "
            "with --config.data.source, such as jsonl."
        )


def _find(folder: epath.Path, pattern: str) -> list[epath.Path]:
    """The existing files of a name, compressed or not, or of a pattern with `*`."""
    path = folder / pattern
    if "*" in pattern:
        return find_files(path.parent, path.name)
    packed = (path.with_name(f"{path.name}{suffix}") for suffix in SUFFIXES)
    return [each for each in (path, *packed) if each.exists()]


def read_own_file(split: str, paths: Mapping[str, str]) -> Iterator[Record]:
    """The records of the user's own file of a split.

    Args:
      split: "train", "dev" or "test".
      paths: a file for each split, of any format of `read_rows`, whose fields or
        first line name the task's columns.

    Raises:
      MissingData: if no file is given, or it does not exist.
      UserError: if it is a folder or a file of another kind, or a line cannot be read.
    """
    yield from read_records(_own_file(split, paths))


def _own_file(split: str, paths: Mapping[str, str]) -> epath.Path:
    """The user's own file of a split, as `read_own_file` takes it."""
    if not paths.get(split):
        other = ""
        if split == "dev":
            other = ", or hold rows out with --config.data.dev_fraction=0.1"
        raise MissingData(
            f"No file is given for the {split} split; name it with "
            f"--config.data.{split}=FILE{other}."
        )
    path = locate(paths[split])
    if not path.exists():
        raise MissingData(f"The {split} file {path} does not exist{from_where(path)}.")
    if path.is_dir():
        raise UserError(
            f"config.data.{split}={paths[split]!r} is a folder; name a file."
        )
    return path


def read_records(
    path: epath.Path,
    layout: FileLayout = _OWN_NAMES,
    subset: str = "",
    optional: str = "",
) -> Iterator[Record]:
    """The records of a file, or of a folder of RACE's passages.

    Args:
      path: the file or folder.
      layout: its columns; `layout.path` is not used.
      subset: the records' subset.
      optional: a column of ours that the file may lack.

    Raises:
      UserError: naming file and line of a row that cannot be read or lacks a column.
    """
    if path.is_dir():
        yield from _read_passages(path, subset)
        return
    columns = layout.columns
    rows = read_rows(
        path,
        header=not any(isinstance(theirs, int) for theirs in columns.values()),
        as_published=bool(columns),
        skip_short=layout.may_be_short,
    )
    for where, cells in rows:
        if columns:
            cells = _rename_columns(cells, columns, where, optional)
        yield Record(cells, where, subset)


def _rename_columns(
    cells: Mapping[Any, Any],
    columns: Mapping[str, str | int | tuple[str, ...] | list[str]],
    where: str,
    optional: str,
) -> dict[str, Any]:
    """The cells by our names of the columns, which `FileLayout.columns` maps."""
    renamed: dict[str, Any] = {}
    for ours, theirs in columns.items():
        names = theirs if isinstance(theirs, tuple | list) else [theirs]
        if ours == optional and not all(name in cells for name in names):
            continue
        values = [require_column(cells, name, where) for name in names]
        if isinstance(theirs, list):
            renamed[ours] = values
        else:
            renamed[ours] = " ".join(values) if isinstance(theirs, tuple) else values[0]
    return renamed


def _read_passages(folder: epath.Path, subset: str) -> Iterator[Record]:
    """The questions of RACE's passages, each passage a file of JSON."""
    for path in find_files(folder, "*.txt"):
        where, passage = read_json_object(path)
        named = {("example_id" if k == "id" else k): v for k, v in passage.items()}
        yield from _questions(named, where, subset)


def _questions(passage: Mapping[str, Any], where: str, subset: str) -> Iterator[Record]:
    """The questions of a RACE passage, whose columns are named as in TFDS."""
    for name in ("article", "questions", "options", "answers", "example_id"):
        require_column(passage, name, where)
    lists = [passage[name] for name in ("questions", "options", "answers")]
    for values in lists:
        if not isinstance(values, list):
            raise UserError(f"{where}: the passage holds {brief(values)}, not a list.")
    if len({len(values) for values in lists}) != 1:
        raise UserError(
            f"{where}: the passage has {len(lists[0])} questions, {len(lists[1])} "
            f"lists of options and {len(lists[2])} answers; these numbers must agree."
        )
    shared = {name: passage[name] for name in ("article", "example_id")}
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True), 1):
        own = {"question": question, "options": options, "answer": answer}
        yield Record({**shared, **own}, f"{where}, question {number}", subset)


# --- TensorFlow Datasets --------------------------------------------------------


def _read_dataset(task: Task, split: str, directory: str) -> Iterator[Record]:
    """The records of a split, which TFDS prepares if it has not done so before."""
    for subset, spec, dataset in _open_datasets(task, split, directory):
        for index in range(len(dataset.rows)):
            where = f"{spec}[{index}]"
            row = {name: _plain(value) for name, value in dataset.rows[index].items()}
            if spec.startswith("race/"):
                yield from _questions(row, where, subset)
                continue
            if task.published.tfds_first_label and row[task.target.column] != NO_LABEL:
                row[task.target.column] -= task.published.tfds_first_label
            yield Record(row, where, subset)


def _open_datasets(
    task: Task, split: str, directory: str
) -> Iterator[tuple[str, str, Opened]]:
    """The datasets of a split: the subset, NAME:SPLIT, and what TFDS opens.

    Raises:
      MissingData: if a dataset is not prepared and cannot be.
      UserError: if TFDS does not know the dataset, or it is stored as TFRecord.
    """
    otherwise = _OTHERWISE if task.published.files else _WITHOUT_FILES
    specs = task.published.tfds.get(split, {})
    _check_has_split(task, split, "tfds", specs)
    for subset, spec in specs.items():
        try:
            opened = open_dataset(spec, directory, where=spec, otherwise=otherwise)
        except MissingData:
            if subset not in task.published.optional:
                raise
            continue
        yield subset, spec, opened


def _in_python(record: Record) -> Record:
    try:
        columns = {name: _plain(value) for name, value in record.columns.items()}
    except UnicodeDecodeError as error:
        raise UserError(f"{record.where}: text that is not UTF-8 ({error}).") from error
    return record._replace(columns=columns)


def _plain(value: Any) -> Any:
    """A value of TFDS or Parquet as Python's own: text, numbers and lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):  # the shortest decimal number, as in the files
        return float(str(np.float32(value)))
    return value


# --- new examples ---------------------------------------------------------------


def check_new_examples(
    task: Task,
    rows: Iterable[tuple[str, str | Mapping[Any, Any]]],
    *,
    skip_empty: bool = False,
) -> list[Example]:
    """Checks examples to label; labels they already have are ignored.

    Args:
      task: the task the model was trained for.
      rows: where each example is, and its cells by column, or a line of text: the texts
        of the task's columns in order, then of its choices, separated by tabs.
        `read_input` reads them from a file.
      skip_empty: whether rows without text are passed over, with one warning.

    Returns:
      The examples in order, each with the number of its row. An example's `id` is the
      value in the column `idx`, `id` or `index`, or "".

    Raises:
      UserError: naming the line of an example that cannot be read, for instance because
        it has too few texts.
    """
    target = dataclasses.replace(task.target, drop_unlabelled=False)
    task = dataclasses.replace(task, target=target)

    def unlabelled(where: str, row: str | Mapping[Any, Any]) -> Record:
        cells = _split_line(task, row, where) if isinstance(row, str) else row
        return Record({k: v for k, v in cells.items() if k != target.column}, where)

    empty: Unusable = []  # what has no label lacks text, if it cannot be used
    examples = check_records(
        task,
        itertools.starmap(unlabelled, rows),
        needs_label=False,
        unusable=empty if skip_empty else None,
    )
    if empty:
        logging.warning(
            "Rows without text get no prediction: %s of %s, the first %s.",
            f"{len(empty):,}",
            f"{len(empty) + len(examples):,}",
            ", ".join(record.where for record, _ in empty[:3]),
        )
    return examples


def _split_line(task: Task, line: str, where: str) -> dict[str, Any]:
    """The texts of a line by column."""
    texts: list[Any] = line.split("\t")
    num_choices = len(task.target.labels) if task.inputs.choices else 0
    names = [*task.inputs.text, *task.inputs.choices]
    wanted = len(task.inputs.text) + num_choices
    if len(texts) != wanted:
        raise UserError(
            f"{where}: {task.title} needs {wanted} texts separated by tabs, "
            f"{', '.join(names)}, but the line holds {len(texts)}."
        )
    if len(task.inputs.choices) == 1:  # whose column holds a list
        texts = [*texts[:-num_choices], texts[-num_choices:]]
    return dict(zip(names, texts, strict=True))
