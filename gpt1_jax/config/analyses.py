"""The typed configurations of the jobs that look inside trained models."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    DType,
    File,
    Files,
    LocalFile,
    Names,
    Newer,
    NotNegative,
    Positive,
    Section,
    Seed,
    Step,
    Steps,
    at_least,
    different,
    ends_in,
    given,
    not_empty,
    one_of,
    require,
    split_paths,
)
from gpt1_jax.config.sections import DataConfig, JobConfig, check_examples_source


def _different_layers(key: str, value: tuple[int, ...]) -> None:
    require(len(set(value)) == len(value), f"{key}={value} names a layer twice.")


def _saved_step(key: str, step: str) -> None:
    """Refuses what is neither empty nor the number of a step."""
    require(
        not step or step.isdecimal(),
        f"{key}={step!r} must be the number of a saved step, such as 64, or empty.",
    )


@dataclasses.dataclass(frozen=True)
class AnalysisConfig(JobConfig):
    """What these jobs have in common: the model they look into."""

    init_from: Annotated[
        File,
        given("Name the run to look into with --config.init_from=runs/pretrain/NAME."),
    ]
    step: Steps
    dtype: Literal["", DType]
    compilation_cache_dir: File


@dataclasses.dataclass(frozen=True)
class ReadingConfig(Section):
    """What is read before a word of a text."""

    context: Literal["line", "text"]
    context_words: NotNegative[int]
    overlap: NotNegative[int]


@dataclasses.dataclass(frozen=True)
class FeaturesConfig(ReadingConfig, AnalysisConfig):
    """The configuration for hidden states of words and lines."""

    writes_folder = False

    step: Step
    input: Annotated[
        File,
        given("Name a text or a table of words or lines with --config.input=FILE."),
    ]
    lines_column: str
    words_column: str
    text_column: str
    layers: Annotated[tuple[int, ...], _different_layers]
    rows: Literal["words", "last", "mean", "extract"]
    attention: bool
    output: Annotated[LocalFile, ends_in(".npz", ".h5")]
    output_dtype: Literal["float32", "float16"]

    def __post_init__(self):
        super().__post_init__()
        self._check_columns()
        words = self.rows == "words"
        require(
            words or (self.context == "line" and not self.context_words),
            f"config.rows={self.rows!r} reads a line by itself; leave config.context "
            "at 'line' and config.context_words at 0.",
        )
        require(
            not (words and self.attention),
            "config.attention=True keeps maps of whole lines: set --config.rows=last, "
            "mean or extract.",
        )

    def _check_columns(self) -> None:
        """Refuses a table without the column to read, and a column of no table."""
        table = self.input.lower().endswith((".csv", ".tsv", ".jsonl"))
        require(
            table or self.input.lower().endswith(".txt"),
            f"config.input={self.input!r} must be a text, .txt, or a table: .csv, .tsv "
            "or .jsonl.",
        )
        named = bool(self.lines_column) + bool(self.words_column)
        require(
            named == table,
            f"config.input={self.input!r} does not go with config.lines_column="
            f"{self.lines_column!r} and config.words_column={self.words_column!r}: of "
            "a table name one of the two, of a .txt file none.",
        )
        require(
            self.rows == "words" or not self.words_column,
            f"config.rows={self.rows!r} needs lines, but config.words_column="
            f"{self.words_column!r} has words.",
        )
        require(
            bool(self.words_column) or not self.text_column,
            f"config.text_column={self.text_column!r} tells the texts of a column of "
            "words apart; name that with --config.words_column=NAME.",
        )


@dataclasses.dataclass(frozen=True)
class WordsConfig(ReadingConfig):
    """Also which words are scored, and what a word is."""

    first_word: Literal["scored", "unscored"]
    punctuation: Literal["with_word", "apart"]


DEFAULT_WORDS = WordsConfig(
    context="line",
    context_words=0,
    overlap=0,
    first_word="scored",
    punctuation="with_word",
)


@dataclasses.dataclass(frozen=True)
class SurprisalConfig(WordsConfig, AnalysisConfig):
    """The configuration for the surprisal of words."""

    writes_folder = False

    text: str
    input: File
    words_column: str
    text_column: str
    output: Annotated[
        LocalFile,
        ends_in(".csv", ".tsv", ".npz", optional=True, device=True),
    ]
    plot: Annotated[File, ends_in(".png", optional=True)]

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.text) != bool(self.input),
            f"config.text={self.text!r:.80} and config.input={self.input!r}: set one "
            "of them, to a text or to a file.",
        )
        for name, needs in (("words_column", "input"), ("text_column", "words_column")):
            require(
                bool(getattr(self, needs)) or not getattr(self, name),
                f"config.{name}={getattr(self, name)!r} does nothing without "
                f"config.{needs}; set that too.",
            )
        require(
            not self.words_column or self.punctuation == "with_word",
            "config.punctuation='apart' would make several rows of a word, and "
            "words that are given stay one row each: leave it at with_word.",
        )
        require(
            not self.output or self.output != self.input,
            f"config.output={self.output!r} would replace config.input; name another.",
        )


@dataclasses.dataclass(frozen=True)
class ZeroShotDataConfig(Section):
    """Where the examples of zero-shot tasks come from."""

    section = "data"

    source: Literal["tfds", "jsonl", "official"]
    dir: File
    max_examples: NotNegative[int]

    def __post_init__(self):
        super().__post_init__()
        check_examples_source(self.source, self.dir)


@dataclasses.dataclass(frozen=True)
class ScoringConfig(AnalysisConfig):
    """What the jobs have in common that score a run beside a baseline."""

    baseline_init_from: Annotated[File, Newer("")]
    batch_tokens: Positive[int]

    def __post_init__(self):
        super().__post_init__()
        require(
            self.baseline_init_from != self.init_from,
            f"config.baseline_init_from={self.baseline_init_from!r} is the run of "
            "config.init_from too; name another one, or none.",
        )


@dataclasses.dataclass(frozen=True)
class ZeroShotConfig(ScoringConfig):
    """The configuration for tasks that the model was not trained on."""

    tasks: Annotated[Names, not_empty]
    seed: Seed
    data: ZeroShotDataConfig


@dataclasses.dataclass(frozen=True)
class PairsDataConfig(Section):
    """Where minimal pairs come from, and what the columns of one's own mean."""

    section = "data"

    source: Literal["tfds", "official", "files"]
    dir: File
    files: Files
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


