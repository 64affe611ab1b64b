"""Records of TensorFlow Datasets (TFDS), without TensorFlow.

They differ from the official files in three ways: TFDS shuffles the rows once, so Story
Cloze is divided differently; it reads the quotation marks of SciTail as CSV's and so
lacks 499 training examples; and it stores scores as float32.
"""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpt1_jax.tasks.rows import MissingData, questions
from gpt1_jax.tasks.task import NO_LABEL, Record, Task

_OTHERWISE = "set the source to 'official' and read the files as distributed"


def dataset_records(task: Task, split: str, directory: str) -> Iterator[Record]:
    """The records of a split, which TFDS prepares if it has not done so before.

    Args:
      task: names the datasets.
      split: "train", "dev" or "test".
      directory: TFDS' data_dir; empty for its default.

    Raises:
      MissingData: if the dataset is not prepared and cannot be.
      ValueError: if TFDS does not know the dataset, or it is stored as TFRecord.
    """
    for subset, spec in task.tfds[split].items():
        try:
            rows = _open_dataset(spec, directory)
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


def _open_dataset(spec: str, directory: str) -> Sequence:
    import tensorflow_datasets as tfds

    name, _, split = spec.partition(":")
    manual = ""
    try:
        builder = _builder(name, directory)
        manual = getattr(builder, "MANUAL_DOWNLOAD_INSTRUCTIONS", None) or ""
        # What TFDS keeps on Google Cloud Storage is TFRecord.
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        builder.download_and_prepare(download_config=config)
        return builder.as_data_source(split)
    except tfds.core.DatasetNotFoundError as error:  # whose message lists them all
        raise ValueError(
            f"{spec}: TFDS knows no dataset {name!r} and finds none prepared in "
            f"{directory or 'its default folder'}."
        ) from error
    except (OSError, AssertionError, tfds.download.DownloadError) as error:
        raise MissingData(
            f"{spec}: TFDS cannot prepare the dataset: {error}\n{manual}\nOr "
            f"{_OTHERWISE}."
        ) from error
    except ImportError as error:
        if "tensorflow" not in str(error):
            raise
        raise MissingData(
            f"{spec}: TFDS finds {name} not prepared in "
            f"{directory or 'its default folder'}, and needs TensorFlow to prepare it. "
            "Prepare it where that is installed, with file_format='array_record', or "
            f"{_OTHERWISE}."
        ) from error
    except (NotImplementedError, ValueError, KeyError) as error:
        way_out = ""
        if "tfrecord" in str(error).lower():
            way_out = (
                " TFRecord needs TensorFlow to read; prepare the dataset again with "
                f"file_format='array_record', or {_OTHERWISE}."
            )
        raise ValueError(f"{spec}: {error}{way_out}") from error


def _builder(name: str, directory: str) -> Any:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder

    where = {"data_dir": directory or None, "file_format": "array_record"}
    try:  # prepared files first: to be read they need no class, nor what it imports
        return read_only_builder.builder_from_files(name, **where)
    except tfds.core.DatasetNotFoundError:
        importlib.import_module("tensorflow_datasets.text")  # registers GLUE's classes
        return tfds.builder(name, **where)
