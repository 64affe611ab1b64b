"""The typed configuration of BabyLM's evaluation."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    ByContent,
    File,
    Files,
    Free,
    Positive,
    Section,
    Step,
    given,
    one_of,
)
from gpt1_jax.config.constraints import Names, different, not_empty
from gpt1_jax.studies.config import AnalysisConfig


@dataclasses.dataclass(frozen=True)
class BabyLMDataConfig(Section):
    """Where the data of BabyLM's evaluation is."""

    section = "data"

    dir: Annotated[
        ByContent[File],
        given(
            "Name the evaluation pipeline's folder evaluation_data with "
            "--config.data.dir=DIR."
        ),
    ]


@dataclasses.dataclass(frozen=True)
class BabyLMConfig(AnalysisConfig):
    """The configuration of BabyLM's evaluation."""

    step: Step
    track: Literal["strict-small", "strict"]
    sets: Annotated[Names, different, not_empty]
    tasks: Annotated[Names, different, not_empty]
    finetuned_dir: Free[Files]
    data: BabyLMDataConfig
    batch_tokens: Free[Positive[int]]

    def __post_init__(self):
        super().__post_init__()
        for name in self.sets:
            one_of("config.sets", name, ("full", "fast"))
