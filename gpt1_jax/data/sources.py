"""Where text comes from: documents, read block by block.

Three sources: `builtin`, the documentation that is on every machine; `text`, files,
folders and globs, local or gs://, plain or gzip; `tfds`, a TensorFlow Datasets
corpus in ArrayRecord form, without TensorFlow. A document is one file, one module's
docstrings, or a range of a dataset's rows. Memory never grows with a document.
"""

import ast
import codecs
import glob
import gzip
import importlib.metadata
import importlib.util
import inspect
import io
import json
import os
import platform
import re
import sysconfig
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tqdm
from etils import epath

from gpt1_jax.config import DataConfig

BLOCK_CHARS = 1 << 18
_NOT_DOCUMENTATION = {"site-packages", "test", "tests", "idlelib"}
BUILTIN_PACKAGES = ("numpy", "scipy", "jax", "flax", "optax", "matplotlib")
TEXT_SUFFIXES = (".txt", ".txt.gz", ".text", ".md")


class Block(NamedTuple):
    """A piece of a document."""

    text: str
    ends_line: bool  # whether the next block starts a new line


class Document(NamedTuple):
    """A named text that is read only when its blocks are asked for."""

    name: str
    stamp: str  # changes when the text does: size and time, or versions
    num_bytes: int  # to show progress; for .gz the size on disk
    blocks: Callable[[], Iterator[Block]]
    may_be_blank: bool = False  # rows of a dataset are; an empty file is a mistake


