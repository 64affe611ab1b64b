"""Looking for runs in a folder and everything below it."""

import os
from collections.abc import Iterator

from etils import epath

from gpt1_jax.data.files import is_remote

# Inside a run, where there are many files and no run.
_PARTS_OF_A_RUN = {
    "checkpoints",
    "damaged_checkpoints",
    "glue",
    "plots",
    "predictions",
    "profile",
    "tensorboard",
    "tokenizer",
}


def folders(folder: epath.Path) -> Iterator[epath.Path]:
    """A folder and all below it, in order, without the parts that a run consists of.

    Hidden folders are left out, and so is the target of a link that was seen already.
    """
    yield from _walk(folder, set())


def _walk(folder: epath.Path, seen: set[str]) -> Iterator[epath.Path]:
    path = os.fspath(folder)
    place = path if is_remote(path) else os.path.realpath(path)
    if place in seen:
        return
    seen.add(place)
    yield folder
    for below in sorted(folder.iterdir()):
        hidden = below.name.startswith(".")
        if not hidden and below.name not in _PARTS_OF_A_RUN and below.is_dir():
            yield from _walk(below, seen)
