"""A cache in a bucket: one host prepares a corpus, and the others fetch it.

The main process of a run makes each folder of the cache, a tokenizer or a corpus, on
its own disk and copies it to the bucket, where `shared.json` is written last: without
it, nobody takes the folder to be complete. The other processes wait for that, fetch the
files to their own disks and compare them with the checksums in `shared.json`. If
several runs need a folder, one of them makes it while the others wait: see
`gpt1_jax.data.owner`.
"""

import concurrent.futures
import contextlib
import functools
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from gpt1_jax.data.files import (
    append_to,
    check_writable,
    files_below,
    make_folder,
    read_record,
    sha256,
    whole_folder,
    write_json,
)
from gpt1_jax.data.owner import exclusive
from gpt1_jax.data.progress import Bar, show_line
from gpt1_jax.errors import UserError

RECORD_FILE = "shared.json"
_POLL_SECONDS = 2.0
_COPIES = 8  # at the same time
_CHUNK = 1 << 22  # bytes
T = TypeVar("T")
Say = Callable[[str], None]


class _Damaged(Exception):
    """The bucket does not hold what was copied there."""


def cached(
    local: Callable[..., T],
    place: epath.Path,
    own: Path,
    is_main: bool,
    say: Say,
    progress: bool,
    folder: Path,
    read: Callable[[Path], T],
    make: Callable[[Path], None],
) -> T:
    """The contents of a folder of the cache, made or fetched first if it is missing.

    Args:
      local: the same for a cache on this host's disk: takes the last three arguments.
      place: the cache in the bucket.
      own: the cache on this host's disk.
      is_main: whether this process makes what is missing; the others wait.
      say: shows a line to the waiting user.
      progress: whether to show bars.
      folder: the folder, on this host's disk.
      read: opens it.
      make: makes it.

    Raises:
      UserError: if the bucket's copy is damaged, and the main process has not noticed
        because it has one of its own; or if this host's disk lacks room.
      PermissionError: if nothing can be written to the bucket.
    """
    remote = place / folder.relative_to(own).as_posix()
    while True:
        if record := read_record(remote / RECORD_FILE):
            fetch = functools.partial(_fetch, remote, record, progress)
            try:
                return local(folder, read, fetch)
            except _Damaged as error:
                if not is_main:
                    raise UserError(f"{error}. Remove {remote}.") from error
                show_line(f"{error}; making {remote} again.")
                (remote / RECORD_FILE).unlink(missing_ok=True)
        elif is_main:
            _check_writable(remote)
            with exclusive(remote, say):
                if read_record(remote / RECORD_FILE):  # of another run
                    continue
                found = local(folder, read, make)
                _publish(folder, remote, progress)
                return found
        else:
            time.sleep(_POLL_SECONDS)


def _check_writable(remote: epath.Path) -> None:
    try:
        check_writable(remote)
    except OSError as error:
        raise PermissionError(
            f"{remote} cannot be written ({error.strerror or error}); name another "
            "cache folder with --config.data.cache_dir=DIR."
        ) from error


def _publish(folder: Path, remote: epath.Path, progress: bool) -> None:
    """Copies a folder to the bucket, and writes its record last."""
    target = remote / secrets.token_hex(8)
    make_folder(target)
    names = sorted(Path(path).name for path in files_below(folder))
    sizes = {name: (folder / name).stat().st_size for name in names}

    def send(name: str) -> None:
        with (folder / name).open("rb") as file, (target / name).open("wb") as sent:
            shutil.copyfileobj(file, sent, _CHUNK)

    _copy_all("upload", sizes, send, progress)
    checksums = {name: sha256(folder / name) for name in names}
    record = {"folder": target.name, "sizes": sizes, "checksums": checksums}
    write_json(remote / RECORD_FILE, record)
    for each in remote.iterdir():  # those of hosts that were killed
        if each.is_dir() and each.name != target.name:
            with contextlib.suppress(OSError):
                each.rmtree()


def _fetch(
    remote: epath.Path, record: Mapping[str, Any], progress: bool, folder: Path
) -> None:
    """Copies a folder from the bucket to this host's disk, whole or not at all.

    Raises:
      _Damaged: if it is not what the record says.
      UserError: if the disk lacks room.
    """
    try:
        source, sizes = remote / record["folder"], dict(record["sizes"])
        checksums, total = dict(record["checksums"]), sum(sizes.values())
        if any(
            name in ("", ".", "..") or "/" in name for name in (*sizes, source.name)
        ):
            raise ValueError("a name with folders")
    except (KeyError, TypeError, ValueError) as error:
        raise _Damaged(f"{remote / RECORD_FILE} is damaged ({error})") from error
    make_folder(folder.parent)
    free = shutil.disk_usage(folder.parent).free
    if total > free:
        raise UserError(
            f"{remote} holds {total / 1e9:.1f} GB, but the disk of {folder.parent} has "
            f"{free / 1e9:.1f} GB left. Make room, or set XDG_CACHE_HOME to a folder "
            "on another disk."
        )
    with whole_folder(folder) as partial:

        def receive(name: str) -> None:
            to = Path(partial / name)
            with (source / name).open("rb") as file, append_to(to) as received:
                shutil.copyfileobj(file, received, _CHUNK)
            if sha256(to) != checksums.get(name):
                raise _Damaged(f"{source / name} differs from its checksum")

        try:
            _copy_all("download", sizes, receive, progress)
        except FileNotFoundError as error:
            raise _Damaged(f"{source} lacks a file ({error})") from error


def _copy_all(
    what: str, sizes: Mapping[str, int], copy: Callable[[str], None], progress: bool
) -> None:
    """Copies files several at a time."""
    with (
        Bar(what, sum(sizes.values()), "B", active=progress, unit_scale=True) as bar,
        concurrent.futures.ThreadPoolExecutor(_COPIES) as pool,
    ):
        for name, _ in zip(sizes, pool.map(copy, sizes), strict=True):
            bar.update(sizes[name])