def read_blocks(chunks: Iterable[str]) -> Iterator[Block]:
    """Cuts text into blocks at line ends, or at a space in a very long line."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        while len(rest) >= BLOCK_CHARS:
            end = rest.rfind("\n", 0, BLOCK_CHARS) + 1
            ends_line = end > 0
            if not ends_line:  # before a word: a line's end stays with its last word
                end = rest[:BLOCK_CHARS].rstrip().rfind(" ") + 1 or BLOCK_CHARS - 1
            yield Block(rest[:end], ends_line)
            rest = rest[end:]
    if rest:
        yield Block(rest, True)


# --- text files ---------------------------------------------------------------


def text_documents(paths: str, key: str) -> list[Document]:
    """One document for each file that `paths` names.

    Args:
      paths: files, folders (searched for .txt, .txt.gz, .text, .md) and globs,
        separated by commas; local or gs://.
      key: the configuration key, for messages.

    Returns:
      The documents sorted by path.

    Raises:
      FileNotFoundError: if an entry names nothing.
      ValueError: if a file is empty, or there is no entry between the commas.
    """
    files: dict[str, epath.Path] = {}
    for entry in filter(None, (part.strip() for part in paths.split(","))):
        found = _expand(entry)
        if not found:
            raise FileNotFoundError(
                f"{key}: {entry!r} names no file. A folder is searched for "
                f"{', '.join(TEXT_SUFFIXES)}; a glob such as 'books/**/*.txt' takes "
                "any name."
            )
        files.update({str(path): path for path in found})
    if paths and not files:
        raise ValueError(f"{key}={paths!r} names no file.")
    return [_text_document(files[name]) for name in sorted(files)]


def _expand(entry: str) -> list[epath.Path]:
    try:
        path = epath.Path(entry).expanduser()
        if path.is_dir():
            return [
                folder / name
                for folder, _, names in path.walk()
                for name in names
                if name.endswith(TEXT_SUFFIXES)
            ]
        if path.exists():
            return [path]
        if "://" in entry:
            return [p for p in path.parent.glob(path.name) if p.is_file()]
        found = glob.glob(os.path.expanduser(entry), recursive=True)
        return [epath.Path(name) for name in found if os.path.isfile(name)]
    except ImportError as error:
        raise ImportError(
            f"Reading {entry} needs the extra for Google Cloud Storage: "
            "pip install 'gpt1_jax[gcp]'."
        ) from error


def _text_document(path: epath.Path) -> Document:
    stat = path.stat()
    if not stat.length:
        raise ValueError(f"{path} is empty; remove it or leave it out of the paths.")
    return Document(
        str(path),
        f"{stat.length}-{_mtime(path) or stat.mtime}",
        stat.length,
        lambda: read_blocks(_decoded(path)),
    )


def _mtime(path: epath.Path) -> int:
    """Nanoseconds, which epath does not tell; 0 for a file that is not local."""
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def _decoded(path: epath.Path) -> Iterator[str]:
    """The text of a file in chunks, with any line ends as newlines.

    Raises:
      ValueError: if the bytes are not UTF-8 or the gzip file is damaged.
    """
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    position = 0
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
            while data := stream.read(BLOCK_CHARS):
                yield decoder.decode(data)
                position += len(data)
            yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} near "
            f"position {position + error.start}. Convert it, for example with "
            f"iconv -f latin1 -t utf-8."
        ) from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}.") from error


def check_readable(documents: Iterable[Document]) -> None:
    """Reads everything once, so that a bad file is named before long work."""
    for document in documents:
        blank = [block.text.isspace() for block in document.blocks()]
        if all(blank) and not document.may_be_blank:
            raise ValueError(f"{document.name} holds no text, only white space.")


# --- TensorFlow Datasets ------------------------------------------------------

_MAX_TFDS_DOCUMENTS = 10_000


def tfds_documents(spec: str, feature: str, data_dir: str, key: str) -> list[Document]:
    """Documents of a dataset that TFDS has prepared, or prepares now, as ArrayRecord.

    Args:
      spec: NAME:SPLIT, for example `lm1b:train` or `pg19:train[:10%]`.
      feature: the text feature.
      data_dir: TFDS' folder; empty for its default.
      key: the configuration key, for messages.

    Returns:
      At most 10,000 documents, each a range of rows; a row starts a new line.

    Raises:
      ValueError: if the dataset, split or feature is not there, or is TFRecord.
    """
    name, colon, split = spec.partition(":")
    if not colon:
        raise ValueError(f"{key}={spec!r} must be NAME:SPLIT, for example lm1b:train.")
    builder, rows = _open_dataset(spec, data_dir, key)
    features = builder.info.features
    if feature not in features or not isinstance(rows[0][feature], bytes | str):
        raise ValueError(
            f"config.data.tfds_feature={feature!r} is not a text feature of {name}; it "
            f"has {', '.join(sorted(features))}."
        )
    info = builder.info
    stamp = f"{info.full_name}-{split}-{feature}-{len(rows)}-{info.dataset_size}"
    group = -(-len(rows) // _MAX_TFDS_DOCUMENTS)
    row_bytes = info.dataset_size // info.splits.total_num_examples

    def make(start: int) -> Document:
        stop = min(start + group, len(rows))

        def lines() -> Iterator[str]:
            for index in range(start, stop):
                text = rows[index][feature]
                try:
                    text = text.decode() if isinstance(text, bytes) else text
                except UnicodeDecodeError as error:
                    raise ValueError(f"{spec}, row {index}: {error}.") from error
                yield text + "\n"

        size = (stop - start) * row_bytes
        return Document(
            f"{spec}[{start}]", stamp, size, lambda: read_blocks(lines()), True
        )

    return [make(start) for start in range(0, len(rows), group)]


def _open_dataset(spec: str, data_dir: str, key: str) -> tuple[Any, Sequence]:
    """The dataset's builder and the rows of its split."""
    import tensorflow_datasets as tfds

    name, _, split = spec.partition(":")
    try:
        builder = tfds.builder(
            name, data_dir=data_dir or None, file_format="array_record"
        )
        builder.download_and_prepare()
        return builder, builder.as_data_source(split)
    except tfds.core.DatasetNotFoundError as error:  # whose message lists them all
        raise ValueError(
            f"{key}={spec!r}: TFDS knows no dataset {name!r} and finds none prepared "
            f"in config.data.tfds_data_dir={data_dir!r}."
        ) from error
    except (NotImplementedError, ValueError, KeyError) as error:
        way_out = ""
        if "tfrecord" in str(error).lower():
            way_out = (
                " TFRecord needs TensorFlow to read; prepare the dataset again with "
                "file_format='array_record'."
            )
        raise ValueError(f"{key}={spec!r}: {error}{way_out}") from error


