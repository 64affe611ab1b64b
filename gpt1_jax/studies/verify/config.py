"""The typed configuration of checking runs and exports."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import File, LocalFile, NotNegative, require
from gpt1_jax.config.constraints import ends_in
from gpt1_jax.config.report import RunsConfig
from gpt1_jax.studies.config import TextConfig


def _saved_step(key: str, step: str) -> None:
    """Refuses text that is neither empty nor the number of a step."""
    require(
        not step or step.isdecimal(),
        f"{key}={step!r} must be the number of a saved step, such as 64, or empty.",
    )


@dataclasses.dataclass(frozen=True)
class VerifyConfig(RunsConfig):
    """The configuration of checking runs and exports."""

    writes_folder = False

    losses: NotNegative[int]
    retrain_step: Annotated[str, _saved_step]
    table: Annotated[File, ends_in(".json", optional=True, device=True)]
    data: TextConfig
    output: Annotated[LocalFile, ends_in(".json", optional=True)]