@dataclasses.dataclass(frozen=True)
class ReadingTimesDataConfig(Section):
    """A table of words with reading times, and what its columns mean."""

    section = "data"

    times: Annotated[
        File, given("Name a table of words and times with --config.data.times=FILE.")
    ]
    word: Annotated[str, given("Name the column of words with --config.data.word.")]
    time: Annotated[str, given("Name the column of times with --config.data.time.")]
    story: Annotated[str, given("Name the column of stories with --config.data.story.")]
    position: str
    context: str
    length: str
    log_frequency: str
    text: File

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.context and (self.text or self.position)),
            f"config.data.context={self.context!r} gives each row a text of its own; "
            "leave config.data.text and config.data.position empty.",
        )


@dataclasses.dataclass(frozen=True)
class ReadingTimesConfig(ScoringConfig):
    """The configuration of comparing surprisal with reading times."""

    data: ReadingTimesDataConfig
    frequency_corpus: Files
    exclude: Annotated[Names, different]
    folds: Annotated[int, at_least(2, ", one to fit and one to compare on")]

    def __post_init__(self):
        super().__post_init__()
        for name in self.exclude:
            one_of("config.exclude", name, ("punctuation", "unknown"))


@dataclasses.dataclass(frozen=True)
class BabyLMDataConfig(Section):
    """Where the data of BabyLM's evaluation is."""

    section = "data"

    dir: Annotated[
        File,
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
    finetuned_dir: Files
    data: BabyLMDataConfig
    batch_tokens: Positive[int]

    def __post_init__(self):
        super().__post_init__()
        for name in self.sets:
            one_of("config.sets", name, ("full", "fast"))


@dataclasses.dataclass(frozen=True)
class RunsConfig(JobConfig):
    """What the jobs that read several runs have in common."""

    runs: Files

    def __post_init__(self):
        super().__post_init__()
        require(
            all(self.folders),
            f"config.runs={self.runs!r} must name a folder, or several with commas.",
        )

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that `runs` names."""
        return tuple(split_paths(self.runs))


@dataclasses.dataclass(frozen=True)
class ReportConfig(RunsConfig):
    """The configuration of a report on runs."""

    title: str

    def __post_init__(self):
        super().__post_init__()
        require(bool(self.title.strip()), "config.title is empty; name the report.")


@dataclasses.dataclass(frozen=True)
class ExploreConfig(RunsConfig):
    """The configuration of a page to look inside models."""

    writes_folder = False

    step: Steps
    text: str
    input: Annotated[File, ends_in(".txt", optional=True)]
    output: Annotated[LocalFile, ends_in(".html")]
    compilation_cache_dir: File

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.text.strip()) or bool(self.input),
            "config.text is empty; give a text, or name a file with --config.input.",
        )
        require(
            len(set(self.folders)) == len(self.folders),
            f"config.runs={self.runs!r} names a run twice.",
        )


@dataclasses.dataclass(frozen=True)
class TextConfig(Section):
    """Where the text of a run is now; what is empty is where the run had it."""

    section = "data"

    train: Files
    valid: Files
    cache_dir: LocalFile

    def applied_to(self, data: DataConfig) -> DataConfig:
        """The data section of a run's configuration, with the paths of today."""
        return dataclasses.replace(data, **{k: v for k, v in vars(self).items() if v})


SAME_TEXT = TextConfig(train="", valid="", cache_dir="")


@dataclasses.dataclass(frozen=True)
class BatchesConfig(JobConfig):
    """The configuration of looking up what a run has read."""

    writes_folder = False

    init_from: Annotated[
        File,
        given("Name a pre-trained run with --config.init_from=runs/pretrain/NAME."),
    ]
    steps: tuple[int, ...]
    passage: str
    data: TextConfig
    output: Annotated[LocalFile, ends_in(".jsonl", optional=True)]

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.steps) != bool(self.passage.strip()),
            f"config.steps={self.steps} and config.passage={self.passage!r:.60}: set "
            "one of them, to updates or to a text.",
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
