"""The typed configuration of the zero-shot study."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import Seed
from gpt1_jax.config.constraints import Names, not_empty
from gpt1_jax.studies.config import ScoringConfig, ZeroShotDataConfig


@dataclasses.dataclass(frozen=True)
class ZeroShotConfig(ScoringConfig):
    """The configuration for tasks that the model was not trained on."""

    tasks: Annotated[Names, not_empty]
    seed: Seed
    data: ZeroShotDataConfig
