"""Files and folders that appear whole or not at all, and their checksums."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from gpt1_jax.errors import UserError


def refuse_links(folder: epath.PathLike) -> None:
    """Refuses a folder to write to that holds a link, however deep.

    Whoever made the folder could decide with one what is written elsewhere. The path to
    the folder may hold links.

    Raises:
      ValueError: naming the link.
    """
    if "://" in str(folder):
        return
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                raise UserError(
                    f"{path} is a link to {os.readlink(path)}, and nothing is written "
                    "through links inside a run folder; remove it, or put what it "
                    "leads to in its place."
                )


def write_whole(path: epath.PathLike, text: str) -> None:
    """Writes a text file under a temporary name, then renames it."""
    path = epath.Path(path)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_json(path: epath.PathLike, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def whole_folder(directory: Path) -> Iterator[Path]:
    """A folder that takes the name `directory` once it is whole, or vanishes."""
    with _scratch(directory) as partial:
        yield partial
        partial.rename(directory)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write a file to, which becomes `path` once it is whole, or vanishes.

    Whatever else is written beside it vanishes too.
    """
    with _scratch(path) as folder:
        yield folder / path.name
        (folder / path.name).replace(path)


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, removed in the end if it is still there."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256(path: epath.PathLike) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with epath.Path(path).open("rb") as file:
        while data := file.read(1 << 22):
            digest.update(data)
    return digest.hexdigest()


def json_digest(record: Any) -> str:
    """The SHA-256 of a JSON value, in hexadecimal."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
