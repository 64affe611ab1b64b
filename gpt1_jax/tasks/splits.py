"""The splits of a task from four sources.

`tfds`: TensorFlow Datasets without TensorFlow; `jsonl`: files DIR/TASK/SPLIT.jsonl
with the column names of TFDS; `official`: the files as their authors distribute them;
`files`: a file for each split of the user's own task.
"""

from collections.abc import Iterator, Mapping

from etils import epath

from gpt1_jax.data.files import locate
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.datasets import dataset_records
from gpt1_jax.tasks.rows import FORMATS, MissingData, find, read_table
from gpt1_jax.tasks.task import Example, Record, Table, Task

SPLITS = ("train", "dev", "test")
SOURCES = ("tfds", "jsonl", "official", "files")

Found = tuple[str, epath.Path, Table]  # a subset's name, path and table


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
    table = Table("", format="jsonl")
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
    yield from read_table(path, Table("", format=FORMATS[path.suffix.lower()]))
