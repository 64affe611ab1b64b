"""The typed configuration for looking up the text that a run has read."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import (
    LocalFile,
    RunFolder,
    ends_in,
    given,
    require,
)
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.studies.config import TextConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchesConfig(JobConfig):
    """The configuration for looking up the text that a run has read."""

    writes_folder = False

    # The folder of a pre-training run.
    init_from: Annotated[
        RunFolder,
        given("Name a pre-trained run with --config.init_from=runs/pretrain/NAME."),
    ] = ""
    # The updates whose batches to list; update N makes the state of step N.
    steps: tuple[int, ...] = ()
    passage: str = ""  # or: a text; lists the updates that read it
    data: TextConfig
    # A .jsonl file; empty: print.
    output: Annotated[LocalFile, ends_in(".jsonl", optional=True)] = ""

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.steps) != bool(self.passage.strip()),
            f"config.steps={self.steps} and config.passage={self.passage!r:.60}: set "
            "one of them, to updates or to a text.",
        )
