"""Run folders: finds them, and reads back all but parameters, which `open_run` does."""

import contextlib
import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.saved import load_saved, read_json
from gpt1_jax.data.files import is_remote
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS, Tokenizer, load_tokenizer
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    TRACKERS,
    read_metrics,
    read_sessions,
)


class RunFolder:
    """A run, finished or not, as its folder describes it.

    Each file is read when it is first asked for, and then kept. A file that cannot be
    read raises a ValueError that names it.

    Attributes:
      folder: its path.
    """

    def __init__(self, folder: epath.Path):
        self.folder = folder

    @functools.cached_property
    def job(self) -> str:
        """The job that made it; "" if it holds no run of this program."""
        file = self.folder / CONFIG_FILE
        return str(read_json(file).get("job", "")) if file.exists() else ""

    @functools.cached_property
    def config(self) -> Any:
        """The frozen configuration of its job."""
        return load_saved(self.folder / CONFIG_FILE)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return load_tokenizer(self.folder / "tokenizer")

    @functools.cached_property
    def about_tokenizer(self) -> Mapping[str, Any]:
        """The record of its tokenizer, which need not be loaded; empty if none."""
        file = self.folder / "tokenizer" / "tokenizer.json"
        return read_json(file) if file.exists() else {}

    @functools.cached_property
    def model(self) -> ModelConfig:
        """Its model; the vocabulary may be smaller than the configured one."""
        size = self.about_tokenizer.get("vocab_size")
        if not isinstance(size, int):
            size = self.config.tokenizer.vocab_size
        return self.model_with(size)

    def model_with(self, vocab_size: int) -> ModelConfig:
        """Its model with a vocabulary; a fine-tuned one also has the special tokens."""
        if self.config.adds_head:
            vocab_size += NUM_SPECIAL_TOKENS
        return self.config.model.with_vocab_size(vocab_size)

    @functools.cached_property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """Its metrics, a record for each step that has some."""
        return read_metrics(self.folder / METRICS_FILE)

    @functools.cached_property
    def sessions(self) -> Sequence[Mapping[str, Any]]:
        """The sessions in which it was trained."""
        return read_sessions(self.folder / SESSIONS_FILE)

    @functools.cached_property
    def results(self) -> Mapping[str, Any] | None:
        """Its results; None until it has finished."""
        file = self.folder / RESULTS_FILE
        return read_json(file) if file.exists() else None

    @functools.cached_property
    def saved(self) -> Sequence[int]:
        """Its saved steps, in order."""
        return saved_steps(self.folder)


# Folders inside a run folder; they hold many files and no other run.
_PARTS_OF_A_RUN = {
    *("checkpoints", "damaged_checkpoints", "glue", "plots", "predictions", "profile"),
    *("tokenizer", *TRACKERS),
}


def find_folders(folder: epath.Path, depth: float = math.inf) -> Iterator[epath.Path]:
    """A folder and the folders below it, in order, but none inside a run folder.

    Leaves out hidden folders, the target of a link if it was visited already, and what
    lies deeper than `depth` levels.
    """
    yield from _walk(folder, depth, set())


def find_runs(folder: epath.Path) -> list[RunFolder]:
    """The runs up to three levels below a local folder, as far as it can be read."""
    runs = []
    with contextlib.suppress(OSError):
        for each in () if is_remote(folder) else find_folders(folder, depth=3):
            if (each / CONFIG_FILE).exists():
                runs.append(RunFolder(each))
    return runs


def real_path(folder: epath.Path) -> str:
    """The path of a folder without links."""
    path = os.fspath(folder)
    return path if is_remote(path) else os.path.realpath(path)


def _walk(folder: epath.Path, depth: float, seen: set[str]) -> Iterator[epath.Path]:
    place = real_path(folder)
    if place in seen:
        return
    seen.add(place)
    yield folder
    for below in sorted(folder.iterdir()) if depth else ():
        hidden = below.name.startswith(".")
        if not hidden and below.name not in _PARTS_OF_A_RUN and below.is_dir():
            yield from _walk(below, depth - 1, seen)
