"""Writes files and folders, whole or not at all.

Everything the package writes to disk is written here. A file or folder is made under an
unpredictable name beside its own, and renamed once it is complete. So nobody reads half
of it, and a link of that name is replaced, not followed. The leftovers of a killed
process are removed by the next process that makes the same file: once they are a day
old, or at once if it holds the folder's lock.
"""

import contextlib
import errno
import glob
import hashlib
import importlib.util
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from etils import epath

from gpt1_jax.config.checks import is_device
from gpt1_jax.config.saved import NOT_FINITE
from gpt1_jax.errors import DENIED, FULL, USED_UP, MissingPackage, UserError

_DAY = 86_400.0  # seconds
_PARTIAL = ".partial"

# The buckets that epath opens, and the package it needs for each (or TensorFlow). Only
# gs:// is tested.
_LIBRARIES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs"}


def locate(path: str, key: str = "", *, local: bool = False) -> epath.Path:
    """The path of a file or folder that a user names: local, or in a bucket.

    Args:
      path: the name; ~ is the home folder.
      key: the configuration key that holds it, for messages.
      local: whether it must be on this machine.

    Raises:
      UserError: if it is an address that cannot be opened.
      MissingPackage: if that needs a library which is not installed.
    """
    scheme, is_address, _ = path.partition("://")
    if not is_address:
        return epath.Path(path).expanduser()
    named = f"{key}={path!r}" if key else repr(path)
    if local:
        raise UserError(
            f"{named} must be a local path; an address such as {scheme}:// does not "
            "work here."
        )
    if scheme not in _LIBRARIES:
        raise UserError(
            f"{named} cannot be opened: use a local path or gs://BUCKET/PATH (s3:// "
            "and az:// are untested). Download what is elsewhere first."
        )
    library = _LIBRARIES[scheme]
    if not any(map(importlib.util.find_spec, (library, "tensorflow"))):
        package = "'gpt1_jax[gcp]'" if scheme == "gs" else library
        raise MissingPackage(
            f"{named} needs {library}, which is not installed: pip install {package}, "
            "or use a local path."
        )
    return epath.Path(path)


def from_where(path: epath.PathLike) -> str:
    """Where a relative path was looked for, for messages; empty for any other path."""
    absolute = is_remote(path) or os.path.isabs(path)
    return "" if absolute else f" in the working folder {os.getcwd()}"


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is an address such as gs://, where nothing can be renamed."""
    return "://" in os.fspath(path)


def remove(path: epath.PathLike) -> None:
    """Removes a file, a folder with all its contents, or a link without its target."""
    path = epath.Path(path)
    if path.is_dir() and not os.path.islink(path):
        path.rmtree()
    else:
        path.unlink()


def move(path: epath.Path, target: epath.Path) -> None:
    """Moves a folder to a new name, also from one disk to another."""
    if is_remote(path):
        path.rename(target)
    else:
        shutil.move(path, target)


def make_folder(path: epath.PathLike) -> None:
    """Makes a folder and its parents where they are missing."""
    epath.Path(path).mkdir(parents=True, exist_ok=True)


def check_writable(folder: epath.PathLike) -> None:
    """Makes a folder if it is missing, and tries to write a file in it.

    Raises:
      OSError: if either fails.
    """
    make_folder(folder)
    try_writing(folder)


def try_writing(folder: epath.PathLike) -> None:
    """Creates a file in a folder, unnamed if the file system can do that."""
    if is_remote(folder):
        probe = epath.Path(folder) / f".{secrets.token_hex(8)}{_PARTIAL}"
        create(probe, "")
        probe.unlink()
    else:
        tempfile.TemporaryFile(dir=folder, prefix=".", suffix=_PARTIAL).close()


