"""Records of TensorFlow Datasets (TFDS), without TensorFlow.

They differ from the files as distributed in three ways: TFDS shuffles the rows once,
so that Story Cloze is divided otherwise; its SciTail lacks 499 examples for training,
whose quotation marks it takes for CSV's; and it writes scores as float32.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpt1_jax.data.tfds import NotPrepared, open_dataset
from gpt1_jax.tasks.files import MissingData, questions
from gpt1_jax.tasks.task import NO_LABEL, Record, Task

_OTHERWISE = "set the source to 'official' and read the files as distributed"


def dataset_records(task: Task, split: str, directory: str) -> Iterator[Record]:
    """The records of a split, which TFDS has prepared or prepares now.

    Args:
      task: names the datasets.
      split: "train", "dev" or "test".
      directory: TFDS' folder; empty for its default.

    Raises:
      MissingData: if TFDS has no such split and cannot prepare it.
      ValueError: if TFDS does not know the dataset, or it is TFRecord.
    """
    for subset, spec in task.tfds[split].items():
        rows = _rows(spec, directory)
        for index in range(len(rows)):
            row = {name: _plain(value) for name, value in rows[index].items()}
            where = f"{spec}[{index}]"
            if spec.startswith("race/"):
                yield from questions(row, where, subset)
                continue
            if task.tfds_first_label and row[task.label] != NO_LABEL:
                row[task.label] -= task.tfds_first_label
            yield Record(row, where, subset)


def _rows(spec: str, directory: str) -> Sequence[Any]:
    try:
        return open_dataset(spec, directory, where=spec, otherwise=_OTHERWISE).rows
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
