"""Writes files and folders, whole or not at all, and locks folders.

Everything the package writes to disk is written here. A link in a folder could redirect
what is written, to wherever the folder's maker chose. So a file appears under a new
and unpredictable name, which no link can have, and is then renamed; and a folder is
searched for links before a run writes to it or hands it to a library (`refuse_links`).
The path to a folder may hold links, and an output that the user names may be a device
or a pipe, such as /dev/stdout.
"""

import contextlib
import errno
import glob
import hashlib
import importlib.util
import itertools
import json
import math
import os
import pickle
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Generic, TypeVar, cast

from etils import epath

from gpt1_jax.config.checks import is_device
from gpt1_jax.config.saved import NOT_FINITE
from gpt1_jax.errors import MissingPackage, UserError

_HELD_BYTES, _HELD_ITEMS = 1 << 26, 1000  # of `MadeOnce`: in memory; in one write
Item = TypeVar("Item")

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
    named = f"{key}={path!r}" if key else repr(path)
    if is_address and local:
        raise UserError(
            f"{named} must be a local path; an address such as {scheme}:// does not "
            "work here."
        )
    if is_address and scheme not in _LIBRARIES:
        raise UserError(
            f"{named} cannot be opened: use a local path or gs://BUCKET/PATH (s3:// "
            "and az:// are untested). Download what is elsewhere first."
        )
    if is_address and not _is_installed(_LIBRARIES[scheme], "tensorflow"):
        package = "'gpt1_jax[gcp]'" if scheme == "gs" else _LIBRARIES[scheme]
        raise MissingPackage(
            f"{named} needs {_LIBRARIES[scheme]}, which is not installed: pip install "
            f"{package}, or use a local path."
        )
    return epath.Path(path).expanduser()


def _is_installed(*names: str) -> bool:
    return any(importlib.util.find_spec(name) for name in names)


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is an address such as gs://, where nothing can be renamed."""
    return "://" in os.fspath(path)


def refuse_links(folder: epath.PathLike) -> None:
    """Refuses to write to a folder that holds a link, however deep.

    Raises:
      UserError: naming the link.
    """
    if is_remote(folder):
        return
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            _refuse_link(os.path.join(parent, name))


def _refuse_link(path: epath.PathLike) -> None:
    if os.path.islink(path):
        raise UserError(
            f"{path} is a link to {os.readlink(path)}, and nothing is written "
            "through links inside a run folder; remove it, or put what it "
            "leads to in its place."
        )


def make_folder(path: epath.PathLike) -> None:
    """Makes a folder and its parents where they are missing."""
    epath.Path(path).mkdir(parents=True, exist_ok=True)


def check_writable(folder: epath.PathLike) -> None:
    """Makes a folder if it is missing, and tries to write a file in it.

    Raises:
      OSError: if either fails.
    """
    make_folder(folder)
    _probe(folder)


def check_output(path: epath.PathLike, option: str) -> None:
    """Refuses an output that cannot be written, before any work.

    Args:
      path: the file, as `locate` returns it. Its folder may be missing and is not made.
      option: the option that names another file, for the message.

    Raises:
      OSError: naming the path.
    """
    path = epath.Path(path)
    try:
        if is_remote(path):
            check_writable(path.parent)
        elif path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not is_stream(path):
            _probe(
                next(folder for folder in path.absolute().parents if folder.exists())
            )
        elif path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror}); name another with {option}."
        ) from error


