"""Pre-trained runs as their folders describe them, without their parameters."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import BEST, ModelConfig, PretrainConfig
from gpt1_jax.config.saved import load_saved, read_json
from gpt1_jax.data.windows import windows_per_epoch
from gpt1_jax.errors import UserError
from gpt1_jax.runs.folder import CONFIG_FILE, locate
from gpt1_jax.runs.measured import best_step
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.runs.saved_steps import saved_steps
from gpt1_jax.runs.sessions import SESSIONS_FILE, read_sessions
from gpt1_jax.runs.wall_time import TRAINING


class Pretrained(NamedTuple):
    """What a folder says of a run that was pre-trained, or still is."""

    folder: epath.Path
    config: PretrainConfig
    model: ModelConfig
    records: Sequence[Mapping[str, Any]]
    sessions: Sequence[Mapping[str, Any]]  # none in folders of 0.1.0

    @property
    def step(self) -> int:
        """The last step with a record."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a batch over all devices."""
        return self.config.train.batch_size * self.model.max_seq_len

    @property
    def tokens(self) -> int:
        """Tokens read up to the last step with a record."""
        return self.step * self.tokens_per_step

    @property
    def taken_over(self) -> int:
        """The updates that were another run's, whose optimizer this one took over."""
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
            (record["step"], float(value))
            for record in self.records
            if isinstance(value := record.get(metric), int | float)
            and math.isfinite(value)
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
        """Seconds in training steps, and in all; None if that is not recorded."""
        total = sum(sum(each["seconds"].values()) for each in self.sessions)
        training = sum(each["seconds"].get(TRAINING, 0.0) for each in self.sessions)
        return (training, total) if total > 0 else None


def read(folder: epath.Path) -> Pretrained | None:
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
        model=config.model_config(_vocab_size(folder, config)),
        records=read_metrics(folder / METRICS_FILE),
        sessions=read_sessions(folder / SESSIONS_FILE),
    )


def steps_taken_over(
    config: PretrainConfig, sessions: Sequence[Mapping[str, Any]]
) -> int:
    """The step of another run that a run began at, since it took over its optimizer.

    Args:
      config: the run's configuration.
      sessions: the run's, as `read_sessions` returns them; none if it has not begun.
    """
    return sessions[0]["first_step"] if config.init_optimizer and sessions else 0


def tokens_before(run: Pretrained, known: Iterable[Pretrained]) -> int:
    """Tokens that the weights a run began with had read, besides `run.tokens`.

    As far back as `known` holds the runs. Updates of a source that a run counts as its
    own (`config.init_optimizer`) are in `run.tokens`.
    """
    sources = {each.folder: each for each in known}
    tokens = 0
    while run.config.init_from:
        try:
            source = sources.pop(locate(run.config.init_from))
        except (UserError, KeyError):  # out of reach from here, or not known
            break
        if not run.config.init_optimizer:
            step = run.config.init_step
            number = int(step) if step.isdecimal() else _step_named(source, step)
            tokens += number * source.tokens_per_step
        run = source
    return tokens


def _step_named(run: Pretrained, step: str) -> int:
    """The best step of a run, as far as its folder tells now, or its newest."""
    if step == BEST and saved_steps(run.folder):
        return best_step(run.folder)
    return run.step


def _vocab_size(folder: epath.Path, config: PretrainConfig) -> int:
    """The entries of the tokenizer, which may be fewer than were asked for."""
    file = folder / "tokenizer" / "tokenizer.json"
    size = read_json(file).get("vocab_size") if file.exists() else None
    return size if isinstance(size, int) else config.tokenizer.vocab_size
