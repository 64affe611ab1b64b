"""Where text comes from.

Three sources: `builtin`, the documentation that is on every machine; `text`, files of
plain text or JSON lines; `tfds`, a TensorFlow Datasets corpus. A document is one file,
one module's docstrings, or a range of a dataset's rows.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpt1_jax.config import DataConfig
from gpt1_jax.data.builtin import builtin_documents
from gpt1_jax.data.documents import Document
from gpt1_jax.data.text_files import text_documents
from gpt1_jax.data.tfds import shared_rows, tfds_documents
from gpt1_jax.errors import UserError

_TRAIN, _VALID = "config.data.train", "config.data.valid"


def find_documents(
    config: DataConfig, cache_dir: Path, say: Callable[[str], None]
) -> tuple[list[Document], list[Document]]:
    """The documents for training and, if named separately, for validation.

    Args:
      config: the sources.
      cache_dir: where the built-in documentation is collected.
      say: shows a line to the user.

    Raises:
      FileNotFoundError, ValueError: if they do not exist, or a document is named for
        both.
    """
    if config.source == "builtin":
        return builtin_documents(cache_dir, say), []

    def read(value: str, key: str) -> list[Document]:
        if config.source == "text":
            return text_documents(value, key, config.jsonl_field)
        feature, data_dir = config.tfds_feature, config.tfds_data_dir
        return tfds_documents(value, feature, data_dir, key, say) if value else []

    train, valid = read(config.train, _TRAIN), read(config.valid, _VALID)
    if config.source == "text":
        _refuse_shared(train, valid)
    elif valid:
        shared = shared_rows(config.train, config.valid, config.tfds_data_dir)
        if shared:
            raise UserError(
                f"{_TRAIN}={config.train!r} and {_VALID}={config.valid!r} have "
                f"{shared:,} rows in common; the validation loss would be that of text "
                "trained on. Name splits that share none, such as train[:98%] and "
                "train[98%:]."
            )
    return train, valid


def _refuse_shared(train: Sequence[Document], valid: Sequence[Document]) -> None:
    """Refuses documents that are named for both splits, by whatever path."""
    trained = {_identity(document) for document in train}
    for document in valid:
        if _identity(document) in trained:
            raise UserError(
                f"{document.name} is named by {_TRAIN} and by {_VALID}; the validation "
                f"loss would be that of text trained on. Leave it out of one of them, "
                f"or leave {_VALID} empty to hold out a part of the text."
            )


def _identity(document: Document) -> str:
    is_file = os.path.exists(document.name)
    return os.path.realpath(document.name) if is_file else document.name