def _probe(folder: epath.PathLike) -> None:
    """Writes a file in a folder and removes it."""
    probe = epath.Path(folder) / f".writable-{secrets.token_hex(8)}"
    create(probe, "")
    probe.unlink()


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

    Raises:
      UserError: if it is a link.
    """
    _refuse_link(path)
    return open(path, "ab", buffering=buffering)


def write_whole(path: epath.PathLike, content: str | bytes) -> None:
    """Writes a file, or replaces the one there, and its parents; text is UTF-8."""
    path = epath.Path(path)
    make_folder(path.parent)
    if is_remote(path):
        create(path, content)
    elif is_stream(path):
        with whole_file(Path(path)) as partial:
            create(partial, content)
    else:
        partial = _partial(Path(path))
        try:
            create(partial, content)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def write_json(path: epath.PathLike, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_whole(path, format_json(value, indent=2) + "\n")


def format_json(value: Any, **layout: Any) -> str:
    """JSON with null in place of NaN and infinities, which JSON does not have.

    An object says beside, under `NOT_FINITE`, which of its numbers these are, by keys
    and by positions in lists. `gpt1_jax.config.saved.parse_json` reads them back.

    Args:
      value: what `json.dumps` takes.
      layout: its keywords, such as `indent`.
    """
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:
        value, marks = _finite(value)
        if isinstance(value, dict):
            value[NOT_FINITE] = marks
        return json.dumps(value, allow_nan=False, **layout)


def _finite(value: Any) -> tuple[Any, Any]:
    """A value with null for what is not finite, and the marks of what that is."""
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
def whole_folder(folder: epath.PathLike) -> Iterator[epath.Path]:
    """A folder that takes its name once it is whole, or vanishes.

    A remote one, which cannot be renamed, has its name from the beginning.
    """
    if is_remote(folder):
        make_folder(folder)
        yield epath.Path(folder)
        return
    with _scratch(Path(folder)) as partial:
        yield epath.Path(partial)
        partial.rename(folder)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write a file to, which becomes `path` once it is whole, or vanishes.

    Other files written beside it vanish too. A device or a pipe gets the whole file at
    the end.
    """
    if is_stream(path):
        with temporary_folder() as folder:
            partial = folder / path.name
            yield partial
            with partial.open("rb") as file, open(path, "ab", buffering=0) as stream:
                shutil.copyfileobj(file, stream)
        return
    with _scratch(path) as folder:
        yield folder / path.name
        (folder / path.name).replace(path)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder for this process alone, removed in the end."""
    with tempfile.TemporaryDirectory(prefix="gpt1_jax-") as folder:
        yield Path(folder)


class MadeOnce(Generic[Item]):
    """Items that are made once, by the first pass over them, and then read again.

    They may be many: memory holds them up to a size, and beyond it a temporary file. A
    pass that was not finished counts for nothing.

    Args:
      make: makes the items, which `pickle` takes.

    Raises:
      OSError: in the first pass, if the temporary folder is full.
    """

    def __init__(self, make: Callable[[], Iterable[Item]]):
        self._make = make
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "MadeOnce[Item]":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def __iter__(self) -> Iterator[Item]:
        return self._first_pass() if self._file is None else self._read(self._file)

    def _first_pass(self) -> Iterator[Item]:
        items = iter(self._make())
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.SpooledTemporaryFile(_HELD_BYTES))
            while part := list(itertools.islice(items, _HELD_ITEMS)):
                try:
                    pickle.dump(part, file)
                except OSError as error:
                    raise OSError(
                        error.errno,
                        f"{error.strerror}: the encoded text does not fit into the "
                        "temporary folder; name a larger one with TMPDIR=DIR",
                        tempfile.gettempdir(),
                    ) from error
                yield from part
            stack.pop_all()
            self._file = cast(IO[bytes], file)

    def _read(self, file: IO[bytes]) -> Iterator[Item]:
        place = 0
        while True:
            file.seek(place)
            try:
                part = pickle.load(file)
            except EOFError:
                return
            place = file.tell()
            yield from part


def is_stream(path: epath.PathLike) -> bool:
    """Whether a path is a device or a pipe; /dev/stdout is, even if it is a file."""
    if is_device(os.path.abspath(path)):
        return True
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, removed in the end if it is still there."""
    make_folder(path.parent)
    remove_partial(path.parent, path.name)  # left by a process that was killed
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _partial(path: Path) -> Path:
    """A name beside `path` that nobody can foresee."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{16}\.partial")


def whole_name(name: str) -> str:
    """The name that a file takes once it is whole."""
    found = _PARTIAL.fullmatch(name)
    return found[1] if found else name


def remove_partial(folder: epath.PathLike, name: str | None = None) -> None:
    """Removes what killed processes left unfinished in a folder.

    Args:
      folder: a folder that no other process is writing to.
      name: removes only what was to become this file or folder, directly in `folder`.
        By default everything unfinished is removed, however deep.
    """
    if is_remote(folder):
        return
    for parent, folders, files in os.walk(folder):
        for each in (*folders, *files):
            whole = whole_name(each)
            if whole != each and name in (None, whole):
                _remove(Path(parent, each))
        if name is not None:
            return


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def find_files(folder: epath.PathLike, pattern: str) -> list[epath.Path]:
    """What a pattern finds below a folder, sorted.

    epath's own `glob`, and `glob.glob` of a whole path, take brackets and stars in the
    folder's name for a pattern too.

    Args:
      folder: the folder; its name is no pattern.
      pattern: a glob such as "*.txt", relative to the folder.
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


# --- locks: one process at a time in a folder ---------------------------------

LOCK_FILE = ".lock"
NOTE_FILE = ".lock.json"  # who holds the lock and what for
_POLL_SECONDS = 0.2
_REMIND_SECONDS = 60.0
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)


class Held(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def system_lock(path: Path, seconds: float = 0.0) -> Iterator[bool]:
    """Holds the system's lock on a file while the block runs.

    The system frees it when this process ends, however that happens.

    Args:
      path: the file, made if missing, in a folder that exists.
      seconds: how long to wait for another process.

    Yields:
      Whether the file system has locks; without them, nobody is kept out.

    Raises:
      Held: if another process still holds it.
    """
    import filelock  # where it is needed: --help starts without asyncio

    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=seconds, poll_interval=_POLL_SECONDS)
    except filelock.Timeout as error:
        raise Held(str(path)) from error
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _UNSUPPORTED:
            raise
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive(
    folder: Path, say: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Keeps other processes out of a folder while the block runs.

    Args:
      folder: the folder to write to; it exists.
      say: shows a line to the waiting user.

    Yields:
      A function that notes what this process is doing, for those who wait.
    """
    with contextlib.ExitStack() as stack:
        began, patience = time.monotonic(), _POLL_SECONDS
        while True:
            try:
                stack.enter_context(system_lock(folder / LOCK_FILE, patience))
                break
            except Held:
                waited = time.monotonic() - began
                holder = _holder(folder)
                say(f"{folder} is in use by {holder}; waiting ({waited:.0f} s).")
                patience = _REMIND_SECONDS
        try:
            yield lambda doing: _note(folder, doing)
        finally:
            (folder / NOTE_FILE).unlink(missing_ok=True)


def _holder(folder: Path) -> str:
    """Who holds the lock and why, if the note can be read."""
    try:
        note = json.loads((folder / NOTE_FILE).read_text(encoding="utf-8"))
        return f"process {note['pid']} on {note['host']}, {note['doing']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"


def _note(folder: Path, doing: str) -> None:
    note = {"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}
    with contextlib.suppress(OSError):  # a full disk must not stop the run here
        write_json(folder / NOTE_FILE, note)
