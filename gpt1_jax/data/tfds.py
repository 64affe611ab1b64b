"""TensorFlow Datasets (TFDS), opened without TensorFlow, only in this module."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.files import file_stamp, files_below, json_digest
from gpt1_jax.data.named_texts import TRAIN_KEY, VALID_KEY, NamedText
from gpt1_jax.errors import MissingData, UserError, from_extra

_MAX_TEXTS = 10_000


class Opened(NamedTuple):
    """A split of a prepared dataset."""

    info: Any  # tfds.core.DatasetInfo
    rows: Sequence[Any]  # features by name
    split: str

    @property
    def parts(self) -> Sequence[Any]:
        """The ranges of files that hold the rows, as TFDS describes them."""
        return self.info.splits[self.split].file_instructions

    @property
    def files(self) -> list[epath.Path]:
        """The files that hold the rows."""
        return [epath.Path(self.info.data_dir) / part.filename for part in self.parts]


def open_dataset(
    spec: str,
    data_dir: str,
    *,
    where: str,
    otherwise: str = "",
    say: Callable[[str], None] = print,
) -> Opened:
    """Opens a split that TFDS has prepared as ArrayRecord, or prepares it first.

    A prepared dataset is opened without using the network or importing the dataset's
    own code. Preparing one is announced in a line.

    Args:
      spec: NAME:SPLIT, for example `lm1b:train` or `pg19:train[:10%]`.
      data_dir: TFDS' folder; empty for its default.
      where: starts each message, for example the configuration key and its value.
      otherwise: another way to get the data, shown if it cannot be prepared.
      say: shows a line to the user.

    Raises:
      MissingPackage: if TFDS is not installed.
      MissingData: if it cannot be prepared here.
      ValueError: if the dataset or split is unknown, or stored as TFRecord.
    """
    with from_extra("tfds", f"{where}, of TensorFlow Datasets,", otherwise):
        import tensorflow_datasets as tfds

    name, colon, split = spec.partition(":")
    if not colon:
        raise UserError(f"{where} must be NAME:SPLIT, for example lm1b:train.")
    folder = data_dir or "its default folder"
    try:
        builder = _prepared(name, data_dir) or _prepare(name, data_dir, folder, say)
        return Opened(builder.info, builder.as_data_source(split), split)
    except _CannotPrepare as error:
        problem, way_out = error.args
        raise MissingData(
            f"{where}: the dataset is not prepared in {folder}, and TFDS cannot "
            f"prepare it here: {str(problem).rstrip('.')}. {way_out}"
            f"{otherwise and '. Or ' + otherwise}."
        ) from error
    except tfds.core.DatasetNotFoundError as error:  # its message lists them all
        raise UserError(
            f"{where}: TFDS does not know the dataset {name!r}, and none is prepared "
            f"in {folder}."
        ) from error
    except (NotImplementedError, ValueError, KeyError) as error:
        way_out = ""
        if "tfrecord" in str(error).lower():
            way_out = (
                " TFRecord needs TensorFlow to read; prepare the dataset again with "
                f"file_format='array_record'{otherwise and ', or ' + otherwise}."
            )
        reason = str(error).partition("\n")[0]  # examples follow
        if "can not be of 0 length" in reason:
            reason, way_out = "the slice has no rows; name a larger one", "."
        raise UserError(f"{where}: {reason}{way_out}") from error


class _CannotPrepare(Exception):
    """TFDS cannot prepare a dataset; its arguments are why, and a way out."""


def _prepared(name: str, data_dir: str) -> Any:
    """A builder from the files on disk, without a dataset class; None if none exist."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder

    try:
        with _only_known_classes(name):
            return read_only_builder.builder_from_files(
                name, data_dir=data_dir or None, file_format="array_record"
            )
    except tfds.core.DatasetNotFoundError:
        return None


@contextlib.contextmanager
def _only_known_classes(name: str) -> Iterator[None]:
    """Keeps TFDS from importing whatever module a dataset's features.json names."""
    import tensorflow_datasets as tfds

    connector = tfds.features.FeatureConnector
    find = connector.__dict__["cls_from_name"]

    def find_known(cls: Any, class_name: str) -> Any:
        if not str(class_name).startswith("tensorflow_datasets."):
            raise ValueError(
                f"the features.json of {name} names the class {class_name!r}, which "
                "is not one of TFDS'; nothing of it was imported. Prepare the dataset "
                "again with features of tfds.features."
            )
        return find.__func__(cls, class_name)

    connector.cls_from_name = classmethod(find_known)
    try:
        yield
    finally:
        connector.cls_from_name = find


