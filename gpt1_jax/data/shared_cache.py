"""A cache in a bucket: one host prepares a corpus, and the others fetch it.

Each folder of the cache, a tokenizer or a corpus, is made on the disk of one host and
then copied to the bucket, where `shared.json` is written last: without it, nobody takes
what is there for whole. The others fetch the files to their own disks and compare them
with the checksums in `shared.json`.

The host at work holds a lease: `lease.json`, in which a counter rises. Another takes
over once that has stood still for a minute. If two should be at work all the same, one
of them works in vain: each copies to a folder of its own, and the first `shared.json`
counts.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data.files import (
    NOTE_FILE,
    append_to,
    files_below,
    heartbeat,
    is_ours,
    make_folder,
    name_owner,
    read_record,
    this_process,
    whole_folder,
    write_json,
)
from gpt1_jax.data.progress import Bar
from gpt1_jax.errors import UserError

RECORD_FILE, LEASE_FILE = "shared.json", "lease.json"
BEAT_SECONDS = 20.0  # between increments of a lease's counter
PATIENCE_SECONDS = 60.0  # how long another's counter may stand still
SETTLE_SECONDS = 1.0  # until no other host, which saw no lease either, writes one
_POLL_SECONDS = 2.0
_REMIND_SECONDS = 60.0
_COPIES = 8  # at the same time
_CHUNK = 1 << 22  # bytes
Say = Callable[[str], None]


def open_shared(
    place: epath.Path, say: Say, progress: bool
) -> tuple[Path, Callable[[Path], contextlib.AbstractContextManager[None]]]:
    """This host's cache folder, and what shares its folders through a bucket.

    Args:
      place: the cache folder in the bucket.
      say: shows a line to the user.
      progress: whether to show bars.

    Returns:
      The cache folder on this host's disk, and a function of a folder in it. That gives
      the context in which to make the folder if it does not exist. On entry, the folder
      is fetched if the bucket has it; otherwise this host waits for the one at work on
      it, or becomes that one and copies the folder to the bucket at the end.
    """
    own = Path(default_cache_dir())
    return own, functools.partial(_shared, place, own, say, progress)


@contextlib.contextmanager
def _shared(
    place: epath.Path, own: Path, say: Say, progress: bool, folder: Path
) -> Iterator[None]:
    remote = place / folder.relative_to(own).as_posix()
    with contextlib.ExitStack() as stack:
        lease = remote / LEASE_FILE
        find_record = functools.partial(read_record, remote / RECORD_FILE)
        while record := _wait_for_lease(lease, own, say, stack, find_record):
            if folder.exists():
                break
            try:
                _fetch(remote, record, folder, progress)
                break
            except _Damaged as error:
                say(f"{error}; making {remote} again.")
                (remote / RECORD_FILE).unlink(missing_ok=True)
        yield
        if not record:
            _publish(folder, remote, progress)


class _Damaged(Exception):
    """What the bucket holds is not what was copied there."""


# --- the lease ----------------------------------------------------------------


@contextlib.contextmanager
def hold_lease(folder: Path, say: Say) -> Iterator[None]:
    """Keeps other processes out of a folder on a disk without locks.

    Args:
      folder: the folder; each process that is to be kept out holds its lease, too.
      say: shows a line to the waiting user.
    """
    with contextlib.ExitStack() as stack:
        _wait_for_lease(epath.Path(folder) / LEASE_FILE, folder, say, stack, dict)
        yield


def _wait_for_lease(
    lease: epath.Path,
    own: Path,
    say: Say,
    stack: contextlib.ExitStack,
    find_record: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """What others have made; empty once this host is to make it, and has the lease.

    Args:
      lease: the lease.
      own: the folder of the note that says what this host is doing.
      say: shows a line to the waiting user.
      stack: gets the lease.
      find_record: the record of what others have made; empty if there is none.
    """
    seen: dict[str, Any] = {}
    began = time.monotonic()
    changed, said = began, -_REMIND_SECONDS
    while True:
        if record := find_record():
            return record
        if _take(lease, own):
            record_of = functools.partial(_record, own)
            stack.enter_context(heartbeat(lease, record_of, BEAT_SECONDS))
            return find_record()  # perhaps written meanwhile
        held, now = read_record(lease), time.monotonic()
        if held != seen:
            seen, changed = held, now
        if now - said >= _REMIND_SECONDS:
            said = now
            say(
                f"{lease.parent} is in use by {name_owner(held)}; waiting "
                f"({now - began:.0f} s)."
            )
        if now - changed > PATIENCE_SECONDS and read_record(lease) == seen:
            say(f"{lease} stands still; taking over from {name_owner(held)}.")
            lease.unlink(missing_ok=True)
        else:
            time.sleep(_POLL_SECONDS)


def _take(lease: epath.Path, own: Path) -> bool:
    """Makes the lease, if there is none; of several hosts, the last to write has it.

    Raises:
      PermissionError: if nothing can be written there.
    """
    if read_record(lease):
        return False
    try:
        write_json(lease, _record(own, 0))
    except OSError as error:
        raise PermissionError(
            f"{lease} cannot be written ({error.strerror or error}); name another "
            "cache folder with --config.data.cache_dir=DIR."
        ) from error
    time.sleep(SETTLE_SECONDS)
    return is_ours(read_record(lease))


def _record(own: Path, count: int) -> dict[str, Any]:
    """Who holds a lease, and what it says that it is doing."""
    doing = read_record(own / NOTE_FILE).get("doing", "")
    return this_process(doing=doing, count=count)


# --- copies -------------------------------------------------------------------


def _publish(folder: Path, remote: epath.Path, progress: bool) -> None:
    """Copies a folder to the bucket, and writes its record last."""
    target = remote / secrets.token_hex(8)
    make_folder(target)
    names = sorted(Path(path).name for path in files_below(folder))
    sizes = {name: (folder / name).stat().st_size for name in names}

    def send(name: str) -> str:
        with (folder / name).open("rb") as file, (target / name).open("wb") as sent:
            return _copy(file, sent.write)

    checksums = _copy_all("upload", sizes, send, progress)
    if not read_record(remote / RECORD_FILE):
        record = {"folder": target.name, "sizes": sizes, "checksums": checksums}
        write_json(remote / RECORD_FILE, record)
    kept = read_record(remote / RECORD_FILE).get("folder")
    for each in remote.iterdir():  # those of hosts that were killed
        if each.name not in (kept, RECORD_FILE, LEASE_FILE):
            with contextlib.suppress(OSError):
                each.rmtree()


def _fetch(
    remote: epath.Path, record: Mapping[str, Any], folder: Path, progress: bool
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

        def receive(name: str) -> str:
            to = Path(partial / name)
            with (source / name).open("rb") as file, append_to(to) as received:
                found = _copy(file, received.write)
            if found != checksums.get(name):
                raise _Damaged(f"{source / name} differs from its checksum")
            return found

        try:
            _copy_all("download", sizes, receive, progress)
        except FileNotFoundError as error:
            raise _Damaged(f"{source} lacks a file ({error})") from error


def _copy_all(
    what: str, sizes: Mapping[str, int], copy: Callable[[str], str], progress: bool
) -> dict[str, str]:
    """Copies files several at a time; returns the SHA-256 of each by name."""
    total = sum(sizes.values())
    with (
        Bar(what, total, "B", active=progress, unit_scale=True) as bar,
        concurrent.futures.ThreadPoolExecutor(_COPIES) as pool,
    ):
        found: dict[str, str] = {}
        for name, found[name] in zip(sizes, pool.map(copy, sizes), strict=True):
            bar.update(sizes[name])
        return found


def _copy(file: Any, write: Callable[[bytes], Any]) -> str:
    """Copies a file block by block; returns the SHA-256 of its bytes."""
    digest = hashlib.sha256()
    while data := file.read(_CHUNK):
        digest.update(data)
        write(data)
    return digest.hexdigest()
