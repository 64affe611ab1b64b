"""Token files that other programs made, as the source of a corpus.

Three kinds are read, local or in a bucket: raw ids (`.bin`, as nanoGPT writes them,
also behind the header of llm.c), an array of NumPy (`.npy`), and what datatrove's
DocumentTokenizer writes (`.ds`, with the width in `.ds.metadata`). The ids are trained
on as they are, tokens that end documents included, and copied to files of our own.

Words and bytes, for milestones and for the loss per word, are counted in the decoded
text: a block of ids at a time, on all cores. A word across the end of a block, of
262,144 ids, counts twice.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.files import file_stamp
from gpt1_jax.data.named_texts import (
    TRAIN_KEY,
    VALID_KEY,
    NamedText,
    find_files,
    refuse_shared,
)
from gpt1_jax.data.text import refuse_lfs_pointer
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError

SUFFIXES = (".bin", ".npy", ".ds")
BLOCK_TOKENS = 1 << 18
_MOST_16_BIT = 1 << 16  # entries of a vocabulary whose ids have 16 bits elsewhere
_HEADER = 256 * 4  # bytes, of llm.c
_HEADERS = {20240520: "<u2", 20240801: "<u4"}  # its first number; the ids' dtype
_SHOWN = 40  # characters of a file's text


def find_tokens(
    config: DataConfig, cache_dir: Path, say: Callable[[str], None]
) -> tuple[list[NamedText], list[NamedText]]:
    """The token files for training and validation that `config.data` names.

    Raises:
      FileNotFoundError, ValueError: if a name finds no token file, or a file is named
        for both.
    """
    del cache_dir
    train, valid = (
        [TokenFile(path, key) for path in find_files(paths, key, SUFFIXES)]
        for paths, key in ((config.train, TRAIN_KEY), (config.valid, VALID_KEY))
    )
    refuse_shared(train, valid)
    if {"train", "val"} <= {Path(each.name).stem for each in train}:
        raise UserError(
            f"{TRAIN_KEY}={config.train!r} finds files of both splits, train and val; "
            f"name them with --{TRAIN_KEY}=FILES and --{VALID_KEY}=FILES."
        )
    train[0].say = say
    return list[NamedText](train), list[NamedText](valid)


class TokenFile(NamedText):
    """The ids of one token file.

    Args:
      path: the file.
      key: the configuration key that names it, for messages.

    Attributes:
      say: shows the user how the text begins, as no check recognises every wrong
        tokenizer.

    Raises:
      UserError: if its name is not that of a token file.
    """

    say: Callable[[str], None] | None = None

    def __init__(self, path: epath.Path, key: str):
        if not path.name.lower().endswith(SUFFIXES):
            raise UserError(
                f"{key}: {path} is not named as a token file. Known are raw ids "
                "(.bin), an array of numpy.save (.npy) and datatrove's files (.ds); "
                "read text with --config.data.source=text."
            )
        self._path, self._size = path, path.stat().length
        stamp = f"{file_stamp(path)}-tokens"
        super().__init__(str(path), stamp, self._size, chunks=list)

    def check(self, tokenizer: Tokenizer) -> None:
        """Reads the whole file, and refuses ids that the tokenizer does not have.

        Raises:
          UserError: if the file is damaged, of another format or another tokenizer's.
        """
        layout = _find_layout(self._path, self._size, tokenizer.vocab_size)
        expected = layout.offset + layout.tokens * layout.dtype.itemsize
        if self._size != expected or not layout.tokens:
            raise UserError(
                f"{self.name} holds {self._size:,} bytes, not the {expected:,} of "
                f"{layout.tokens:,} ids of {layout.dtype.itemsize} bytes: it is cut "
                "short, or of another format. Copy it again, or write its ids with "
                "numpy.save."
            )
        self._layout = layout
        digest, self.length = hashlib.sha256(), 0
        for ids in self.blocks():
            lowest, highest = int(ids.min()), int(ids.max())
            if lowest < 0 or highest >= tokenizer.vocab_size:
                raise UserError(
                    f"{self.name} holds ids from {lowest:,} to {highest:,}, but the "
                    f"tokenizer's are from 0 to {tokenizer.vocab_size - 1:,}. Name the "
                    "tokenizer that made the file with --config.tokenizer.path=PATH; "
                    "if its ids have another width than is usual for this vocabulary, "
                    "write them with numpy.save."
                )
            if not self.length:
                self._see_first(ids, tokenizer)
            digest.update(ids.astype("<u4").tobytes())
            self.length += len(ids)
        self._digest = digest.hexdigest()

    def _see_first(self, ids: np.ndarray, tokenizer: Tokenizer) -> None:
        """Refuses ids of 32 bits read as two of 16; shows the text that begins."""
        halves = ids.dtype.itemsize == 2 and len(ids) >= 8 and ids.any()
        if halves and not ids[1::2].any():
            raise UserError(
                f"{self.name} holds numbers of 32 bits: read as ids of 16 bits, as is "
                "usual for a vocabulary of this size, every second one is 0. Write "
                "them with numpy.save('train.npy', "
                f"numpy.fromfile({self._path.name!r}, 'uint32'))."
            )
        if self.say:
            text = tokenizer.decode_text(ids[:_SHOWN].tolist())[:_SHOWN]
            self.say(f"{self.name} begins: {text!r}")

    def blocks(self) -> Iterator[Any]:
        """The ids in blocks, [tokens] of the file's dtype, once they were checked."""
        dtype = self._layout.dtype
        with self._path.open("rb") as file:
            file.seek(self._layout.offset)
            while data := file.read(BLOCK_TOKENS * dtype.itemsize):
                yield np.frombuffer(data, dtype)


class _Layout(NamedTuple):
    """Where the ids are in a file: dtype, bytes before the first, and their number."""

    dtype: np.dtype
    offset: int
    tokens: int


def _find_layout(path: epath.Path, size: int, vocab_size: int) -> _Layout:
    with path.open("rb") as file:
        head = file.read(_HEADER)
        refuse_lfs_pointer(head, str(path))
        if head.startswith(np.lib.format.MAGIC_PREFIX):
            file.seek(0)
            return _numpy_layout(path, file)
    numbers = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    if len(head) == _HEADER and int(numbers[0]) in _HEADERS:  # of llm.c
        return _Layout(np.dtype(_HEADERS[int(numbers[0])]), _HEADER, int(numbers[2]))
    width = 2 if vocab_size <= _MOST_16_BIT else 4
    note = path.with_name(f"{path.name}.metadata")  # NAME|WIDTH, of datatrove
    if path.suffix == ".ds" and note.exists():
        said = note.read_bytes().partition(b"\n")[0].rpartition(b"|")[2]
        if said not in (b"2", b"4"):
            raise UserError(
                f"{note} does not begin with NAME|2 or NAME|4, as datatrove's do; copy "
                "it again, or remove it."
            )
        width = int(said)
    return _Layout(np.dtype(f"<u{width}"), 0, -(-size // width))


def _numpy_layout(path: epath.Path, file: Any) -> _Layout:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, _, dtype = readers[np.lib.format.read_magic(file)](file)
    except Exception as error:  # the header is parsed as Python
        raise UserError(
            f"{path} is a damaged .npy file ({error}); save its array again."
        ) from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise UserError(
            f"{path} holds an array of {dtype} of shape {shape}; expected whole "
            "numbers in one dimension. Save array.reshape(-1) of the ids."
        )
    return _Layout(dtype, file.tell(), shape[0])
