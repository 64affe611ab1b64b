"""The named texts of a corpus: reads them from files, and holds some out.

A named text is one file, the docstrings of one module, or a range of a dataset's rows;
it may hold many documents. It is read block by block, so memory never grows with its
size.
"""

import dataclasses
import functools
import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from gpt1_jax.config.checks import split_paths
from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.files import file_stamp, files_below, from_where, is_remote, locate
from gpt1_jax.data.text import refuse_other_name
from gpt1_jax.data.text_files import (
    check_can_unpack,
    format_of,
    read_plain_text,
    unpacked_name,
    unpacked_sizes,
)
from gpt1_jax.errors import UserError, find_named

BLOCK_CHARS = 1 << 18


class HeldOut(str):
    """A piece of a text that is held out for validation."""


@dataclasses.dataclass(eq=False)
class NamedText:
    """A named text that is read block by block, whenever it is needed.

    Attributes:
      name: a path, a module's name, or a dataset and a row.
      stamp: changes when the text does: a file's size and time, or versions.
      num_bytes: the size of a file once unpacked, for the share to hold out; None for a
        compressed file that has not been read.
      chunks: reads the text, in pieces of any size; `HeldOut` ones are for validation.
      may_be_blank: whether the text may be only white space. Rows of a dataset may; a
        blank file is a mistake.
      divides: whether it holds out some of its text itself.
      count: how many documents it holds; if a mark separates them, known once it has
        been read.
      held_out: how many further documents it holds out, known once it has been read.
      length: how many bytes its text has, or how many ids; known once it has been read.
    """

    name: str
    stamp: str
    num_bytes: int | None
    chunks: Callable[[], Iterable[str]]
    may_be_blank: bool = False
    divides: bool = False
    count: int = 1
    held_out: int = 0
    length: int = 0
    _digest: str | None = dataclasses.field(default=None, init=False, repr=False)
    _kept: list[str] | None = dataclasses.field(default=None, init=False, repr=False)

    def blocks(self) -> Iterator[str]:
        """The text, cut by `cut_blocks`; its digest is known once all of it is read.

        Raises:
          UserError: if the text cannot be read, or is blank and must not be.
        """
        chunks, self._kept = self._kept, None
        if self._digest is None:
            return cut_blocks(self._digested())
        return cut_blocks(self.chunks() if chunks is None else chunks)

    def read_digest(self) -> str:
        """The content digest; "" for a blank text. Reads the text if it has to.

        Raises:
          UserError: as `blocks`.
        """
        if self._digest is None:
            for _ in self._digested():
                pass
        return self._digest or ""

    def is_read(self) -> bool:
        """Whether it has been read to its end."""
        return self._digest is not None

    def read_ahead(self, room: int) -> int:
        """Reads the text, and keeps it for the next time if it fits into `room`.

        Returns:
          The characters kept.

        Raises:
          UserError: as `blocks`.
        """
        kept, size = list[str](), 0
        for chunk in self._digested():
            size += len(chunk)
            if size <= room:
                kept.append(chunk)
        self._kept = kept if size <= room else None
        return size if size <= room else 0

    def check(self, tokenizer: Any) -> None:
        """Reads all of it once, before long work; a token file is compared with it."""
        self.read_digest()

    def _digested(self) -> Iterator[str]:
        digest, blank, length = hashlib.sha256(), True, 0
        for chunk in self.chunks():
            data = chunk.encode()
            length += len(data)
            blank = blank and (not chunk or chunk.isspace())
            digest.update(data)
            yield chunk
        if blank and not self.may_be_blank:
            raise UserError(f"{self.name} holds no text, only white space.")
        self._digest, self.length = "" if blank else digest.hexdigest(), length


def cut_blocks(chunks: Iterable[str]) -> Iterator[str]:
    """Cuts text into blocks at line ends, or before a word in a very long line.

    A block ends with a newline unless its last line goes on in the next one; the last
    block is given one if the text ends without. Text that is held out is cut
    separately.
    """
    kind: type[str] = str
    rests, rest = {str: "", HeldOut: ""}, ""
    for chunk in chunks:
        if type(chunk) is not kind:
            rests[kind], kind = rest, type(chunk)
            rest = rests.pop(kind)
        rest += chunk
        start = 0
        while len(rest) - start >= BLOCK_CHARS:
            end = rest.rfind("\n", start, start + BLOCK_CHARS) + 1
            if not end:  # before a word, so a line end stays with its last word
                head = rest[start : start + BLOCK_CHARS]
                end = start + (head.rstrip().rfind(" ") + 1 or BLOCK_CHARS - 1)
            yield kind(rest[start:end])
            start = end
        rest = rest[start:]
    rests[kind] = rest
    for each, rest in rests.items():
        if rest:
            yield each(rest if rest.endswith("\n") else rest + "\n")