def create(path: epath.PathLike, content: str | bytes) -> None:
    """Writes a new file; text is UTF-8.

    Raises:
      FileExistsError: if something is there already, even a link that leads nowhere.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        epath.Path(path).write_bytes(data)
        return
    with open(path, "xb") as file:
        file.write(data)


def append_to(path: Path, buffering: int = -1) -> BinaryIO:
    """Opens a file to append to, and makes it if missing.

    A link becomes a copy of the file that it leads to, which stays as it is.
    """
    if path.is_symlink():
        write_whole(path, path.read_bytes() if path.is_file() else b"")
    return open(path, "ab", buffering=buffering)


def write_whole(path: epath.PathLike, content: str | bytes) -> None:
    """Writes a file, or replaces the one there, and its parents; text is UTF-8.

    Raises:
      CannotWrite: if the disk is full, or refuses it.
    """
    if is_remote(path):
        make_folder(epath.Path(path).parent)
        create(path, content)
    else:
        with whole_file(Path(path)) as partial:
            create(partial, content)


def write_json(path: epath.PathLike, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_whole(path, format_json(value, indent=2) + "\n")


def write_json_lines(path: epath.PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes each row as a line of JSON, all or nothing; NaN is written as null."""
    lines = (format_json(row, ensure_ascii=False) for row in rows)
    write_whole(path, "".join(f"{line}\n" for line in lines))


def read_record(path: epath.PathLike) -> dict[str, Any]:
    """A JSON object that `write_json` wrote; empty if it is missing or damaged."""
    try:
        value = json.loads(epath.Path(path).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def format_json(value: Any, **layout: Any) -> str:
    """JSON with null in place of NaN and infinities, which JSON does not have.

    An object also says, under `NOT_FINITE`, which of its numbers these are, by key and
    by position in lists. `gpt1_jax.config.saved.parse_json` reads them back. The layout
    is keywords of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:
        value, marks = _finite(value)
        if isinstance(value, dict):
            value[NOT_FINITE] = marks
        return json.dumps(value, allow_nan=False, **layout)


def _finite(value: Any) -> tuple[Any, Any]:
    """A value with null for each number that is not finite, and the marks of these."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, json.dumps(value)
    if isinstance(value, dict):
        parts = {key: _finite(each) for key, each in value.items()}
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(map(_finite, value)))
    else:
        return value, None
    plain = {key: each for key, (each, _) in parts.items()}
    marks = {str(key): mark for key, (_, mark) in parts.items() if mark}
    return plain if isinstance(value, dict) else list(plain.values()), marks


