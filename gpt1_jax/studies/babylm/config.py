"""The typed configuration of BabyLM's evaluation."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    DEFAULT,
    ByContent,
    File,
    Files,
    Free,
    Names,
    Section,
    Step,
    different,
    given,
    not_empty,
    one_of,
)
from gpt1_jax.studies.config import EngineConfig


@dataclasses.dataclass(frozen=True)
class BabyLMDataConfig(Section):
    """Where the data of BabyLM's evaluation is."""

    section = "data"

    # The pipeline's evaluation_data, with full_eval and fast_eval.
    dir: Annotated[
        ByContent[File],
        given(
            "Name the evaluation pipeline's folder evaluation_data with "
            "--config.data.dir=DIR."
        ),
    ] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BabyLMConfig(EngineConfig):
    """The configuration of BabyLM's evaluation."""

    # The step for the full set: "default" (the newest), "newest", "best" or a number.
    step: Step = DEFAULT
    # It decides which milestones a submission needs.
    track: Literal["strict-small", "strict"] = "strict-small"
    # Both, or one of them; "fast" is scored at the milestones.
    sets: Annotated[Names, different, not_empty] = ("full", "fast")
    # "all", or some of: blimp blimp_supplement ewok entity_tracking wug_adj wug_past
    # comps reading aoa.
    tasks: Annotated[Names, different, not_empty] = ("all",)
    # Folders of runs of configs/finetune.py:babylm, .., comma-separated.
    finetuned_dir: Free[Files] = ""
    data: BabyLMDataConfig

    def __post_init__(self):
        super().__post_init__()
        for name in self.sets:
            one_of("config.sets", name, ("full", "fast"))
