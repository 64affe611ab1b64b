"""Milestones: the checkpoints of a pre-training run that are kept for good."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config.pretrain import MILESTONE_UNITS
from gpt1_jax.data.shards import SplitCounts
from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import saved_metadata
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import check_room, megabytes

_NEAR = 0.05  # how far, as a share, the end of a run may fall short of its milestone


class Milestone(NamedTuple):
    """An amount of training after which a checkpoint is kept for good."""

    amount: int
    unit: str  # one of `MILESTONE_UNITS`

    @property
    def short(self) -> str:
        """The amount with a suffix, never above M: 20k, 2.5M, 1000M."""
        for factor, suffix in ((10**6, "M"), (10**3, "k")):
            if self.amount >= factor:
                # Decimal writes every digit, and no exponent with "f".
                return f"{(Decimal(self.amount) / factor).normalize():f}{suffix}"
        return str(self.amount)

    @property
    def revision(self) -> str:
        """The name of its export: chck_1M after words, as BabyLM has it."""
        end = {"words": "", "tokens": "_tokens", "steps": "_steps"}[self.unit]
        return f"chck_{self.short}{end}"

    def __str__(self) -> str:
        return f"{self.short} {self.unit}"


@dataclasses.dataclass(frozen=True)
class Milestones:
    """The milestones of a run, and how much text it has read after each step.

    Every step counts, from step 0 on: with `config.init_optimizer` also those that the
    origin has taken, as if they had read the text of this run.

    Attributes:
      tokens_per_step: tokens of a batch over all devices.
      train: counts of the training split; its words per token are taken to be the same
        in every batch.
      num_steps: updates in the whole run.
      by_step: the milestones that the run reaches, by step, in order.
      beyond: the milestones that it does not reach.
    """

    tokens_per_step: int
    train: SplitCounts
    num_steps: int
    by_step: Mapping[int, Milestone]
    beyond: tuple[Milestone, ...]

    def amount(self, step: int, unit: str) -> int:
        """Words or tokens read after a step, or steps taken."""
        return round(step * _per_step(unit, self.tokens_per_step, self.train))

    @property
    def train_size(self) -> dict[str, int]:
        """Tokens and words of the training split."""
        return {"tokens": self.train.tokens, "words": self.train.words}

    def metadata(self, step: int) -> dict[str, Any]:
        """The metadata of a checkpoint on the text read and on why it is kept."""
        milestone = self.by_step.get(step)
        kept = {"milestone": milestone._asdict()} if milestone else {}
        read = {unit: self.amount(step, unit) for unit in ("tokens", "words")}
        return {"text_read": read, **kept}


def schedule_milestones(
    unit: str,
    amounts: Sequence[int],
    tokens_per_step: int,
    train: SplitCounts,
    num_steps: int,
) -> Milestones:
    """Finds the step of each milestone, the nearest to the amount.

    An amount of 0 stands for the state before the first update, step 0. Any other
    amount stands for step 1 or a later one.

    The end of the run counts as the first milestone beyond it if at most 5% of the text
    is missing: ten epochs of "10 million words" are seldom exactly 100 million.

    Args:
      unit: the unit of the amounts, one of `MILESTONE_UNITS`.
      amounts: the amounts, rising.
      tokens_per_step, train, num_steps: as in `Milestones`.

    Raises:
      ValueError: if two milestones fall on one step.
    """
    per_step = _per_step(unit, tokens_per_step, train)
    by_step: dict[int, Milestone] = {}
    beyond = []
    for milestone in (Milestone(amount, unit) for amount in amounts):
        nearest = math.floor(milestone.amount / per_step + Fraction(1, 2))
        step = max(1 if milestone.amount else 0, nearest)
        if step > num_steps:
            beyond.append(milestone)
        elif step in by_step:
            raise UserError(
                f"config.checkpoint.milestone_{unit}: {by_step[step]} and {milestone} "
                f"both fall on step {step:,}, as a step reads {float(per_step):,.0f} "
                f"{unit}; space them wider, or lower config.train.batch_size."
            )
        else:
            by_step[step] = milestone
    if beyond and num_steps not in by_step and unit != "steps":
        end = round(num_steps * per_step)
        if end >= (1 - _NEAR) * beyond[0].amount:
            by_step[num_steps] = beyond.pop(0)
    return Milestones(tokens_per_step, train, num_steps, by_step, tuple(beyond))


def _per_step(unit: str, tokens_per_step: int, train: SplitCounts) -> Fraction:
    """Words or tokens that one step reads; of "steps", the step itself."""
    if unit == "steps":
        return Fraction(1)
    if unit == "tokens":
        return Fraction(tokens_per_step)
    return tokens_per_step * Fraction(max(1, train.words), train.tokens)


def announce_milestones(
    milestones: Milestones, folder: epath.Path, last_step: int, state_bytes: int
) -> None:
    """Says which checkpoints are kept for good; refuses a disk without room for them.

    Args:
      last_step: the last step whose state is saved here or in the run that this one
        continues; -1 if none is.
      state_bytes: the size of one checkpoint.

    Raises:
      OSError: if the disk lacks room for all that are still to come.
    """
    if beyond := milestones.beyond:
        end = milestones.amount(milestones.num_steps, beyond[0].unit)
        has = "has" if beyond[0].unit == "steps" else "reads"
        say(f"Not kept: {_first_and_last(beyond)}; the whole run {has} {end:,}.")
    by_step, saved = milestones.by_step, saved_milestones(folder)
    missed = (step for step in by_step if step <= last_step and step not in saved)
    if passed := [by_step[step] for step in missed]:
        say(f"Not kept: {_first_and_last(passed)}, passed by step {last_step:,}.")
    if coming := [m for step, m in by_step.items() if step > last_step]:
        plural, size = "s" * (len(coming) > 1), len(coming) * state_bytes
        what = f"{len(coming)} checkpoint{plural} at {_first_and_last(coming)}"
        check_room(folder, size, f"keeping {what}")
        say(f"Keeping for good: {what}, {megabytes(size)}.")


def _first_and_last(milestones: Sequence[Milestone]) -> str:
    """For example "1M to 100M words"."""
    first, last = milestones[0], milestones[-1]
    return str(first) if first == last else f"{first.short} to {last}"


def read_milestone(metadata: Mapping[str, Any]) -> Milestone | None:
    """The milestone that a saved step stands for; None if it is none.

    Raises:
      ValueError: if it is not an amount of words, tokens or steps.
    """
    match metadata.get("milestone"):
        case None:
            return None
        case {"amount": int(amount), "unit": unit} if (
            amount >= 0 and unit in MILESTONE_UNITS
        ):
            return Milestone(amount, unit)
        case other:
            raise UserError(
                f"A checkpoint says milestone={other!r:.80}, which is no amount of "
                "words, tokens or steps; it was not written by this program."
            )


def saved_milestones(folder: epath.Path) -> dict[int, Milestone]:
    """The milestones that a run has saved, by step.

    Raises:
      ValueError: if what was saved beside a step cannot be read.
    """
    return {
        step: milestone
        for step, metadata in saved_metadata(folder).items()
        if (milestone := read_milestone(metadata))
    }
