"""Finds run folders, and reads past pre-training runs back from them.

Parameters are not read; `runs/open.py` does that.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import BEST
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.saved import load_saved, read_json
from gpt1_jax.data.files import is_remote
from gpt1_jax.data.records import parse_number
from gpt1_jax.data.windows import windows_per_epoch
from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import best_step, saved_steps
from gpt1_jax.runs.folder import CONFIG_FILE, locate_run
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    TRACKERS,
    read_metrics,
    read_sessions,
    steps_taken_over,
)
from gpt1_jax.runs.wall_time import TRAINING


class Pretrained(NamedTuple):
    """A pre-training run, finished or not, as its folder describes it."""

    folder: epath.Path
    config: PretrainConfig
    model: ModelConfig
    records: Sequence[Mapping[str, Any]]
    sessions: Sequence[Mapping[str, Any]]
    saved: Sequence[int]  # its saved steps, in order

    @property
    def step(self) -> int:
        """The newest saved step; if none is saved, the last step with a record."""
        recorded = max((record["step"] for record in self.records), default=0)
        return self.saved[-1] if self.saved else recorded

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a batch over all devices."""
        return self.config.train.batch_size * self.model.max_seq_len

    @property
    def tokens(self) -> int:
        """Tokens read up to `step`."""
        return self.step * self.tokens_per_step

    @property
    def taken_over(self) -> int:
        """How many updates the origin took, if its optimizer was taken over."""
        return steps_taken_over(self.config, self.sessions)

    @property
    def corpus_tokens(self) -> int | None:
        """Tokens of the training split; None if that is not recorded."""
        sizes = [session["text"].get("tokens") for session in self.sessions]
        return sizes[-1] if sizes and isinstance(sizes[-1], int) else None

    @property
    def num_steps(self) -> int | None:
        """Updates in the whole run; None if that is not known."""
        train = self.config.train
        if train.num_steps:
            return train.num_steps
        if not self.corpus_tokens:
            return None
        windows = windows_per_epoch(self.corpus_tokens, self.model.max_seq_len)
        return int(train.num_epochs * windows / train.batch_size)

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """The steps at which a metric was recorded, and its finite values."""
        points = [
            (record["step"], number)
            for record in self.records
            if isinstance(value := record.get(metric), int | float)
            and math.isfinite(number := parse_number(value))
        ]
        return [step for step, _ in points], [value for _, value in points]

    def last(self, metric: str) -> float | None:
        """The last value of a metric; None if it was never recorded."""
        return next(iter(self.series(metric)[1][::-1]), None)

    def sample(self) -> str | None:
        """The last text that the run sampled."""
        samples = [
            r["sample"] for r in self.records if isinstance(r.get("sample"), str)
        ]
        return samples[-1] if samples else None

    def seconds(self) -> tuple[float, float] | None:
        """Seconds in training steps, and in total; None if they are not recorded."""
        total = sum(sum(each["seconds"].values()) for each in self.sessions)
        training = sum(each["seconds"].get(TRAINING, 0.0) for each in self.sessions)
        return (training, total) if total > 0 else None


def read_pretrained(folder: epath.Path) -> Pretrained | None:
    """The pre-trained run in a folder; None if it holds none.

    Raises:
      ValueError: naming the file that is damaged.
    """
    file = folder / CONFIG_FILE
    if not file.exists() or read_json(file).get("job") != "pretrain":
        return None
    config: PretrainConfig = load_saved(file)
    return Pretrained(
        folder=folder,
        config=config,
        model=config.model.with_vocab_size(_vocab_size(folder, config)),
        records=read_metrics(folder / METRICS_FILE),
        sessions=read_sessions(folder / SESSIONS_FILE),
        saved=saved_steps(folder),
    )


def tokens_before(run: Pretrained, known: Iterable[Pretrained]) -> int:
    """Tokens that a run's initial weights had been trained on, besides `run.tokens`.

    Follows the origins for as long as they are in `known`. Updates that a run took over
    from its origin (`config.init_optimizer`) are in `run.tokens`.
    """
    origins = {each.folder: each for each in known}
    tokens = 0
    while run.config.init_from:
        try:
            origin = origins.pop(locate_run(run.config.init_from))
        except (UserError, KeyError):  # out of reach from here, or not known
            break
        if not run.config.init_optimizer:
            step = run.config.step
            number = int(step) if step.isdecimal() else _step_named(origin, step)
            tokens += number * origin.tokens_per_step
        run = origin
    return tokens


def _step_named(run: Pretrained, step: str) -> int:
    """The best step that a run has saved, or else its newest."""
    if step == BEST and run.saved:
        return best_step(run.folder)
    return run.step


def _vocab_size(folder: epath.Path, config: PretrainConfig) -> int:
    """The vocabulary size, which may be smaller than the configured one."""
    file = folder / "tokenizer" / "tokenizer.json"
    size = read_json(file).get("vocab_size") if file.exists() else None
    return size if isinstance(size, int) else config.tokenizer.vocab_size


# Folders inside a run folder; they hold many files and no other run.
_PARTS_OF_A_RUN = {
    "checkpoints",
    "damaged_checkpoints",
    "glue",
    "plots",
    "predictions",
    "profile",
    "tokenizer",
    *TRACKERS,
}


def find_folders(folder: epath.Path) -> Iterator[epath.Path]:
    """A folder and all folders below it, in order, but none inside a run folder.

    Leaves out hidden folders, and the target of a link if it was visited already.
    """
    yield from _walk(folder, set())


def real_path(folder: epath.Path) -> str:
    """The path of a folder without links."""
    path = os.fspath(folder)
    return path if is_remote(path) else os.path.realpath(path)


def _walk(folder: epath.Path, seen: set[str]) -> Iterator[epath.Path]:
    place = real_path(folder)
    if place in seen:
        return
    seen.add(place)
    yield folder
    for below in sorted(folder.iterdir()):
        hidden = below.name.startswith(".")
        if not hidden and below.name not in _PARTS_OF_A_RUN and below.is_dir():
            yield from _walk(below, seen)
