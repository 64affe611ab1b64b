"""The typed configuration of the interventions study."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import NotNegative, require
from gpt1_jax.config.constraints import Names, not_empty
from gpt1_jax.studies.config import PairsDataConfig, ScoringConfig


@dataclasses.dataclass(frozen=True)
class PromptsDataConfig(PairsDataConfig):
    """Minimal pairs, or two answers to prompts that have a corrupted twin."""

    corrupted: str

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.corrupted or bool(self.context),
            f"config.data.corrupted={self.corrupted!r} names the column of corrupted "
            "prompts; name that of the clean ones with --config.data.context.",
        )


@dataclasses.dataclass(frozen=True)
class InterventionsConfig(ScoringConfig):
    """The configuration of ablating or patching each component."""

    tasks: Annotated[Names, not_empty]
    method: Literal["zero", "mean", "patch"]
    positions: NotNegative[int]
    data: PromptsDataConfig

    def __post_init__(self):
        super().__post_init__()
        require(
            (self.method == "patch") == bool(self.data.corrupted),
            f"config.method={self.method!r} does not go with config.data.corrupted="
            f"{self.data.corrupted!r}: patching, and nothing else, needs the column of "
            "corrupted prompts (configs/interventions.py:custom).",
        )
