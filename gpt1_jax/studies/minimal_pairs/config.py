"""The typed configuration of the minimal-pairs study."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import (
    Names,
    not_empty,
)
from gpt1_jax.studies.config import PairsDataConfig, ScoringConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimalPairsConfig(ScoringConfig):
    """The configuration for pairs of sentences that differ in what is grammatical."""

    # Paradigms, terms or fields of BLiMP, "blimp" for all, or "custom".
    tasks: Annotated[Names, not_empty]
    data: PairsDataConfig
