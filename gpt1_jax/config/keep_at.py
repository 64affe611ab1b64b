"""Amounts of training after which a pre-training run keeps a checkpoint for good."""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from gpt1_jax.config.checks import newer, require
from gpt1_jax.config.sections import CheckpointConfig

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?[kMB]?"
_PART = re.compile(rf"({_NUMBER})(?::({_NUMBER}):([+*])({_NUMBER}))?")
_MOST = 1000  # counts

UNITS = ("words", "tokens", "steps")


class Target(NamedTuple):
    """An amount of training."""

    amount: int
    unit: str  # one of `UNITS`

    @property
    def short(self) -> str:
        """The amount with a suffix, never above M: 20k, 2.5M, 1000M."""
        suffix = "M" if self.amount >= 10**6 else "k" if self.amount >= 10**3 else ""
        # Decimal writes every digit, and no exponent with "f".
        return f"{(Decimal(self.amount) / _SUFFIXES[suffix]).normalize():f}{suffix}"

    def __str__(self) -> str:
        return f"{self.short} {self.unit}"


@dataclasses.dataclass(frozen=True)
class PretrainCheckpointConfig(CheckpointConfig):
    """Also after how much training a checkpoint is kept for good."""

    keep_at_words: str = dataclasses.field(metadata=newer(""))
    keep_at_tokens: str = dataclasses.field(metadata=newer(""))
    keep_at_steps: str = dataclasses.field(metadata=newer(""))

    def __post_init__(self):
        super().__post_init__()
        named = " and ".join(f"{key}={text!r}" for key, _, text in self._keep_at())
        require(
            len(self._keep_at()) <= 1,
            f"{named}: set one of them and leave the others empty.",
        )
        self.targets()

    def targets(self) -> tuple[Target, ...]:
        """The amounts of training, in order."""
        return tuple(
            Target(amount, unit)
            for key, unit, text in self._keep_at()
            for amount in parse(key, text)
        )

    def _keep_at(self) -> list[tuple[str, str, str]]:
        """The keys that are set, each with its unit and its text."""
        texts = {unit: getattr(self, f"keep_at_{unit}") for unit in UNITS}
        return [
            (f"config.checkpoint.keep_at_{unit}", unit, text)
            for unit, text in texts.items()
            if text
        ]


def parse(key: str, text: str) -> tuple[int, ...]:
    """Reads a list of counts and ranges of counts, separated by commas.

    A range is FIRST:LAST:+STEP or FIRST:LAST:*FACTOR and does not go beyond LAST. k, M
    and B stand for thousands, millions and billions.

    Args:
      key: the configuration key, for messages.
      text: for example "1M:10M:+1M,20M:100M:+10M"; empty for none.

    Returns:
      The counts in order, each once.

    Raises:
      ValueError: naming the part that cannot be read, or if there are too many.
    """
    found: set[int] = set()
    for part in text.split(",") if text else ():
        counts = list(itertools.islice(_counts(part.strip()), _MOST + 1))
        require(
            bool(counts),
            f"{key}={text!r}: {part.strip()!r} is neither a whole count such as 2.5M "
            "nor a range such as 1M:10M:+1M or 1M:1000M:*10 (k, M and B stand for "
            "thousands, millions and billions).",
        )
        found.update(counts)
        require(
            len(found) <= _MOST and len(counts) <= _MOST,
            f"{key}={text!r} names more than {_MOST:,} counts, and at each of them a "
            "checkpoint is kept; take larger steps.",
        )
    return tuple(sorted(found))


def _counts(part: str) -> Iterator[int]:
    """The counts of one part of the list; none if it cannot be read."""
    match = _PART.fullmatch(part)
    if match is None:
        return
    # A single count is a range of one.
    count, last = _number(match[1]), _number(match[2] or match[1])
    adds, change = match[3] != "*", _number(match[4] or "1")
    whole = count.denominator == 1 and (change.denominator == 1 or not adds)
    grows = change >= 1 if adds else change > 1
    while whole and grows and 1 <= count <= last:
        yield round(count)
        count = count + change if adds else count * change


def _number(text: str) -> Fraction:
    digits = text.rstrip("".join(_SUFFIXES))
    return Fraction(digits) * _SUFFIXES[text[len(digits) :]]
