"""The keys that the configurations of studies share."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    ByContent,
    CacheFolder,
    DType,
    File,
    Files,
    Free,
    NotNegative,
    Positive,
    RunFolder,
    Section,
    given,
    require,
)
from gpt1_jax.config.constraints import Names, Steps, different, not_empty
from gpt1_jax.config.finetune import check_examples_source
from gpt1_jax.config.sections import DataConfig, JobConfig


@dataclasses.dataclass(frozen=True)
class AnalysisConfig(JobConfig):
    """The keys that these jobs share: the model that they examine."""

    init_from: Annotated[
        RunFolder,
        given("Name the run to look into with --config.init_from=runs/pretrain/NAME."),
    ]
    step: Steps
    dtype: Literal["", DType]
    compilation_cache_dir: Free[File]


@dataclasses.dataclass(frozen=True)
class ScoringConfig(AnalysisConfig):
    """The keys shared by the jobs that score a run beside a baseline."""

    baseline_init_from: RunFolder
    batch_tokens: Free[Positive[int]]

    def __post_init__(self):
        super().__post_init__()
        require(
            self.baseline_init_from != self.init_from,
            f"config.baseline_init_from={self.baseline_init_from!r} is the run of "
            "config.init_from too; name another one, or none.",
        )


@dataclasses.dataclass(frozen=True)
class TextConfig(Section):
    """Where the text of a run is now; an empty key keeps the run's own value."""

    section = "data"

    train: ByContent[Files]
    valid: ByContent[Files]
    cache_dir: CacheFolder

    def applied_to(self, data: DataConfig) -> DataConfig:
        """The data section of a run's configuration, with the paths of today."""
        return dataclasses.replace(data, **{k: v for k, v in vars(self).items() if v})


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
            f"{self.source!r}: pairs of your own (the preset custom) are "
            "read from source='files', BLiMP from the others.",
        )


SAME_TEXT = TextConfig(train="", valid="", cache_dir="")
