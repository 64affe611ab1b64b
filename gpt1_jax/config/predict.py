"""The typed configuration of labelling new text."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import (
    DEFAULT,
    File,
    Positive,
    RunFolder,
    Step,
    given,
    require,
)
from gpt1_jax.config.sections import JobConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(JobConfig):
    """The configuration for labelling new text."""

    writes_folder = False

    # The folder of a finished fine-tuned run.
    init_from: Annotated[
        RunFolder,
        given(
            "Name a finished fine-tuned run with --config.init_from=runs/finetune/TASK."
        ),
    ] = ""
    # The saved step: "default" (the best, which results.json scores), "newest", "best"
    # or a number.
    step: Step = DEFAULT
    text: str = ""  # one example, instead of a file of them
    input: File = ""  # a file of examples; "-": standard input
    # A .jsonl, .tsv, .csv or .parquet file, with all columns of the input; empty:
    # standard output, as a table of labels and texts.
    output: File = ""
    batch_size: Positive[int] = 64  # examples

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.text) != bool(self.input),
            f"config.text={self.text!r} and config.input={self.input!r}: set one of "
            "them, to a text or to a file of examples, one per line.",
        )
