"""The typed configuration of the zero-shot study."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    ByContent,
    File,
    NotNegative,
    Section,
    Seed,
)
from gpt1_jax.config.constraints import Names, not_empty
from gpt1_jax.config.finetune import check_examples_source
from gpt1_jax.studies.config import ScoringConfig


@dataclasses.dataclass(frozen=True)
class ZeroShotDataConfig(Section):
    """Where the examples of zero-shot tasks come from."""

    section = "data"

    source: Literal["tfds", "hub", "jsonl", "official"]
    dir: ByContent[File]
    max_examples: NotNegative[int]

    def __post_init__(self):
        super().__post_init__()
        check_examples_source(self.source, self.dir)


@dataclasses.dataclass(frozen=True)
class ZeroShotConfig(ScoringConfig):
    """The configuration for tasks that the model was not trained on."""

    tasks: Annotated[Names, not_empty]
    seed: Seed
    data: ZeroShotDataConfig
