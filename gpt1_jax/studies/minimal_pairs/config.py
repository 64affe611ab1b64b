"""The typed configuration of the minimal-pairs study."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    ByContent,
    File,
    Files,
    NotNegative,
    Section,
    require,
)
from gpt1_jax.config.constraints import Names, different, not_empty
from gpt1_jax.config.finetune import check_examples_source
from gpt1_jax.studies.config import ScoringConfig


@dataclasses.dataclass(frozen=True)
class PairsDataConfig(Section):
    """Where minimal pairs come from, and the columns of the user's own pairs."""

    section = "data"

    source: Literal["tfds", "hub", "official", "files"]
    dir: ByContent[File]
    files: ByContent[Files]
    sentences: Annotated[Names, different, not_empty]
    good: str
    context: str
    paradigm: str
    max_pairs: NotNegative[int]

    def __post_init__(self):
        super().__post_init__()
        check_examples_source(self.source, self.dir)
        require(
            (self.source == "files") == bool(self.files),
            f"config.data.files={self.files!r} does not go with config.data.source="
            f"{self.source!r}: pairs of your own (configs/minimal_pairs.py:custom) are "
            "read from source='files', BLiMP from the others.",
        )


@dataclasses.dataclass(frozen=True)
class MinimalPairsConfig(ScoringConfig):
    """The configuration for pairs of sentences that differ in what is grammatical."""

    tasks: Annotated[Names, not_empty]
    data: PairsDataConfig
