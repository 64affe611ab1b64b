"""A cache in a bucket: one host prepares a corpus, and the others fetch it.

The main process of a run makes each folder of the cache, a tokenizer or a corpus, on
its own disk and copies it to the bucket, where `shared.json` is written last: without
it, nobody takes what is there for whole. The other processes wait for that, fetch the
files to their own disks and compare them with the checksums in `shared.json`. Two runs
may make the same folder; each copies to a place of its own, and the last record counts.
"""

import concurrent.futures
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from gpt1_jax.data.files import (
    files_below,
    make_folder,
    read_record,
    sha256,
    whole_folder,
    write_json,
)
from gpt1_jax.data.progress import Bar, show_line
from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import is_main_process

RECORD_FILE = "shared.json"
_POLL_SECONDS = 2.0
_COPIES = 8  # at the same time
_CHUNK = 1 << 22  # bytes
T = TypeVar("T")


def cached(
    local: Callable[..., T],
    place: epath.Path,
    own: Path,
    progress: bool,
    folder: Path,
    read: Callable[[Path], T],
    make: Callable[[Path], None],
) -> T:
    """What is in a folder of the cache, made or fetched first if it is missing.

    Args:
      local: the same for a cache on this host's disk: takes the last three arguments.
      place: the cache in the bucket.
      own: the cache on this host's disk.
      progress: whether to show bars.
      folder: the folder, on this host's disk.
      read: opens it.
      make: makes it.
    """
    remote = place / folder.relative_to(own).as_posix()
    record = read_record(remote / RECORD_FILE)
    while not (record or is_main_process()):
        time.sleep(_POLL_SECONDS)
        record = read_record(remote / RECORD_FILE)
    if record and not folder.exists():
        try:
            _fetch(remote / str(record.get("folder")), record, folder, progress)
        except (OSError, KeyError, TypeError, ValueError) as error:
            if not is_main_process():
                raise UserError(f"{remote} is damaged ({error}); remove it.") from error
            show_line(f"{remote} is damaged ({error}); making it again.")
            record = {}
    found = local(folder, read, make)
    if not record:
        _publish(folder, remote, progress)
    return found


def _publish(folder: Path, remote: epath.Path, progress: bool) -> None:
    """Copies a folder to the bucket, and writes its record last."""
    target = remote / secrets.token_hex(8)
    make_folder(target)
    names = sorted(Path(path).name for path in files_below(folder))
    _copy_all("upload", epath.Path(folder), target, names, progress)
    checksums = {name: sha256(folder / name) for name in names}
    record = {"folder": target.name, "checksums": checksums}
    write_json(remote / RECORD_FILE, record)


def _fetch(source: epath.Path, record: Any, folder: Path, progress: bool) -> None:
    """Copies a folder from the bucket to this host's disk, whole or not at all.

    Raises:
      ValueError: if it is not what the record says.
    """
    checksums = dict(record["checksums"])
    if any(Path(name).name != name for name in (*checksums, source.name)):
        raise ValueError("a name with folders")
    with whole_folder(folder) as partial:
        _copy_all("download", source, partial, list(checksums), progress)
        for name, checksum in checksums.items():
            if sha256(partial / name) != checksum:
                raise ValueError(f"{name} differs from its checksum")


def _copy_all(
    what: str, source: epath.Path, target: epath.Path, names: list[str], progress: bool
) -> None:
    """Copies files several at a time."""

    def copy(name: str) -> None:
        with (source / name).open("rb") as file, (target / name).open("wb") as made:
            shutil.copyfileobj(file, made, _CHUNK)

    with (
        Bar(what, len(names), "file", active=progress) as bar,
        concurrent.futures.ThreadPoolExecutor(_COPIES) as pool,
    ):
        for _ in pool.map(copy, names):
            bar.update()