# --- the documentation on every machine ---------------------------------------


def builtin_documents(cache_dir: Path) -> list[Document]:
    """The documentation of Python and of the installed scientific packages.

    Language reference topics and the docstrings found in the sources of the
    standard library, numpy, scipy, jax and more: English prose, about 10 MB. They
    are collected once into a JSON file under `cache_dir`, one document a module.
    """
    versions = {"python": platform.python_version(), "format": "1"}
    for package in BUILTIN_PACKAGES:
        if importlib.util.find_spec(package):
            versions[package] = importlib.metadata.version(package)
    label = "-".join(f"{name}{version}" for name, version in versions.items())
    path = cache_dir / "builtin" / f"{label}.json"
    if not path.exists():
        tqdm.tqdm.write("Collecting the documentation on this machine, once.")
        texts = _collect_docstrings(
            [name for name in versions if name in BUILTIN_PACKAGES]
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(texts, indent=0), encoding="utf-8")
        partial.rename(path)
    texts = json.loads(path.read_text(encoding="utf-8"))

    def make(name: str, text: str) -> Document:
        return Document(name, label, len(text), lambda: read_blocks([text]))

    return [make(name, text) for name, text in sorted(texts.items())]


def _collect_docstrings(packages: list[str]) -> dict[str, str]:
    """Text by module name; from source files, so nothing is imported or run."""
    import pydoc_data.topics

    texts = {
        f"python.{topic}": unwrap(text)
        for topic, text in pydoc_data.topics.topics.items()
    }
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    for package in packages:
        spec = importlib.util.find_spec(package)
        folders = spec.submodule_search_locations if spec else ()
        roots += [Path(folder) for folder in folders or ()]
    seen: set[str] = set()
    for root in roots:
        for file in sorted(root.rglob("*.py")):
            if _NOT_DOCUMENTATION & set(file.relative_to(root).parts):
                continue
            docstrings = [text for text in _docstrings(file) if text not in seen]
            seen.update(docstrings)
            if docstrings:
                name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
                texts[name] = "\n".join(docstrings)
    return texts


def _docstrings(file: Path) -> list[str]:
    """The prose of docstrings of 80 characters or more in one source file."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of others' escape sequences
            tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, RecursionError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(n) for n in ast.walk(tree) if isinstance(n, kinds))
    prose = (unwrap(text) for text in found if text and len(text) >= 80)
    return [text for text in prose if text]


def unwrap(text: str) -> str:
    """One line for each paragraph; code samples and rulers are left out."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    prose = [p for p in paragraphs if ">>>" not in p and "    " not in p[:4]]
    lines = (" ".join(re.sub(r"(?m)^[-=~^*#]{3,}$", "", p).split()) for p in prose)
    return "\n".join(line for line in lines if line)


def find_documents(
    config: DataConfig, cache_dir: Path
) -> tuple[list[Document], list[Document]]:
    """The documents for training and, where given apart, for validation."""
    if config.source == "builtin":
        return builtin_documents(cache_dir), []
    if config.source == "text":
        return (
            text_documents(config.train, "config.data.train"),
            text_documents(config.valid, "config.data.valid"),
        )

    def dataset(spec: str, key: str) -> list[Document]:
        feature, data_dir = config.tfds_feature, config.tfds_data_dir
        return tfds_documents(spec, feature, data_dir, key) if spec else []

    return (
        dataset(config.train, "config.data.train"),
        dataset(config.valid, "config.data.valid"),
    )
