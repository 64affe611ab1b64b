"""Documents from text files: plain text and JSON lines, gzipped or not.

Files, folders and globs, local or gs://. Of a JSON lines file (.jsonl, .ndjson) one
text field of each object is read; like any other file, it is one document.
"""

import codecs
import functools
import glob
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from gpt1_jax.data import documents
from gpt1_jax.data.documents import Document, read_blocks
from gpt1_jax.data.files import file_stamp, files_below, is_remote, locate
from gpt1_jax.data.text import CONVERT, refuse_utf16
from gpt1_jax.errors import UserError

_PLAIN = (".txt", ".text", ".md")
_JSON_LINES = (".jsonl", ".ndjson")
_COMPRESSED = (".zip", ".bz2", ".xz", ".zst", ".7z", ".rar", ".tar", ".tgz", ".tar.gz")
_MAGIC = {  # first bytes of files that are not text
    b"PK\x03\x04": "a zip archive",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"\x1f\x8b": "compressed by gzip, but its name does not end in .gz",
}
_UNPACK = "Of compressed files only .gz is read; unpack it first."


def text_documents(paths: str, key: str, jsonl_field: str) -> list[Document]:
    """One document for each file that `paths` names.

    Args:
      paths: files, folders and globs, separated by commas; local or gs://. Folders
        are searched for .txt, .text, .md, .jsonl and .ndjson, each also as .gz, in
        lower or upper case; hidden files and folders are passed over.
      key: the configuration key, for messages.
      jsonl_field: the field to read from each object in a JSON lines file; if empty,
        such files count as plain text and are not looked for in folders.

    Returns:
      The documents sorted by path.

    Raises:
      FileNotFoundError: if an entry names nothing, or a link leads nowhere.
      ValueError: if a file is empty, or compressed other than by gzip, or there is
        no entry between the commas.
    """
    suffixes = (*_PLAIN, *_JSON_LINES) if jsonl_field else _PLAIN
    files: dict[str, epath.Path] = {}
    for entry in filter(None, (part.strip() for part in paths.split(","))):
        found = _expand(entry, suffixes)
        if not found:
            raise FileNotFoundError(
                f"{key}: {entry!r} names no file. A folder is searched for "
                f"{', '.join(suffixes)}, and for .txt.gz and so on; a glob such as "
                "'books/**/*.txt' takes any name."
            )
        files.update({str(path): path for path in found})
    if paths and not files:
        raise UserError(f"{key}={paths!r} names no file.")
    return [_document(files[name], key, jsonl_field) for name in sorted(files)]


def _expand(entry: str, suffixes: tuple[str, ...]) -> list[epath.Path]:
    path = locate(entry)
    if path.is_dir():
        return [
            found
            for found in files_below(path)
            if _has_suffix(found.name, suffixes) and not _is_hidden(found, path)
        ]
    if path.exists():
        return [path]
    if is_remote(path):
        return [p for p in path.parent.glob(path.name) if p.is_file()]
    found = glob.glob(os.fspath(path), recursive=True)
    return [epath.Path(name) for name in found if not os.path.isdir(name)]


def _is_hidden(path: epath.Path, top: epath.Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(top).parts)


def _has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().removesuffix(".gz").endswith(suffixes)


def _document(path: epath.Path, key: str, jsonl_field: str) -> Document:
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{key} finds {path}, a link to a file that is not there; remove the link, "
            "or name the files without it."
        ) from None
    if not stat.length:
        raise UserError(f"{path} is empty; remove it or leave it out of {key}.")
    if path.name.lower().endswith(_COMPRESSED):
        raise UserError(f"{key} finds {path}. {_UNPACK}")
    stamp = file_stamp(path)
    if jsonl_field and _has_suffix(path.name, _JSON_LINES):
        stamp += f"-{jsonl_field}"
        chunks = functools.partial(_json_texts, path, jsonl_field)
    else:
        chunks = functools.partial(_decoded, path)
    return Document(str(path), stamp, stat.length, lambda: read_blocks(chunks()))


def _decoded(path: epath.Path) -> Iterator[str]:
    """The text of a file in chunks, with all line ends as newlines.

    Raises:
      ValueError: if the bytes are not UTF-8 or the gzip file is damaged.
    """
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    position = 0
    try:
        with path.open("rb") as raw:
            zipped = path.name.lower().endswith(".gz")
            stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
            while data := stream.read(documents.BLOCK_CHARS):
                if not position:
                    refuse_utf16(data, str(path))
                yield decoder.decode(data)
                position += len(data)
            yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_text(path, error, position) from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is damaged or not a gzip file: {error}.") from error


def _not_text(path: epath.Path, error: UnicodeDecodeError, position: int) -> UserError:
    with path.open("rb") as file:
        head = file.read(8)
    for magic, what in _MAGIC.items():
        if head.startswith(magic) and not path.name.lower().endswith(".gz"):
            return UserError(f"{path} is {what}. {_UNPACK}")
    return UserError(
        f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} near "
        f"position {position + error.start}. {CONVERT.format('latin1')}"
    )


# --- JSON lines ---------------------------------------------------------------


def _json_texts(path: epath.Path, field: str) -> Iterator[str]:
    """The text field of each object in a JSON lines file, a newline after each.

    Raises:
      ValueError: naming the line that is not an object with text in that field.
    """
    for number, line in enumerate(_lines(_decoded(path)), 1):
        if not line.isspace():
            yield _json_text(line, field, f"{path}:{number}") + "\n"


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Whole lines; only a newline ends one, as JSON may hold other line breaks."""
    parts: list[str] = []
    for chunk in chunks:
        first, *others = chunk.split("\n")
        parts.append(first)
        for part in others:
            yield "".join(parts) + "\n"
            parts = [part]
    if last := "".join(parts):
        yield last


def _json_text(line: str, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if deep else error
        raise UserError(f"{where}: this cannot be read as JSON: {reason}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{where}: this is {value!r:.60}, not a JSON object {{...}}.")
    if field not in value:
        raise UserError(
            f"{where}: the object has no field {field!r}; it has "
            f"{', '.join(map(repr, value)) or 'none':.200}. Name the text's field with "
            "--config.data.jsonl_field=NAME, or leave the file out."
        )
    text = value[field]
    if not isinstance(text, str):
        raise UserError(f"{where}: the field {field!r} is {text!r:.60}, not text.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: character {error.start} of the field {field!r} is "
            f"{text[error.start]!r}, half of a surrogate pair; remove it or add the "
            "other half."
        ) from error
    return text
