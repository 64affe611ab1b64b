"""Tells text from other files, cleans it, and shows it in messages."""

import codecs
import re
import reprlib
from typing import Any

from gpt1_jax.errors import UserError

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
# Control characters except tab and newline; lone surrogates, which no terminal shows.
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile(r"[\ufeff\u00ad]")  # byte order mark, soft hyphen

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
_WAY_OUT = (
    "Save its text as a .txt file, or as a .jsonl file with an object such as "
    '{"text": ".."} on each line.'
)
# Names of files that are not plain text; there are too many others to list.
_OTHER_NAMES = re.compile(
    r"\.(zip|tar|tgz|7z|rar|json|jsonl|ndjson|ipynb|csv|tsv|xlsx?|ods|parquet|arrow|"
    r"feather|sqlite|db|x?html?|xml|pdf|docx?|odt|rtf|epub|bin|np[yz]|h(df)?5|pt|pkl|"
    r"safetensors)(\.(gz|bz2|xz|zst))?"
)
_MARKUP = re.compile(rb"\s*(<!doctype html|<html|<\?xml|%pdf-|\{\\rtf)", re.IGNORECASE)
_JSON = re.compile(rb'\s*\[?\s*\{\s*"[^"\n]*"\s*:')  # an object, or a list of them


def refuse_lfs_pointer(head: bytes, name: str) -> None:
    """Refuses a Git LFS pointer, which stands for a file that was not fetched.

    Raises:
      UserError: saying how to fetch the file.
    """
    if head.startswith(LFS_POINTER):
        raise UserError(
            f"{name} is a Git LFS pointer, not the file; fetch the file with "
            "`git lfs pull`."
        )


def refuse_other_name(name: str) -> None:
    """Refuses a file whose name says that it is not plain text, compressed or not.

    Raises:
      UserError: saying what its name ends in, and the way out.
    """
    if found := re.search(f"{_OTHER_NAMES.pattern}$", name.lower()):
        raise UserError(f"{name} ends in {found[0]}, not plain text. {_WAY_OUT}")


def refuse_other_content(data: bytes, name: str, *, may_be_json: bool) -> None:
    """Refuses a file that does not begin as UTF-8 text does.

    Args:
      data: the beginning of the file.
      name: the file's name, for the message.
      may_be_json: whether JSON is expected, not plain text.

    Raises:
      UserError: saying what the file seems to be, and the way out.
    """
    head = data[:4096].removeprefix(codecs.BOM_UTF8)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{name} is UTF-16 text, not UTF-8. Convert it, for example with iconv -f "
            "utf-16 -t utf-8."
        )
    if head.startswith(b"PAR1") or b"\0" in head:
        raise UserError(
            f"{name} holds binary data, such as the numbers of tokens, or UTF-16 text "
            f"without its mark; it is not plain text. {_WAY_OUT}"
        )
    if _MARKUP.match(head):
        raise UserError(f"{name} is HTML or another format, not plain text. {_WAY_OUT}")
    if not may_be_json and _JSON.match(head):
        raise UserError(
            f"{name} is JSON, not plain text. End its name in .jsonl or .json."
        )


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