# --- text files: plain text and other formats, compressed or not --------------

COMMA_HINT = r" Write \, for a comma in a name, and in a glob [[] for [."
TRAIN_KEY, VALID_KEY = "config.data.train", "config.data.valid"
_PLAIN, _ROWS = (".txt", ".text", ".md"), (".jsonl", ".ndjson", ".parquet")
# Other kinds in a folder of texts, such as tables, may describe the texts.


def find_text(
    config: DataConfig, cache_dir: Path, say: Callable[[str], None]
) -> tuple[list[NamedText], list[NamedText]]:
    """The texts for training and validation in the files of `config.data`.

    Raises:
      FileNotFoundError, ValueError: as `texts_in_files`, or if a file is named for
        both, or `document_separator` is in none.
    """
    del cache_dir, say
    how = config.text_field, config.skip_empty
    train = texts_in_files(config.train, TRAIN_KEY, *how)
    valid = texts_in_files(config.valid, VALID_KEY, *how)
    refuse_shared(train, valid)
    if not config.document_separator:
        return train, valid
    name = "config.data.document_separator"
    separate = find_named("gpt1_jax.data.separated:separate", name, "leave it empty")
    return separate(train, valid, config)


def refuse_shared(train: Sequence[NamedText], valid: Sequence[NamedText]) -> None:
    """Refuses texts that are named for both splits, by whatever path."""
    trained = {os.path.realpath(each.name) for each in train}
    for each in valid:
        if os.path.realpath(each.name) in trained:
            raise UserError(
                f"{each.name} is named by {TRAIN_KEY} and by {VALID_KEY}; the "
                "validation loss would be measured on training text. Leave it out of "
                f"one of them, or leave {VALID_KEY} empty to hold out a part of "
                "the text."
            )


def texts_in_files(
    paths: str, key: str, field: str, skip_empty: bool = False
) -> list[NamedText]:
    """One text for each file that `paths` names.

    Args:
      paths: files, folders and globs, as `split_paths` divides them; local or gs://.
        Folders are searched for text, JSON lines and Parquet, compressed or not, in
        lower or upper case; hidden files and folders are skipped.
      key: the configuration key, for messages.
      field: the field to read from each record of a file that holds records, such as
        JSON lines; if empty, such files count as plain text and are not looked for in
        folders.
      skip_empty: whether records without text are passed over.

    Returns:
      The texts sorted by path.

    Raises:
      FileNotFoundError: if an entry names nothing, or a link leads nowhere.
      ValueError: if a file is empty or its name says that it is not text, or there is
        no entry between the commas.
    """
    suffixes = (*_PLAIN, *_ROWS) if field else _PLAIN
    files = find_files(paths, key, suffixes)
    return [_text_in_file(path, key, field, skip_empty) for path in files]


def find_files(paths: str, key: str, suffixes: tuple[str, ...]) -> list[epath.Path]:
    """The files that `paths` names, sorted by path: see `texts_in_files`.

    The suffix of a compressed file does not count.

    Args:
      paths: files, folders and globs.
      key: the configuration key, for messages.
      suffixes: what folders are searched for.

    Raises:
      FileNotFoundError: if an entry names nothing, or a link leads nowhere.
      UserError: if a file is empty or a pipe, or there is no entry between the commas.
    """
    files: dict[str, epath.Path] = {}
    for entry in filter(None, split_paths(paths)):
        found = expand_paths(entry, suffixes)
        if not found:
            raise FileNotFoundError(
                f"{key}: {entry!r} names no file{from_where(entry)}. A folder is "
                f"searched for {', '.join(suffixes)}, compressed or not; a glob such "
                f"as 'books/**/*.txt' takes any name.{COMMA_HINT}"
            )
        files.update({str(path): path for path in found})
    if paths and not files:
        raise UserError(f"{key}={paths!r} names no file.")
    for path in files.values():
        if not path.exists():
            raise FileNotFoundError(
                f"{key} finds {path}, a link to a file that is not there; remove the "
                "link, or name the files without it."
            )
        if not path.stat().length:
            is_file = is_remote(path) or os.path.isfile(path)
            what = "empty" if is_file else "no file, but a pipe or a device"
            raise UserError(f"{path} is {what}; remove it or leave it out of {key}.")
    return sorted(
        files.values(), key=lambda path: (unpacked_name(str(path)), str(path))
    )


