"""The keys that the configurations of studies share."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    CONTENT,
    DEFAULT,
    MODEL,
    PLACE,
    SEVERAL,
    ByContent,
    CacheFolder,
    DType,
    FigureFile,
    File,
    Files,
    Free,
    Names,
    NotNegative,
    Positive,
    RunFolder,
    Section,
    Steps,
    different,
    given,
    not_empty,
    require,
    split_paths,
)
from gpt1_jax.config.finetune import ExamplesConfig
from gpt1_jax.config.sections import DataConfig, JobConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig(JobConfig):
    """The keys that these jobs share: the model that they examine."""

    # The folder of a run: pre-trained, fine-tuned or converted.
    init_from: Annotated[
        RunFolder,
        given("Name the run to look into with --config.init_from=runs/pretrain/NAME."),
    ] = ""
    # The saved step: "default" (a fine-tuned run's best, any other run's newest),
    # "newest", "best" or a number; or, one after another, "all" saved steps, or the
    # "milestones" and the newest step.
    step: Steps = DEFAULT
    # The dtype to compute in: "bfloat16" is less precise; empty: the run's own.
    dtype: Literal["", DType] = "float32"
    compilation_cache_dir: Free[File] = ""  # empty: ~/.cache/gpt1_jax/xla


_SCORED = (PLACE, SEVERAL, MODEL, CONTENT)  # run folders, with commas


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(AnalysisConfig):
    """The keys that `studies.engine.score_steps` reads."""

    batch_tokens: Free[Positive[int]] = 2048  # tokens computed together
    # A .png, .svg or .pdf file, or a suffix alone for one in plots/; a .csv file beside
    # it holds the numbers.
    figure: Free[FigureFile] = ".png"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringConfig(EngineConfig):
    """The keys shared by the jobs that score runs beside a baseline."""

    # The folder of a run: pre-trained, fine-tuned or converted. Of several that differ
    # by their seed, with commas, the mean and its spread are shown.
    init_from: Annotated[
        str,
        *_SCORED,
        given("Name the run to score with --config.init_from=runs/pretrain/NAME."),
    ] = ""
    # Another run, or several, to score at the same steps, drawn dashed; empty: none.
    baseline_init_from: Annotated[str, *_SCORED] = ""

    def __post_init__(self):
        super().__post_init__()
        baselines = filter(None, split_paths(self.baseline_init_from))
        named = [*split_paths(self.init_from), *baselines]
        require(
            len(set(named)) == len(named),
            f"config.init_from={self.init_from!r} and config.baseline_init_from="
            f"{self.baseline_init_from!r} name a run twice; name different runs, or no "
            "baseline.",
        )


@dataclasses.dataclass(frozen=True)
class TextConfig(Section):
    """Where the text of a run is now; an empty key keeps the run's own value."""

    section = "data"

    train: ByContent[Files] = ""  # the text that it was trained on
    valid: ByContent[Files] = ""  # its text for validation
    cache_dir: CacheFolder = ""  # where its token shards are

    def applied_to(self, data: DataConfig) -> DataConfig:
        """The data section of a run's configuration, with the paths of today."""
        return dataclasses.replace(data, **{k: v for k, v in vars(self).items() if v})


@dataclasses.dataclass(frozen=True)
class PairsDataConfig(ExamplesConfig):
    """Where minimal pairs come from, and the columns of the user's own pairs."""

    # "tfds"; "hub": Parquet files of the Hugging Face Hub; "official": BLiMP's own
    # files, DIR/PARADIGM.jsonl; "files": pairs of your own.
    source: Literal["tfds", "hub", "official", "files"] = "tfds"
    # Your own: files, folders or globs, comma-separated; .jsonl, .csv or .tsv.
    files: ByContent[Files] = ""
    # Their columns: two or more sentences or answers, or one column with a list.
    sentences: Annotated[Names, different, not_empty] = (
        "sentence_good",
        "sentence_bad",
    )
    # Which is better: a column that holds its column's name or its number from 0;
    # empty: the first.
    good: str = ""
    context: str = ""  # a column: read before each sentence, not scored
    paradigm: str = ""  # a column: pairs with the same value are taken together
    max_pairs: NotNegative[int] = 0  # a random subset of each paradigm; 0: all

    def __post_init__(self):
        super().__post_init__()
        require(
            (self.source == "files") == bool(self.files),
            f"config.data.files={self.files!r} does not go with config.data.source="
            f"{self.source!r}: pairs of your own (the preset custom) are "
            "read from source='files', BLiMP from the others.",
        )


SAME_TEXT = TextConfig()