@contextlib.contextmanager
def whole_folder(
    folder: epath.PathLike, *, beside_others: bool = False
) -> Iterator[epath.Path]:
    """A folder that takes its name once it is whole, or vanishes.

    A remote folder cannot be renamed, so it has its name from the beginning.

    Args:
      folder: the folder.
      beside_others: whether it may be there and hold files of other names.

    Raises:
      FileExistsError: if something else took the name meanwhile.
      CannotWrite: if the disk is full.
    """
    if is_remote(folder):
        make_folder(folder)
        yield epath.Path(folder)
        return
    with _becoming(Path(folder), beside_others) as partial:
        partial.mkdir()
        yield epath.Path(partial)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write a file to, which becomes `path` once it is whole, or vanishes.

    Other files written beside it vanish too. A device or a pipe gets the whole file at
    the end.

    Raises:
      CannotWrite: if the disk is full.
    """
    if not is_stream(path):
        with _becoming(path) as partial:
            yield partial
        return
    with temporary_folder() as folder:
        yield folder / path.name
        with (folder / path.name).open("rb") as file, open(path, "ab", 0) as stream:
            shutil.copyfileobj(file, stream)


@contextlib.contextmanager
def _becoming(path: Path, beside_others: bool = False) -> Iterator[Path]:
    """A path, alone in a new folder, which becomes `path` once it is whole."""
    with explained_writing(path):
        make_folder(path.parent)
        remove_partial(path.parent, path.name)
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_PARTIAL}")
        scratch.mkdir()
        create(mark := scratch / ".mark", "")
        try:
            yield scratch / path.name
            if not mark.exists():  # a part may have been written since, in a new folder
                raise FileNotFoundError(
                    f"{path} was not written: another program removed {scratch}, in "
                    "which it was being made. Run the same command again."
                )
            if beside_others and path.is_dir() and any(path.iterdir()):
                _move_all(scratch / path.name, path)
            else:
                (scratch / path.name).replace(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise FileExistsError(
                f"{path} was made by another process meanwhile, or holds files of the "
                "same names, and nothing in it is overwritten; name another."
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _move_all(source: Path, target: Path) -> None:
    """Moves all that a folder holds to another, which holds nothing of these names."""
    names = sorted(os.listdir(source))
    if any(os.path.lexists(target / name) for name in names):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    for name in names:
        (source / name).rename(target / name)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder for this process alone, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="gpt1_jax-") as folder:
        yield Path(folder)


def is_stream(path: epath.PathLike) -> bool:
    """Whether a path is a device or a pipe; /dev/stdout is, even if it is a file."""
    if is_device(os.path.abspath(path)):
        return True
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


class CannotWrite(OSError):
    """A file cannot be written: says which, and the way out; with the same `errno`."""


@contextlib.contextmanager
def explained_writing(path: epath.PathLike, otherwise: str = "") -> Iterator[None]:
    """Names the file, and a way out, if the block cannot write it.

    Args:
      path: the file or folder.
      otherwise: another way out, a sentence.

    Raises:
      CannotWrite: in place of the system's error.
    """
    try:
        yield
    except CannotWrite as error:
        error.args = (f"{error} {otherwise}".rstrip(),)
        raise
    except OSError as error:
        way_out = {**FULL, **DENIED, **USED_UP}.get(error.errno or 0)
        if way_out is None:
            raise
        if error.errno in DENIED and not _is_for(error.filename, path):
            raise  # about a file that is only read
        message = (
            f"{whole_path(path)} cannot be written ({os.strerror(error.errno or 0)}). "
            f"What was saved before is intact; {way_out}, and run the same command "
            f"again. {otherwise}"
        )
        problem = CannotWrite(message.rstrip())
        problem.errno = error.errno
        raise problem from error


def _is_for(name: object, path: epath.PathLike) -> bool:
    """Whether the file or folder that an error names is made to write to a path."""
    if not isinstance(name, str):
        return False
    return name != whole_path(name) or Path(path).is_relative_to(name)


def is_unfinished(name: str) -> bool:
    """Whether a file of this name is one that a killed process may have left."""
    return name.startswith(".") and name.endswith(_PARTIAL)


def whole_path(path: epath.PathLike) -> str:
    """The path of a file once the folders around it are whole, for messages."""
    parts = os.fspath(path).split("/")
    return "/".join(part for part in parts if not is_unfinished(part))


def remove_partial(
    folder: epath.PathLike, name: str = "*", older_than: float = _DAY
) -> None:
    """Removes unfinished files and folders that killed processes left in a folder.

    Args:
      folder: the folder; a remote one is left alone.
      name: the name that they would have taken; by default any name, at any depth.
      older_than: their age in seconds; 0 for a process that holds the folder's lock.
    """
    if is_remote(folder):
        return
    names = f"**/.*{_PARTIAL}" if name == "*" else f".{glob.escape(name)}.*{_PARTIAL}"
    for path in Path(folder).glob(names):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            changed = max(os.lstat(x).st_mtime for x in (path, *files_below(path)))
            if time.time() - changed < older_than:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def find_files(folder: epath.PathLike, pattern: str) -> list[epath.Path]:
    """The files below a folder that match a glob such as "*.txt", sorted.

    epath's own `glob`, and `glob.glob` of a whole path, take brackets and stars in the
    folder's name for a pattern too.
    """
    folder = epath.Path(folder)
    if is_remote(folder):  # objects have no folder that could be listed by itself
        return sorted(folder.glob(pattern))
    return sorted(folder / name for name in glob.glob(pattern, root_dir=folder))


def files_below(folder: epath.PathLike) -> Iterator[epath.Path]:
    """All files in a folder and the folders below it, hidden ones included."""
    scheme, mark, _ = os.fspath(folder).partition("://")
    for parent, _, names in epath.Path(folder).walk():
        if mark and not is_remote(parent):  # epath leaves the scheme out
            parent = epath.Path(f"{scheme}://{parent}")
        yield from (parent / name for name in names)


def file_stamp(path: epath.Path) -> str:
    """Size and modification time, in nanoseconds for a local file, else in seconds."""
    stat = path.stat()
    exact = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    return f"{stat.length}-{exact or stat.mtime}"


def sha256(path: epath.PathLike, start: int = 0, size: float = math.inf) -> str:
    """The SHA-256 of a file's bytes, or of `size` of them, in hexadecimal."""
    digest = hashlib.sha256()
    with epath.Path(path).open("rb") as file:
        file.seek(start)
        while data := file.read(int(min(size, 1 << 22))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()


def json_digest(record: Any) -> str:
    """The SHA-256 of a JSON value, in hexadecimal."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
