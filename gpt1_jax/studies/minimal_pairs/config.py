"""The typed configuration of the minimal-pairs study."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.constraints import Names, not_empty
from gpt1_jax.studies.config import PairsDataConfig, ScoringConfig


@dataclasses.dataclass(frozen=True)
class MinimalPairsConfig(ScoringConfig):
    """The configuration for pairs of sentences that differ in what is grammatical."""

    tasks: Annotated[Names, not_empty]
    data: PairsDataConfig
