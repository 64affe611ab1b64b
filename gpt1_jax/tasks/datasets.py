"""Records of TensorFlow Datasets (TFDS), without TensorFlow.

They differ from the official files in three ways: TFDS shuffles the rows once, so Story
Cloze is divided differently; it reads SciTail's quotation marks as CSV quoting and so
lacks 499 training examples; and it stores scores as float32.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpt1_jax.data.tfds import NotPrepared, open_dataset
from gpt1_jax.tasks.rows import MissingData, questions
from gpt1_jax.tasks.task import NO_LABEL, Record, Task

_OTHERWISE = "set the source to 'official' and read the files as distributed"
_WITHOUT_FILES = "set the source to 'jsonl' and give the examples as JSON lines"


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
