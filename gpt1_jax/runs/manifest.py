"""The manifest of a checkpoint: the SHA-256 of every file, to notice damage."""

import json
import os
from collections.abc import Callable, Collection, Sequence

from etils import epath

from gpt1_jax.data.files import files_below, sha256, write_whole

MANIFEST_FILE = "manifest.json"


def write_manifest(folder: epath.Path, leave_out: Collection[str]) -> None:
    """Writes the checksums of all files below a folder.

    Args:
      folder: the folder of a complete checkpoint.
      leave_out: names of files that may still change.
    """
    manifest = {
        name: sha256(folder / name)
        for name in _files(folder)
        if name.rpartition("/")[2] not in {MANIFEST_FILE, *leave_out}
    }
    write_whole(folder / MANIFEST_FILE, json.dumps(manifest, indent=1))


def find_damage(
    folder: epath.Path,
    chosen: Callable[[Sequence[str]], Collection[str]] = lambda names: names,
) -> str:
    """What is wrong with the files of a checkpoint; empty if nothing is.

    Args:
      folder: the folder of the checkpoint.
      chosen: picks the files to compare with their checksums from the sorted names of
        all that are listed; all must be there in any case.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return f"{MANIFEST_FILE} is missing"
    try:
        manifest = {str(n): d for n, d in dict(json.loads(path.read_text())).items()}
    except (OSError, ValueError, TypeError, RecursionError):
        return f"{MANIFEST_FILE} cannot be read"
    if not manifest:
        return f"{MANIFEST_FILE} lists no files"
    found = set(_files(folder))
    names = sorted(manifest)
    for name in names:
        if name not in found:
            return f"{name} is missing"
        if os.path.islink(folder / name):
            return f"{name} is a link"
    for name in chosen(names):
        if name not in manifest:
            return f"{MANIFEST_FILE} does not list {name}"
        try:
            digest = sha256(folder / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if digest != manifest[name]:
            return f"{name} differs from what was saved"
    return ""


def fingerprint(folder: epath.Path) -> str:
    """Tells a checkpoint from any other; empty if it has no manifest."""
    path = folder / MANIFEST_FILE
    return sha256(path) if path.exists() else ""


def num_bytes(folder: epath.Path) -> int:
    """The size of all files below a folder, or of the file itself."""
    if not folder.is_dir():
        return folder.stat().length
    return sum((folder / name).stat().length for name in _files(folder))


def _files(folder: epath.Path) -> list[str]:
    """All files below a folder, by their names relative to it, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in files_below(folder))
