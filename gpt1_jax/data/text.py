"""Text: decoded into lines, cleaned before it is tokenised, shown in messages."""

import codecs
import io
import re
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any

from gpt1_jax.errors import UserError

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
# Control characters but tab and newline; halves of characters, which no terminal shows.
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
CONVERT = "Convert it, for example with iconv -f {} -t utf-8."


def refuse_utf16(data: bytes, name: str) -> None:
    """Refuses text in UTF-16 or UTF-32, as some editors and shells write it.

    Without a byte order mark it would pass for UTF-8 with zeros between letters.

    Args:
      data: the first bytes of the text, four or more.
      name: the text's name, for the message.
    """
    marked = (
        known for mark, known in _BYTE_ORDER_MARKS.items() if data[: len(mark)] == mark
    )
    unmarked = _UNMARKED.get(tuple(byte == 0 for byte in data[:4]))
    if encoding := next(marked, unmarked):
        raise UserError(
            f"{name} is {encoding} text, not UTF-8. {CONVERT.format(encoding.lower())}"
        )


def split_lines(text: str) -> Iterator[str]:
    r"""Lines with their ends, which are "\n", "\r\n" or "\r" everywhere.

    Other breaks, such as U+2028, do not end a line.
    """
    return io.StringIO(text, newline="")


def text_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of an open file with their ends, as `split_lines` divides them.

    Args:
      file: parts of the file that end where a line does, as a binary file yields them.
      name: the file's name, for messages.

    Raises:
      UserError: naming the file and the first line that is not UTF-8.
    """
    number = 0
    for part in file:
        if not number:
            refuse_utf16(part, name)
        try:
            text = part.decode("utf-8" if number else "utf-8-sig")
        except UnicodeDecodeError as error:
            number += 1 + error.object.count(b"\r", 0, error.start)
            raise UserError(
                f"{name}:{number}: byte {error.object[error.start]:#04x} is not UTF-8 "
                f"text. {CONVERT.format('latin1')}"
            ) from error
        for line in split_lines(text):
            number += 1
            yield line


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
