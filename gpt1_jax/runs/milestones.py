"""The steps that a pre-training run keeps for good, and the steps a job asks for."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import ALL, MILESTONES, NEWEST
from gpt1_jax.config.pretrain import MILESTONE_UNITS
from gpt1_jax.data.shards import Split
from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import read_metadata, saved_steps
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import check_room, megabytes

_SUFFIXES = ((10**6, "M"), (10**3, "k"), (1, ""))
_NEAR = 0.05  # the share that the end of a run may lack of what it stands for


class Target(NamedTuple):
    """An amount of training."""

    amount: int
    unit: str  # one of `MILESTONE_UNITS`

    @property
    def short(self) -> str:
        """The amount with a suffix, never above M: 20k, 2.5M, 1000M."""
        factor, suffix = next(
            each for each in _SUFFIXES if self.amount >= each[0] or not each[1]
        )
        # Decimal writes every digit, and no exponent with "f".
        return f"{(Decimal(self.amount) / factor).normalize():f}{suffix}"

    def __str__(self) -> str:
        return f"{self.short} {self.unit}"


@dataclasses.dataclass(frozen=True)
class TextRead:
    """How much training text a run has read after each step.

    Every step counts, from step 0 on: with `config.init_optimizer` also those that the
    other run has taken, as if they had read the text of this one.

    Attributes:
      tokens_per_step: of a batch over all devices.
      train: counts of the training split; its words per token are taken to be the same
        in every batch.
    """

    tokens_per_step: int
    train: Split

    def per_step(self, unit: str) -> Fraction:
        """Words or tokens that one step reads; of "steps", the step itself."""
        if unit == "steps":
            return Fraction(1)
        words_per_token = Fraction(max(1, self.train.words), self.train.tokens)
        per_token = words_per_token if unit == "words" else Fraction(1)
        return self.tokens_per_step * per_token

    def after(self, step: int) -> dict[str, int]:
        """Tokens and words read after a step."""
        return {unit: self.amount(step, unit) for unit in ("tokens", "words")}

    def amount(self, step: int, unit: str) -> int:
        """Tokens or words read after a step, or steps taken."""
        return round(step * self.per_step(unit))

    @property
    def train_size(self) -> dict[str, int]:
        """Tokens and words of the training split."""
        return {"tokens": self.train.tokens, "words": self.train.words}

    def nearest_step(self, target: Target) -> int:
        """The step, 1 at least, after which the text read is nearest to a target."""
        steps = target.amount / self.per_step(target.unit)
        return max(1, math.floor(steps + Fraction(1, 2)))


@dataclasses.dataclass(frozen=True)
class Milestones:
    """Which steps of a run are kept for good, and what each stands for.

    Attributes:
      text: how much of it each step reads.
      targets: the kept steps in order, and their targets.
      beyond: targets that the run does not reach.
      num_steps: updates in the whole run.
    """

    text: TextRead
    targets: Mapping[int, Target]
    beyond: tuple[Target, ...]
    num_steps: int

    def metadata(self, step: int) -> dict[str, Any]:
        """What a checkpoint says of the text read, and of why it is kept."""
        target = self.targets.get(step)
        kept = {"kept_at": target._asdict()} if target else {}
        return {"text_read": self.text.after(step), **kept}


def place_milestones(
    targets: Sequence[Target], text: TextRead, num_steps: int
) -> Milestones:
    """Finds the step of each target.

    The end of the run stands for the first target beyond it, if at most 5% of the text
    are missing: ten epochs of "10 million words" are seldom 100 million to the word.

    Args:
      targets: amounts of training, in order.
      text: how much of it each step reads.
      num_steps: updates in the whole run.

    Raises:
      ValueError: if two targets fall on one step.
    """
    kept: dict[int, Target] = {}
    beyond = []
    for target in targets:
        step = text.nearest_step(target)
        if step > num_steps:
            beyond.append(target)
        elif step in kept:
            raise UserError(
                f"config.checkpoint.milestone_{target.unit}: {kept[step]} and {target} "
                f"both fall on step {step:,}, as a step reads "
                f"{float(text.per_step(target.unit)):,.0f} {target.unit}; space them "
                "wider, or lower config.train.batch_size."
            )
        else:
            kept[step] = target
    if beyond and num_steps not in kept and beyond[0].unit != "steps":
        end = text.amount(num_steps, beyond[0].unit)
        if end >= (1 - _NEAR) * beyond[0].amount:
            kept[num_steps] = beyond.pop(0)
    return Milestones(text, kept, tuple(beyond), num_steps)


def announce_milestones(
    kept: Milestones, folder: epath.Path, first_step: int, state_bytes: int
) -> None:
    """Says what will be kept for good, and refuses a disk that cannot hold it.

    Args:
      kept: the steps to keep.
      folder: the run folder.
      first_step: the step that the run goes on from.
      state_bytes: of one checkpoint.

    Raises:
      OSError: if the disk lacks room for all that are still to come.
    """
    if kept.beyond:
        unit = kept.beyond[0].unit
        end = kept.text.amount(kept.num_steps, unit)
        has = "has" if unit == "steps" else "reads"
        say(f"Not kept: {_shown(kept.beyond)}; the whole run {has} {end:,}.")
    saved = saved_milestones(folder)
    passed = [t for s, t in kept.targets.items() if s <= first_step and s not in saved]
    if passed:
        say(f"Not kept: {_shown(passed)}, which step {first_step:,} is past.")
    coming = [t for s, t in kept.targets.items() if s > first_step]
    if coming:
        plural = "s" if len(coming) > 1 else ""
        what = f"{len(coming)} checkpoint{plural} at {_shown(coming)}"
        check_room(folder, len(coming) * state_bytes, f"keeping {what}")
        say(f"Keeping for good: {what}, {megabytes(len(coming) * state_bytes)}.")


def _shown(targets: Sequence[Target]) -> str:
    """The first and the last: "1M to 100M words"."""
    first, last = targets[0], targets[-1]
    return str(first) if first == last else f"{first.short} to {last}"


def read_milestone(metadata: Mapping[str, Any]) -> Target | None:
    """The target for which a saved step is kept for good; None if it is not.

    Raises:
      ValueError: if it is no amount of words, tokens or steps.
    """
    match metadata.get("kept_at"):
        case None:
            return None
        case {"amount": int(amount), "unit": unit} if (
            amount > 0 and unit in MILESTONE_UNITS
        ):
            return Target(amount, unit)
        case other:
            raise UserError(
                f"A checkpoint says kept_at={other!r:.80}, which is no amount of "
                "words, tokens or steps; it was not written by this program."
            )


def saved_milestones(folder: epath.Path) -> dict[int, Target]:
    """The saved steps of a run that are kept for good, and their targets.

    Raises:
      ValueError: if what was saved beside a step cannot be read.
    """
    targets = {
        step: read_milestone(read_metadata(folder, step))
        for step in saved_steps(folder)
    }
    return {step: target for step, target in targets.items() if target}


def find_milestones(folder: epath.Path) -> dict[int, Target]:
    """As `saved_milestones`, where there must be one.

    Raises:
      FileNotFoundError: if no step is kept for good.
    """
    kept = saved_milestones(folder)
    if not kept:
        raise FileNotFoundError(
            f"{folder} holds no checkpoint that was kept by config.checkpoint."
            "milestone_words, milestone_tokens or milestone_steps; its saved steps "
            f"are {saved_steps(folder)}."
        )
    return kept


def find_steps(folder: epath.Path, step: str) -> Sequence[int | str]:
    """The steps that are meant, as `open_run` takes them.

    Args:
      folder: the run folder; `open_run` refuses one without any saved step.
      step: `ALL`, `MILESTONES`, or what `open_run` takes.

    Raises:
      FileNotFoundError: if no step is kept for good.
    """
    if step not in (ALL, MILESTONES):
        return [step]
    steps = saved_steps(folder)
    if step == MILESTONES and steps:
        return list(find_milestones(folder))
    return steps or [NEWEST]
