"""Pre-training runs, finished or not, as reports and exports describe them."""

import math
from collections.abc import Iterable

from etils import epath

from gpt1_jax.config.checks import BEST
from gpt1_jax.data.records import parse_number
from gpt1_jax.data.windows import windows_per_epoch
from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import LOWEST_LOSS, best_step, since_best
from gpt1_jax.runs.folder import locate_run
from gpt1_jax.runs.records import steps_taken_over
from gpt1_jax.runs.run_folder import RunFolder
from gpt1_jax.runs.wall_time import TRAINING


class Pretrained(RunFolder):
    """A pre-training run: what follows from its files."""

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

    @property
    def ended_early(self) -> bool:
        """Whether it ended as scores no longer improved (`config.eval.patience`)."""
        scores = dict(zip(*self.series(LOWEST_LOSS.metric), strict=True))
        evaluated = since_best(scores, LOWEST_LOSS.highest)
        return len(evaluated) > self.config.eval.patience > 0

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
        values = self.series(metric)[1]
        return values[-1] if values else None

    def sample(self) -> str | None:
        """The last text that the run sampled."""
        sampled = (record.get("sample") for record in reversed(self.records))
        return next((each for each in sampled if isinstance(each, str)), None)

    def seconds(self) -> tuple[float, float] | None:
        """Seconds in training steps, and in total; None if they are not recorded."""
        total = sum(sum(each["seconds"].values()) for each in self.sessions)
        training = sum(each["seconds"].get(TRAINING, 0.0) for each in self.sessions)
        return (training, total) if total > 0 else None


def read_pretrained(folder: epath.Path) -> Pretrained | None:
    """The pre-training run in a folder, read; None if it holds none.

    Raises:
      ValueError: naming the file that is damaged.
    """
    run = Pretrained(folder)
    if run.job != "pretrain":
        return None
    _ = run.model, run.records, run.sessions, run.saved  # damage is found now
    return run


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
