"""The typed configuration of checking runs and exports."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import File, LocalFile, NotNegative, ends_in, matches
from gpt1_jax.config.report import RunsConfig
from gpt1_jax.studies.config import TextConfig

_saved_step = matches("[0-9]*", "be the number of a saved step, such as 64, or empty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyConfig(RunsConfig):
    """The configuration of checking runs and exports."""

    writes_folder = False

    # Recompute the validation loss of this many steps of each run, from its last to its
    # first, and compare it with metrics.jsonl.
    losses: NotNegative[int] = 0
    # Retrain from this saved step to the next milestone, which must give the same
    # parameters, bit for bit or nearly; empty: do not.
    retrain_step: Annotated[str, _saved_step] = ""
    # A trajectory.json, or an output of this job, kept elsewhere: every folder must
    # agree with it; empty: none.
    table: Annotated[File, ends_in(".json", optional=True, device=True)] = ""
    # For losses and training: where the text is now; empty: where the run had it.
    data: TextConfig
    # A .json file for all findings; empty: none.
    output: Annotated[LocalFile, ends_in(".json", optional=True)] = ""
