"""The typed configuration of the interventions study."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    Free,
    Names,
    NotNegative,
    Positive,
    not_empty,
    require,
)
from gpt1_jax.studies.config import PairsDataConfig, ScoringConfig


@dataclasses.dataclass(frozen=True)
class PromptsDataConfig(PairsDataConfig):
    """Minimal pairs, or two answers to prompts that have a corrupted twin."""

    max_pairs: NotNegative[int] = 100  # a random subset of each paradigm; 0: all
    corrupted: str = ""  # a column: a prompt of as many tokens, to patch into

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.corrupted or bool(self.context),
            f"config.data.corrupted={self.corrupted!r} names the column of corrupted "
            "prompts; name that of the clean ones with --config.data.context.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterventionsConfig(ScoringConfig):
    """The configuration of ablating or patching each component."""

    # Paradigms, terms or fields of BLiMP, or "custom".
    tasks: Annotated[Names, not_empty]
    # What replaces a component: "zero"; its "mean" over all tokens of all sentences;
    # or, to "patch", what it gives after the clean prompt.
    method: Literal["zero", "mean", "patch"] = "mean"
    # How many positions to replace, backwards from where the sentences differ (to
    # patch, from the end of the prompt).
    positions: NotNegative[int] = 8
    data: PromptsDataConfig
    batch_tokens: Free[Positive[int]] = 8192  # tokens computed together

    def __post_init__(self):
        super().__post_init__()
        require(
            (self.method == "patch") == bool(self.data.corrupted),
            f"config.method={self.method!r} does not go with config.data.corrupted="
            f"{self.data.corrupted!r}: patching, and nothing else, needs the column of "
            "corrupted prompts (configs/interventions.py:custom).",
        )