def expand_paths(entry: str, suffixes: tuple[str, ...]) -> list[epath.Path]:
    """The files that a path or glob names; of a folder, those with the suffixes.

    Within a glob, the name of a folder that exists literally is not a pattern.
    """
    path = locate(entry)
    if path.is_dir():
        return [
            found
            for found in files_below(path)
            if unpacked_name(found.name).lower().endswith(suffixes)
            and not any(x.startswith(".") for x in found.relative_to(path).parts)
        ]
    if path.exists():
        return [path]
    if is_remote(path):
        return [p for p in path.parent.glob(path.name) if p.is_file()]
    there = next(parent for parent in path.parents if parent.exists())
    pattern = str(path.relative_to(there))
    found = glob.glob(pattern, root_dir=there, recursive=True)
    return [there / name for name in found if not os.path.isdir(there / name)]


def _text_in_file(
    path: epath.Path, key: str, field: str, skip_empty: bool
) -> NamedText:
    stamp = file_stamp(path)
    chunks: Callable[[], Iterable[str]]
    if field and format_of(path.name):
        needed_by, otherwise = str(path), f"leave it out of {key}"
        records = find_named("gpt1_jax.data.records", needed_by, otherwise)
        records.check_can_read(path)
        chunks = functools.partial(records.read_texts, path, key, field, skip_empty)
        stamp += f"-{field}" + "-skip_empty" * skip_empty
    else:
        if field or not format_of(path.name):  # rows are plain text if asked for
            refuse_other_name(f"{key}: {path}")
        check_can_unpack(str(path))
        chunks = functools.partial(read_plain_text, path, may_be_json=not field)
    is_packed = unpacked_name(path.name) != path.name
    size = None if is_packed else path.stat().length
    return NamedText(str(path), stamp, size, chunks)


# --- which texts are held out for validation ----------------------------------


def hold_out(
    texts: list[NamedText], fraction: float, room: int = 0
) -> tuple[list[NamedText], list[NamedText]]:
    """Splits texts into those for training and those for validation.

    They are considered in an order that depends on their names alone, so a corpus
    that grows by a text keeps most of its split. A corpus that is compressed keeps
    its split, too: the suffix is ignored, and sizes are those of the unpacked text, so
    compressed files are read to find them.

    Args:
      texts: all of them.
      fraction: the share of the bytes to hold out.
      room: how many characters of the files that are read for their size to keep in
        memory for the next reading.

    Returns:
      Those for training and validation in the order given. There are none for
      validation if no whole texts make up between half and twice the share: the
      caller then cuts off the end of the text once it is tokenised.
    """
    if len(texts) == 1:
        return texts, []
    for each in texts:
        if each.num_bytes is None:
            room -= each.read_ahead(room)
            each.num_bytes = unpacked_sizes.get(each.name, each.length)
    chosen = _by_size(sorted(texts, key=_position), fraction)
    return (
        [each for each in texts if each.name not in chosen],
        [each for each in texts if each.name in chosen],
    )


def _position(text: NamedText) -> str:
    name = Path(unpacked_name(text.name)).name
    return hashlib.sha256(name.encode()).hexdigest()


def _by_size(order: list[NamedText], fraction: float) -> set[str]:
    """Names of texts that together hold about `fraction` of the bytes."""
    sizes = [each.num_bytes or 0 for each in order]
    wanted = fraction * sum(sizes)
    chosen: set[str] = set()
    held = 0
    for each, size in zip(order, sizes, strict=True):
        closer = abs(wanted - held - size) < abs(wanted - held)
        if closer and len(chosen) < len(order) - 1:
            held += size
            chosen.add(each.name)
    return chosen if is_near(held, wanted) else set()


def is_near(found: float, wanted: float) -> bool:
    """Whether a share is between half and twice the share requested."""
    return wanted / 2 <= found <= wanted * 2


def shared_texts(
    train: Sequence[NamedText], valid: Sequence[NamedText]
) -> list[tuple[str, str]]:
    """Pairs of an equal validation and training text, by name."""
    trained = {each.read_digest(): each.name for each in train}
    trained.pop("", None)  # blank ones
    return [
        (each.name, trained[each.read_digest()])
        for each in valid
        if each.read_digest() in trained
    ]
