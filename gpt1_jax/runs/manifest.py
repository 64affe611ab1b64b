"""The manifest of a checkpoint: the SHA-256 of every file, to notice damage."""

import json
from collections.abc import Collection

from etils import epath

from gpt1_jax.data.files import sha256

MANIFEST_FILE = "manifest.json"


def write_manifest(folder: epath.Path, leave_out: Collection[str]) -> None:
    """Writes the checksums of all files below a folder.

    Args:
      folder: the folder of a complete checkpoint.
      leave_out: names of files that may still change.
    """
    manifest = {
        str(file.relative_to(folder)): sha256(file)
        for file in _files(folder)
        if file.name not in {MANIFEST_FILE, *leave_out}
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1))


def find_damage(folder: epath.Path) -> str:
    """What is wrong with the files of a checkpoint; empty if nothing is."""
    path = folder / MANIFEST_FILE
    if not path.exists():
        return f"{MANIFEST_FILE} is missing"
    try:
        manifest = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return f"{MANIFEST_FILE} cannot be read"
    if not manifest:
        return f"{MANIFEST_FILE} lists no files"
    for name, digest in manifest.items():
        if not (folder / str(name)).exists():
            return f"{name} is missing"
        if sha256(folder / str(name)) != digest:
            return f"{name} differs from what was saved"
    return ""


def fingerprint(folder: epath.Path) -> str:
    """Tells a checkpoint from any other; empty if it has no manifest."""
    path = folder / MANIFEST_FILE
    return sha256(path) if path.exists() else ""


def _files(folder: epath.Path) -> list[epath.Path]:
    return sorted(parent / name for parent, _, names in folder.walk() for name in names)
