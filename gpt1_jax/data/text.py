"""Text: tells it from other files, cleans it, and shows it in messages."""

import codecs
import json
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from gpt1_jax.errors import UserError

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
# Control characters except tab and newline; lone surrogates, which no terminal shows.
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile(r"[\ufeff\u00ad]")  # byte order mark, soft hyphen

_BYTE_ORDER_MARKS = {  # UTF-32's first: one of them begins with UTF-16's
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# Which of the first four bytes are zero, if the letters are ASCII.
_UNMARKED: dict[tuple[bool, ...], str] = {
    (False, True, False, True): "UTF-16LE",
    (True, False, True, False): "UTF-16BE",
}
_CONVERT = "Convert it, for example with iconv -f {} -t utf-8."

# Compressed files, which are read as training text: first bytes and suffixes. pzstd's
# begin with a frame that is to be skipped.
COMPRESSED = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ": ".xz"}
COMPRESSED |= {b"(\xb5/": ".zst", b"P*M\x18": ".zst"}
_UNPACK = "Unpack it first."
_WRITE_LINES = (
    "If each line holds an object, end its name in .jsonl (of training text, also in "
    ".json); otherwise write its texts to a .txt file."
)
_WRITE_ROWS = (
    "Write its texts to a .txt file, or to a .jsonl file with an object such as "
    '{"text": ".."} on each line.'
)
_SAVE_TEXT = "Save its text as a .txt file."
_NAME_TEXT = "Name the text that they were made from."
# Files that are not plain text: kind, suffixes of the name, beginning in lower case,
# and the way out.
_OTHER_FILES: tuple[tuple[str, tuple[str, ...], tuple[bytes, ...], str], ...] = (
    ("compressed", (), tuple(map(bytes.lower, COMPRESSED)), _UNPACK),
    ("a zip archive", (".zip",), (b"pk\x03\x04",), _UNPACK),
    ("an archive", (".tar", ".tgz", ".7z", ".rar"), (b"7z\xbc\xaf",), _UNPACK),
    ("JSON", (".json", ".jsonl", ".ndjson", ".ipynb"), (), _WRITE_LINES),
    ("a table", (".csv", ".tsv", ".xls", ".xlsx", ".ods"), (), _WRITE_ROWS),
    ("a Parquet file", (".parquet",), (b"par1\x15",), _WRITE_ROWS),
    ("an Arrow file", (".arrow", ".feather"), (b"arrow1\0", b"fea1"), _WRITE_ROWS),
    ("a database", (".sqlite", ".db"), (b"sqlite format 3\0",), _WRITE_ROWS),
    (
        "HTML or XML",
        (".html", ".htm", ".xhtml", ".xml"),
        (b"<!doctype html", b"<html", b"<?xml"),
        _SAVE_TEXT,
    ),
    ("a PDF document", (".pdf",), (b"%pdf-",), _SAVE_TEXT),
    (
        "a formatted document",
        (".doc", ".docx", ".odt", ".rtf", ".epub"),
        (b"{\\rtf", b"\xd0\xcf\x11\xe0"),
        _SAVE_TEXT,
    ),
    (
        "a file of numbers",
        (".bin", ".npy", ".npz", ".h5", ".hdf5", ".pt", ".pkl", ".safetensors"),
        (b"\x93numpy", b"\x89hdf\r\n"),
        _NAME_TEXT,
    ),
)
_HEAD = 1 << 16  # characters that tell whether a text is JSON
_HEAD_BYTES = 1 << 12  # bytes that tell whether a file is text
_CONTROL_BYTES = bytes({*range(32), 127} - {*b"\t\n\v\f\r\x1b"})
_MOST_CONTROL = 0.3  # of the bytes of text; numbers have more
_NO_TEXT = ("Cc", "Cn", "Co", "Cs")  # control, unassigned, private use, surrogate
_NUMBERS = "holds binary data, such as the numbers of tokens, not text. " + _NAME_TEXT


def unpacked_name(name: str) -> str:
    """A file's name in lower case, without the suffix of a compressed file."""
    name = name.lower()
    return name.removesuffix(next(filter(name.endswith, COMPRESSED.values()), ""))


def refuse_other_name(name: str) -> None:
    """Refuses a file whose name says that it is not plain text, compressed or not.

    Raises:
      UserError: saying what it is, and the way out.
    """
    unpacked = unpacked_name(name)
    for what, endings, _, way_out in _OTHER_FILES:
        if unpacked.endswith(endings):
            raise UserError(f"{name} is {what}, not plain text. {way_out}")


def refuse_binary(data: bytes, name: str) -> None:
    """Refuses data that begins like another kind of file, or like UTF-16 or UTF-32.

    Some editors and shells write UTF-16. Without a byte order mark it would pass for
    UTF-8 with zeros between letters.

    Args:
      data: the first bytes of the text, four or more.
      name: the text's name, for the message.
    """
    begin = data[:100].removeprefix(codecs.BOM_UTF8).lstrip().lower()
    for what, _, beginnings, way_out in _OTHER_FILES:
        if begin.startswith(beginnings):
            raise UserError(f"{name} is {what}, not plain text. {way_out}")
    marked = (
        known for mark, known in _BYTE_ORDER_MARKS.items() if data[: len(mark)] == mark
    )
    unmarked = _UNMARKED.get(tuple(byte == 0 for byte in data[:4]))
    if unmarked and not _is_text(data, unmarked):
        unmarked = None
    if encoding := next(marked, unmarked):
        raise UserError(
            f"{name} is {encoding} text, not UTF-8. {_CONVERT.format(encoding.lower())}"
        )
    if _share_of_control(data) > _MOST_CONTROL:
        raise UserError(f"{name} {_NUMBERS}")


def _is_text(data: bytes, encoding: str) -> bool:
    """Whether the first bytes are text in an encoding, and not numbers of 16 bits."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data[:_HEAD_BYTES])
    except UnicodeDecodeError:
        return False
    return all(
        character in "\t\n\f\r" or unicodedata.category(character) not in _NO_TEXT
        for character in text
    )


def _share_of_control(data: bytes) -> float:
    """The share of bytes that stand for control characters, at the beginning."""
    head = data[:_HEAD_BYTES]
    found = len(head) - len(head.translate(None, _CONTROL_BYTES))
    return found / max(len(head), 1)


def refuse_json(parts: Iterable[str], name: str) -> Iterator[str]:
    """Yields the parts of a plain text unchanged.

    Raises:
      UserError: if the text begins with JSON objects or lists and nothing else. Prose
        may begin with a bracket.
    """
    parts = iter(parts)
    held: list[str] = []
    begin, size, is_whole = "", 0, True
    for part in parts:
        held.append(part)
        begin, size = begin or part.lstrip()[:1], size + len(part)
        if begin not in ("", "{", "[") or size >= _HEAD:
            is_whole = False
            break
    if begin in ("{", "[") and _is_json("".join(held), is_whole):
        raise UserError(f"{name} is JSON, not plain text. {_WRITE_LINES}")
    yield from held
    yield from parts


def _is_json(text: str, is_whole: bool) -> bool:
    """Whether a text, or its beginning, is nothing but JSON objects and lists."""
    decoder, text, is_sure = json.JSONDecoder(), text.strip(), False
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or error.pos > len(text) - 8
            return is_cut and not is_whole
        except (ValueError, RecursionError):  # a number too long; nested too deeply
            return False
        if not isinstance(value, dict | list):
            return False
        # Not numbers alone: a footnote's [1] is a list, too.
        is_sure = is_sure or any(not isinstance(each, int | float) for each in value)
        text = text[end:].lstrip()
    return is_sure


def encoding_hint(error: UnicodeDecodeError, *, after_utf8: bool) -> str:
    """The way out for a file with bytes that are not UTF-8.

    Args:
      error: the error, which holds the bytes.
      after_utf8: whether UTF-8 beyond ASCII came before them.
    """
    data = error.object
    if b"\0" in data or _share_of_control(data) > _MOST_CONTROL / 10:
        return f"The file {_NUMBERS}"
    if after_utf8 or not data[: error.start].isascii():
        return (
            "What stands before it is UTF-8, so the file is damaged there, or mixes "
            "encodings; mend that place."
        )
    try:
        data.decode("windows-1252")
        others = len(data.translate(None, bytes(range(128))))
        is_western = others * 2 < max(len(data), 20)  # letters of other scripts abound
    except UnicodeDecodeError:
        is_western = False
    if is_western:
        return _CONVERT.format("windows-1252")
    return "Convert it with iconv -f ENCODING -t utf-8, naming the file's encoding."


def clean(text: str) -> str:
    """Text without outer or repeated spaces, control characters or blank lines."""
    text = _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _CONTROL.sub(" ", text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def printable(text: str) -> str:
    r"""Text for a terminal: control characters as `\x1b`, so that they do nothing."""
    return _ESCAPED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def brief(value: Any) -> str:
    """A value for a message: short, however long or deeply nested it is."""
    return _repr.repr(value)


_repr = reprlib.Repr()
_repr.maxstring = 60
