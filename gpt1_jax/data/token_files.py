"""Token files that other programs made, as the source of a corpus.

Three kinds are read, local or in a bucket: raw ids (`.bin`, as nanoGPT writes them,
also behind the header of llm.c), an array of NumPy (`.npy`), and what datatrove's
DocumentTokenizer writes (`.ds`, with `.ds.index` and `.ds.metadata` beside it). The ids
are trained on as they are, tokens that end documents included. They are copied to
shards of our own, whose checksums each run compares.

Words and bytes, for milestones and for the loss per word, are counted in the decoded
text: a block of ids at a time, on all cores, with a line end in place of each token
that ends a document. A word across the end of a block, of 262,144 ids, counts twice.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from gpt1_jax.config.checks import split_paths
from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.documents import (
    COMMA_HINT,
    TRAIN_KEY,
    VALID_KEY,
    Document,
    expand_paths,
    refuse_shared,
)
from gpt1_jax.data.files import file_stamp, from_where
from gpt1_jax.data.other_tokenizers import DOCUMENT_ENDS
from gpt1_jax.data.tokenizers import NEWLINE, Tokenizer, texts_digest
from gpt1_jax.errors import UserError

SUFFIXES = (".bin", ".npy", ".ds")
BLOCK_TOKENS = 1 << 18
_MOST_16_BIT = 1 << 16  # entries of a vocabulary whose ids have 16 bits elsewhere
_HEADER = 256 * 4  # bytes, of llm.c
_HEADERS = {20240520: "<u2", 20240801: "<u4"}  # its first number; the ids' dtype
_OTHERS = {  # how files begin that hold no ids, or hold them packed
    b"PK\x03\x04": "a zip archive, as numpy.savez writes; save one array by numpy.save",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first",
    b"PAR1": "a Parquet file, a table; write its ids with numpy.save, or read its text "
    "with --config.data.source=text",
}
_SHOWN = 40  # characters of a file's text


def find_tokens(
    config: DataConfig, cache_dir: Path, say: Callable[[str], None]
) -> tuple[list[Document], list[Document]]:
    """The token files for training and validation that `config.data` names.

    Raises:
      FileNotFoundError, ValueError: if a name finds no token file, or a file is named
        for both.
    """
    del cache_dir
    train = _token_documents(config.train, TRAIN_KEY, say)
    valid = _token_documents(config.valid, VALID_KEY, say)
    refuse_shared(train, valid)
    return train, valid


def _token_documents(
    paths: str, key: str, say: Callable[[str], None]
) -> list[Document]:
    files: dict[str, epath.Path] = {}
    for entry in filter(None, split_paths(paths)):
        found = expand_paths(entry, SUFFIXES)
        if not found:
            raise FileNotFoundError(
                f"{key}: {entry!r} names no token file{from_where(entry)}. A folder is "
                f"searched for {', '.join(SUFFIXES)}.{COMMA_HINT}"
            )
        names = {path.stem for path in found}
        if {"train", "val"} <= names:
            raise UserError(
                f"{key}: {entry!r} finds files of both splits, train and val; name "
                f"them one by one, with --{TRAIN_KEY}=FILES and --{VALID_KEY}=FILES."
            )
        files.update({str(path): path for path in found})
    if paths and not files:
        raise UserError(f"{key}={paths!r} names no file.")
    documents = [TokenDocument(files[name], key) for name in sorted(files)]
    for document in documents[:1]:
        document.say = say
    return list[Document](documents)


class TokenDocument(Document):
    """The ids of one token file.

    Args:
      path: the file.
      key: the configuration key that names it, for messages.

    Attributes:
      say: shows the user how it begins, as no check finds every other tokenizer.

    Raises:
      UserError: if the file is empty, or its name is not that of a token file.
    """

    say: Callable[[str], None] | None = None

    def __init__(self, path: epath.Path, key: str):
        if not path.name.lower().endswith(SUFFIXES):
            raise UserError(
                f"{key}: {path} is not named as a token file. Known are raw ids "
                "(.bin), an array of numpy.save (.npy) and datatrove's files (.ds); "
                "read text with --config.data.source=text."
            )
        size = path.stat().length
        if not size:
            raise UserError(f"{path} is empty; remove it or leave it out of {key}.")
        self._path = path
        files = (path, _beside(path, "index"))
        stamps = [file_stamp(each) for each in files if each.exists()]
        super().__init__(str(path), f"{'-'.join(stamps)}-tokens", size, chunks=list)
        self._ids: Callable[[], Iterator[np.ndarray]] = lambda: iter(())

    def check(self, tokenizer: Tokenizer) -> None:
        """Reads the whole file, and refuses ids that the tokenizer does not have.

        Raises:
          UserError: if the file is damaged, of another format or another tokenizer's.
        """
        layout = _find_layout(self._path, self.num_bytes, tokenizer.vocab_size)
        self._ids = functools.partial(_read_ids, self._path, layout)
        _refuse_other_tokenizer(self._path, tokenizer)
        digest, position = hashlib.sha256(), 0
        for ids in self._ids():
            if not position:
                _refuse_other_width(self._path, ids)
            lowest, highest = int(ids.min()), int(ids.max())
            if lowest < 0 or highest >= tokenizer.vocab_size:
                wrong = lowest if lowest < 0 else highest
                where = position + int(np.argmax(ids == wrong))
                raise UserError(
                    f"{self.name} holds the id {wrong} at position {where:,}, but the "
                    f"tokenizer's ids end at {tokenizer.vocab_size - 1:,}. Name the "
                    "tokenizer that made the file with --config.tokenizer.path=PATH"
                    f"{_width_hint(self._path, layout, wrong)}."
                )
            if self.say and not position:
                text = _text(ids[:_SHOWN], tokenizer)[:_SHOWN]
                self.say(f"{self.name} begins: {text!r}")
            digest.update(ids.astype("<u4").tobytes())
            position += len(ids)
        self._digest = digest.hexdigest()

    def blocks(self) -> Iterator[Any]:
        """The ids in blocks, once they were checked."""
        return map(TokenBlock, self._ids())


class TokenBlock:
    """Ids of a token file, [tokens] of its dtype; their length is in bytes."""

    def __init__(self, ids: np.ndarray):
        self._ids = ids

    def __len__(self) -> int:
        return self._ids.nbytes

    def counted(self, tokenizer: Tokenizer) -> tuple[np.ndarray, int, int]:
        """The ids, and the words and UTF-8 bytes of the text that they stand for."""
        text = _text(self._ids, tokenizer)
        return self._ids, len(text.split()), len(text.encode())


def _text(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    text = tokenizer.decode(ids.tolist())
    for end in DOCUMENT_ENDS:
        text = text.replace(end, NEWLINE)
    return text


# --- the formats --------------------------------------------------------------


class _Layout(NamedTuple):
    """Where the ids are in a file: dtype, bytes before the first, and number."""

    dtype: np.dtype
    offset: int
    tokens: int


def _find_layout(path: epath.Path, size: int, vocab_size: int) -> _Layout:
    """How a token file is laid out.

    Raises:
      UserError: if it is none, or has been cut short.
    """
    with path.open("rb") as file:
        head = file.read(_HEADER)
        for begin, what in _OTHERS.items():
            if head.startswith(begin):
                raise UserError(f"{path} is {what}.")
        if head.startswith(np.lib.format.MAGIC_PREFIX):
            file.seek(0)
            layout = _numpy_layout(path, file)
        else:
            layout = _raw_layout(path, head, size, vocab_size)
    expected = layout.offset + layout.tokens * layout.dtype.itemsize
    if size != expected or not layout.tokens:
        raise UserError(
            f"{path} holds {size:,} bytes, not the {expected:,} of {layout.tokens:,} "
            f"ids of {layout.dtype.itemsize} bytes: it is cut short, or of another "
            "format. Copy it again, or write its ids with numpy.save."
        )
    return layout


def _numpy_layout(path: epath.Path, file: Any) -> _Layout:
    try:
        version = np.lib.format.read_magic(file)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, _, dtype = readers[version](file)
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{path} is a damaged .npy file ({error}); save its array again."
        ) from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise UserError(
            f"{path} holds an array of {dtype} of shape {shape}; expected whole "
            "numbers in one dimension. Save array.reshape(-1) of the ids."
        )
    return _Layout(dtype, file.tell(), shape[0])


def _raw_layout(path: epath.Path, head: bytes, size: int, vocab_size: int) -> _Layout:
    numbers = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    if len(head) == _HEADER and int(numbers[0]) in _HEADERS:  # of llm.c
        return _Layout(np.dtype(_HEADERS[int(numbers[0])]), _HEADER, int(numbers[2]))
    width = 2 if vocab_size <= _MOST_16_BIT else 4
    if made_by := _made_by(path):
        width = int(made_by[1])
    tokens, index = size // width, _beside(path, "index")
    if path.suffix == ".ds" and index.exists():  # the end of each document
        ends = index.read_bytes()
        if len(ends) % 8:
            raise UserError(f"{index} is cut short; copy it again, or remove it.")
        tokens = int.from_bytes(ends[-8:], "little")
    return _Layout(np.dtype(f"<u{width}"), 0, tokens)


def _beside(path: epath.Path, what: str) -> epath.Path:
    """The file that datatrove writes beside its tokens."""
    return path.with_name(f"{path.name}.{what}")


def _made_by(path: epath.Path) -> tuple[str, str] | None:
    """The tokenizer's name or path, and the width of ids, that datatrove notes."""
    note = _beside(path, "metadata")
    if path.suffix != ".ds" or not note.exists():
        return None
    text = note.read_bytes().decode(errors="replace")
    name, _, width = text.partition("\n")[0].rpartition("|")
    if width not in ("2", "4"):
        raise UserError(
            f"{note} does not begin with NAME|2 or NAME|4, as datatrove's do; copy "
            "it again, or remove it."
        )
    return name, width