def _prepare(name: str, data_dir: str, folder: str, say: Callable[[str], None]) -> Any:
    """Downloads and prepares a dataset; `folder` stands for `data_dir` in messages."""
    import tensorflow_datasets as tfds

    elsewhere = (
        "Prepare it on another machine, with file_format='array_record', and copy its "
        "folder here"
    )
    manual = ""
    try:
        importlib.import_module("tensorflow_datasets.text")  # registers GLUE's classes
        builder = tfds.builder(
            name, data_dir=data_dir or None, file_format="array_record"
        )
        manual = getattr(builder, "MANUAL_DOWNLOAD_INSTRUCTIONS", None) or ""
        size = int(builder.info.download_size or 0)
        say(
            f"{name} is not prepared in {folder}; TFDS downloads and prepares it now, "
            f"once{f' ({size / 1e6:,.1f} MB)' if size else ''}."
        )
        # What TFDS keeps on Google Cloud Storage is TFRecord.
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        builder.download_and_prepare(download_config=config)
        return builder
    except (OSError, AssertionError, tfds.download.DownloadError) as error:
        way_out = manual.strip().rstrip(".") or elsewhere
        raise _CannotPrepare(error, way_out) from error
    except ImportError as error:
        if "tensorflow" in str(error):
            raise _CannotPrepare("that needs TensorFlow", elsewhere) from error
        cause = error.__cause__
        if not isinstance(cause, ImportError):
            raise
        problem = f"that needs the package {cause.name}"  # which TFDS leaves out
        way_out = f"Install it with pip install {cause.name}"
        raise _CannotPrepare(problem, way_out) from error


# --- a corpus -----------------------------------------------------------------


def find_text(
    config: DataConfig, cache_dir: Path, say: Callable[[str], None]
) -> tuple[list[NamedText], list[NamedText]]:
    """The texts for training and validation in the splits of `config.data`.

    Raises:
      MissingData, ValueError: as `tfds_texts`, or if rows are named for both.
    """
    del cache_dir
    train, valid = config.train, config.valid
    feature, folder = config.tfds_feature, config.tfds_data_dir
    trained = tfds_texts(train, feature, folder, TRAIN_KEY, say)
    if not valid:
        return trained, []
    held_out = tfds_texts(valid, feature, folder, VALID_KEY, say)
    if shared := shared_rows(train, valid, folder):
        raise UserError(
            f"{TRAIN_KEY}={train!r} and {VALID_KEY}={valid!r} have {shared:,} rows in "
            "common; the validation loss would be measured on training text. Name "
            "splits that share none, such as train[:98%] and train[98%:]."
        )
    return trained, held_out


def tfds_texts(
    spec: str, feature: str, data_dir: str, key: str, say: Callable[[str], None] = print
) -> list[NamedText]:
    """Texts of a dataset, each a range of its rows.

    Args:
      spec: NAME:SPLIT, as `open_dataset` takes it.
      feature: the text feature.
      data_dir: TFDS' folder; empty for its default.
      key: the configuration key, for messages.
      say: shows a line to the user.

    Returns:
      At most 10,000 texts; each row starts a new line.

    Raises:
      MissingData, ValueError: as `open_dataset`, or if there is no such feature.
    """
    info, rows, split = open_dataset(spec, data_dir, where=f"{key}={spec!r}", say=say)
    features = info.features
    if feature not in features or not isinstance(rows[0][feature], bytes | str):
        raise UserError(
            f"config.data.tfds_feature={feature!r} is not a text feature of "
            f"{info.name}; it has {', '.join(sorted(features))}."
        )
    files = {each.name: file_stamp(each) for each in files_below(info.data_dir)}
    stamp = (
        f"{info.full_name}-{split}-{feature}-{len(rows)}-{info.dataset_size}-"
        f"{json_digest(files)}"
    )
    group = -(-len(rows) // _MAX_TEXTS)
    row_bytes = info.dataset_size // info.splits.total_num_examples

    def make(start: int) -> NamedText:
        stop = min(start + group, len(rows))

        def lines() -> Iterator[str]:
            for index in range(start, stop):
                text = rows[index][feature]
                try:
                    text = text.decode() if isinstance(text, bytes) else text
                except UnicodeDecodeError as error:
                    raise UserError(f"{spec}, row {index}: {error}.") from error
                yield text + "\n"

        size = (stop - start) * row_bytes
        return NamedText(f"{spec}[{start}]", stamp, size, lines, True)

    return [make(start) for start in range(0, len(rows), group)]


def shared_rows(spec: str, other: str, data_dir: str) -> int:
    """How many rows two splits have in common, for example train and train[90%:].

    Args:
      spec: NAME:SPLIT of a prepared dataset.
      other: NAME:SPLIT of the other split.
      data_dir: TFDS' folder; empty for its default.
    """
    ranges, others = _ranges(spec, data_dir), _ranges(other, data_dir)
    return sum(
        max(0, min(stop, other_stop) - max(start, other_start))
        for file, start, stop in ranges
        for other_file, other_start, other_stop in others
        if file == other_file
    )


def _ranges(spec: str, data_dir: str) -> list[tuple[str, int, int]]:
    """The file, first row and last row plus one of each file that a split reads."""
    parts = open_dataset(spec, data_dir, where=spec).parts
    return [(str(part.filename), part.skip, part.skip + part.take) for part in parts]
