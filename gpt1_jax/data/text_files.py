"""Opens files and reads their text, piece by piece or line by line.

A file is local, in a bucket or standard input. It may be compressed; its first bytes
say how, not its name. Memory does not grow with its size. Rows are read by
`gpt1_jax.data.records`.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from etils import epath

from gpt1_jax.data.files import locate
from gpt1_jax.data.text import refuse_lfs_pointer, refuse_other_content
from gpt1_jax.errors import UserError, from_extra

STANDARD_INPUT = "-"
SUFFIXES = (".gz", ".bz2", ".xz", ".zst")  # of compressed files
FORMATS = {  # of rows, by the suffix of a file's name
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **{".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"},
}
unpacked_sizes: dict[str, int] = {}  # of compressed files read to their end, by name
LONGEST_LINE = 1 << 26  # characters: more than any book has
LONGEST_LIST = 1 << 28  # of JSON, which is held in memory
_PIECE_BYTES = 1 << 18
_HEAD_BYTES = 64

# --- bytes: local, in a bucket or standard input, compressed or not -------------


def _import_zstd(needed_by: str) -> Any:
    with from_extra("text", f"{needed_by}, compressed by zstd,", "unpack it"):
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    return zstd


def _open_zstd(file: BinaryIO) -> Any:
    zstd = _import_zstd(getattr(file, "name", "A file"))
    # Windows of up to 2 GiB, as `zstd --long=31` writes.
    return zstd.open(file, options={zstd.DecompressionParameter.window_log_max: 31})


_UNPACK: Mapping[bytes, Callable[[BinaryIO], Any]] = {  # by a file's first bytes
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"(\xb5/\xfd": _open_zstd,
    b"P*M\x18": _open_zstd,  # pzstd's, which begin with a frame to be skipped
}


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a compressed file, and how much of it was read so far."""

    def __init__(self, file: Any, name: str):
        self._file, self._name, self.size = file, name, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            size = int(self._file.readinto(buffer))
        except Exception as error:  # each library has errors of its own
            if getattr(error, "errno", None):  # of the system
                raise
            raise UserError(
                f"{self._name} is damaged or cut short as a compressed file "
                f"({error}); fetch or write it again."
            ) from error
        self.size += size
        return size


def format_of(name: str) -> str:
    """The format of rows in a file, by its name; "" if it is none of `FORMATS`."""
    return FORMATS.get(os.path.splitext(unpacked_name(name))[1].lower(), "")


def unpacked_name(name: str) -> str:
    """A file's name or path without the suffix of a compressed file, in any case."""
    return name.rpartition(".")[0] if name.lower().endswith(SUFFIXES) else name


def check_can_unpack(name: str) -> None:
    """Refuses a file compressed by zstd if nothing here reads it, before any work.

    Raises:
      MissingPackage: with the command that installs what reads it.
    """
    if name.lower().endswith(".zst"):
        _import_zstd(name)


@contextlib.contextmanager
def open_file(
    source: epath.PathLike, *, or_standard_input: bool = False
) -> Iterator[BinaryIO]:
    """Opens a file that the user names, and unpacks it if it is compressed.

    Args:
      source: the file.
      or_standard_input: whether "-" stands for standard input.

    Raises:
      FileNotFoundError: if the file cannot be read.
      MissingPackage: if it is compressed by zstd, and what reads that is not installed.
      UserError: if it is a Git LFS pointer.
    """
    name = str(source)
    if or_standard_input and source == STANDARD_INPUT:
        name, opened = "standard input", contextlib.nullcontext[Any](sys.stdin.buffer)
    else:
        try:
            opened = locate(name).open("rb")
        except OSError as error:
            another = f", or {STANDARD_INPUT} for standard input" * or_standard_input
            raise FileNotFoundError(
                f"{name} cannot be read ({error.strerror}); name another file{another}."
            ) from error
    with opened as file:
        if not hasattr(file, "peek"):  # gcsfs' files, which read no part of a line
            file = io.BufferedReader(file, _PIECE_BYTES)
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]  # a pipe cannot be rewound
        refuse_lfs_pointer(head, name)
        hows = (how for mark, how in _UNPACK.items() if head.startswith(mark))
        unpack = next(hows, None)
        if not unpack:
            yield file
            return
        unpacked = _Unpacked(unpack(file), name)
        yield io.BufferedReader(unpacked, _PIECE_BYTES)
        unpacked_sizes[name] = unpacked.size