def _refuse_other_tokenizer(path: epath.Path, tokenizer: Tokenizer) -> None:
    """Refuses datatrove's file if the tokenizer that it names is here and differs."""
    note = _made_by(path)
    named = epath.Path(note[0]) if note and note[0].endswith(".json") else None
    if named is None or tokenizer.kind != "huggingface" or not named.is_file():
        return
    if texts_digest(tokenizer.kind, named.read_bytes().decode()) != tokenizer.digest:
        raise UserError(
            f"{path} was made with the tokenizer {named}, which is not that of "
            f"config.tokenizer; name it with --config.tokenizer.path={named}."
        )


def _read_ids(path: epath.Path, layout: _Layout) -> Iterator[np.ndarray]:
    """Yields the ids of a file, [at most BLOCK_TOKENS] of its dtype."""
    with path.open("rb") as file:
        file.seek(layout.offset)
        while data := file.read(BLOCK_TOKENS * layout.dtype.itemsize):
            yield np.frombuffer(data, layout.dtype)


def _refuse_other_width(path: epath.Path, ids: np.ndarray) -> None:
    """Refuses ids of 32 bits read as two of 16, of which every second is 0."""
    if ids.dtype.itemsize == 2 and len(ids) >= 8 and not ids[1::2].any() and ids.any():
        raise UserError(
            f"{path} holds numbers of 32 bits: read as ids of 16 bits, as is usual "
            "for a vocabulary of this size, every second one is 0. Write them with "
            f"numpy.save('train.npy', numpy.fromfile({path.name!r}, 'uint32'))."
        )


def _width_hint(path: epath.Path, layout: _Layout, wrong: int) -> str:
    """A further way out if ids of 16 bits may have been read as 32."""
    if layout.dtype.itemsize != 4 or path.suffix == ".npy" or wrong < _MOST_16_BIT:
        return ""
    return (
        "; or, if it holds ids of 16 bits, write them with numpy.save('train.npy', "
        f"numpy.fromfile({path.name!r}, 'uint16'))"
    )
