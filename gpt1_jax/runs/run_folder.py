"""Run folders: finds them, and reads back all but parameters, which `open_run` does."""

import contextlib
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import ALL, BEST, MILESTONES, NEWEST
from gpt1_jax.config.saved import load_saved, read_json
from gpt1_jax.data.files import is_remote
from gpt1_jax.data.records import parse_number
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS, Tokenizer, load_tokenizer
from gpt1_jax.data.windows import windows_per_epoch
from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import best_step, saved_steps
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE, locate_run
from gpt1_jax.runs.milestones import Milestone, saved_milestones
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    TRACKERS,
    read_metrics,
    read_sessions,
    steps_taken_over,
)
from gpt1_jax.runs.wall_time import TRAINING


class RunFolder:
    """A run, finished or not, as its folder describes it.

    Each file is read when it is first asked for, and then kept. What cannot be read
    raises a ValueError that names the file.

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
        """What it says of its tokenizer, which need not be loaded; empty if nothing."""
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
        """What it holds once it has finished; None before."""
        file = self.folder / RESULTS_FILE
        return read_json(file) if file.exists() else None

    @functools.cached_property
    def saved(self) -> Sequence[int]:
        """Its saved steps, in order."""
        return saved_steps(self.folder)

    def find_steps(self, step: str) -> Sequence[int | str]:
        """The steps that a configured step means, as `open_run` takes them.

        Args:
          step: `ALL`, `MILESTONES`, or what `open_run` takes.

        Raises:
          FileNotFoundError: if milestones are asked for and there is none.
        """
        if step not in (ALL, MILESTONES):
            return [step]
        if step == MILESTONES and self.saved:
            return list(self.milestones)
        return self.saved or [NEWEST]  # `open_run` refuses a run without any

    @functools.cached_property
    def milestones(self) -> Mapping[int, Milestone]:
        """The milestones that it has saved, by step; there must be one.

        Raises:
          FileNotFoundError: if there is none.
        """
        found = saved_milestones(self.folder)
        if not found:
            raise FileNotFoundError(
                f"{self.folder} holds no milestone (config.checkpoint.milestone_words, "
                "milestone_tokens or milestone_steps keep them); its saved steps are "
                f"{self.saved}."
            )
        return found

    @property
    def step(self) -> int:
        """The newest saved step; if none is saved, the last step with a record."""
        recorded = max((record["step"] for record in self.records), default=0)
        return self.saved[-1] if self.saved else recorded

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

    # Of a pre-training run.

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


def read_pretrained(folder: epath.Path) -> RunFolder | None:
    """The pre-training run in a folder, read; None if it holds none.

    Raises:
      ValueError: naming the file that is damaged.
    """
    run = RunFolder(folder)
    if run.job != "pretrain":
        return None
    _ = run.model, run.records, run.sessions, run.saved
    return run


def tokens_before(run: RunFolder, known: Iterable[RunFolder]) -> int:
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


def _step_named(run: RunFolder, step: str) -> int:
    """The best step that a run has saved, or else its newest."""
    if step == BEST and run.saved:
        return best_step(run.folder)
    return run.step


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


def find_folders(folder: epath.Path, depth: float = math.inf) -> Iterator[epath.Path]:
    """A folder and the folders below it, in order, but none inside a run folder.

    Leaves out hidden folders, and the target of a link if it was visited already.

    Args:
      folder: the folder to begin with.
      depth: how many levels below it are searched.
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