# --- text -----------------------------------------------------------------------


def read_pieces(
    file: BinaryIO, name: str, *, may_be_json: bool = False
) -> Iterator[str]:
    """The text of an open file, in pieces that end where a line does.

    A line of more than half a megabyte is in several.

    Args:
      file: the file, as `open_file` opens it.
      name: its name, for messages.
      may_be_json: whether JSON is expected, not plain text.

    Raises:
      UserError: naming the file and its first line that is not UTF-8; or if it is
        damaged, or begins like another kind of file.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8-sig")(), 1
    data = _read(file)
    refuse_other_content(data, name, may_be_json=may_be_json)
    while data:
        yield _decode(decoder, data, name, line)
        line += _count_line_ends(data)
        data = _read(file)
    yield _decode(decoder, data, name, line)


def _read(file: BinaryIO) -> bytes:
    return file.read(_PIECE_BYTES) + file.readline(_PIECE_BYTES)


def _decode(decoder: Any, data: bytes, name: str, line: int) -> str:
    try:
        return str(decoder.decode(data, not data))
    except UnicodeDecodeError as error:
        line += _count_line_ends(error.object[: error.start])
        raise UserError(
            f"{name}:{line}: byte {error.object[error.start]:#04x} is not UTF-8 text. "
            "Convert the file, for example with iconv -f windows-1252 -t utf-8, or "
            "mend that place if the rest is UTF-8."
        ) from error


def _count_line_ends(data: bytes) -> int:
    lone = data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else 0
    return data.count(b"\n") + lone


def read_plain_text(path: epath.PathLike, may_be_json: bool = False) -> Iterator[str]:
    """The text of a file in pieces, with line ends as newlines.

    Raises:
      FileNotFoundError, UserError: as `open_file` and `read_pieces`.
    """
    with open_file(path) as file:
        for piece in read_pieces(file, str(path), may_be_json=may_be_json):
            if "\r" in piece:
                piece = piece.replace("\r\n", "\n").replace("\r", "\n")
            yield piece


def read_lines(
    file: BinaryIO, name: str, *, may_be_json: bool = False
) -> Iterator[str]:
    """The lines of an open file with their ends, as `split_lines` divides them.

    Args:
      file, name, may_be_json: as for `read_pieces`.

    Raises:
      UserError: as `read_pieces`, or naming a line that is longer than any book.
    """
    most = LONGEST_LIST if may_be_json else LONGEST_LINE
    number, begun, size = 1, list[str](), 0  # a line that may go on in the next piece
    for piece in read_pieces(file, name, may_be_json=may_be_json):
        begun.append(piece)
        size += len(piece)
        if "\n" in piece or "\r" in piece:
            *lines, last = split_lines("".join(begun))
            yield from lines
            number += len(lines)
            if last.endswith("\n"):
                yield last
                number, last = number + 1, ""
            begun, size = [last], len(last)
        if size > most:
            jq = "; write a list's objects on lines with jq -c '.[]'" * may_be_json
            raise UserError(
                f"{name}:{number}: the line has more than {most:,} characters, which "
                f"no text has; leave the file out{jq}."
            )
    yield from split_lines("".join(begun))


def split_lines(text: str) -> Iterator[str]:
    r"""Lines with their ends, which are "\n", "\r\n" or "\r" everywhere.

    Other breaks, such as U+2028, do not end a line.
    """
    return io.StringIO(text, newline="")
