"""The typed configurations of the jobs that look inside trained models."""

import dataclasses
from typing import ClassVar

from gpt1_jax.config.checks import (
    ALL,
    MILESTONES,
    check_seed,
    check_step,
    is_device,
    newer,
    not_negative,
    one_of,
    place,
    require,
)
from gpt1_jax.config.sections import DTYPES, JobConfig, check_source


@dataclasses.dataclass(frozen=True)
class AnalysisConfig(JobConfig):
    """What these jobs have in common: the model they look into."""

    several_steps: ClassVar[tuple[str, ...]] = (ALL, MILESTONES)

    init_from: str = dataclasses.field(metadata=place())
    step: str
    dtype: str
    compilation_cache_dir: str = dataclasses.field(metadata=place())

    def __post_init__(self):
        require(
            bool(self.init_from),
            "Name the run to look into with --config.init_from=runs/pretrain/NAME.",
        )
        check_step("config.step", self.step, *self.several_steps)
        one_of("dtype", self.dtype, ("", *DTYPES))


@dataclasses.dataclass(frozen=True)
class ReadingConfig:
    """What is read before a word of a text."""

    context: str
    context_words: int
    overlap: int

    def __post_init__(self):
        one_of("context", self.context, ("line", "text"))
        for name in ("context_words", "overlap"):
            value = getattr(self, name)
            require(value >= 0, f"config.{name}={value} must not be negative.")


@dataclasses.dataclass(frozen=True)
class FeaturesConfig(ReadingConfig, AnalysisConfig):
    """The configuration for hidden states of words and lines."""

    several_steps = ()
    writes_folder = False

    input: str = dataclasses.field(metadata=place())
    lines_column: str
    words_column: str
    text_column: str
    layers: tuple[int, ...]
    rows: str
    attention: bool
    output: str = dataclasses.field(metadata=place(local=True))
    output_dtype: str

    def __post_init__(self):
        AnalysisConfig.__post_init__(self)
        ReadingConfig.__post_init__(self)
        require(
            bool(self.input),
            "Name a text or a table of words or lines with --config.input=FILE.",
        )
        self._check_columns()
        require(
            len(set(self.layers)) == len(self.layers),
            f"config.layers={self.layers} names a layer twice.",
        )
        one_of("rows", self.rows, ("words", "last", "mean", "extract"))
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
        require(
            self.output.endswith((".npz", ".h5")),
            f"config.output={self.output!r} must be a file that ends in .npz or .h5.",
        )
        one_of("output_dtype", self.output_dtype, ("float32", "float16"))

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

    first_word: str
    punctuation: str

    def __post_init__(self):
        super().__post_init__()
        one_of("first_word", self.first_word, ("scored", "unscored"))
        one_of("punctuation", self.punctuation, ("with_word", "apart"))


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
    input: str = dataclasses.field(metadata=place())
    words_column: str
    text_column: str
    output: str = dataclasses.field(metadata=place(local=True))
    plot: str = dataclasses.field(metadata=place())

    def __post_init__(self):
        AnalysisConfig.__post_init__(self)
        WordsConfig.__post_init__(self)
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
        tables = (".csv", ".tsv", ".npz")
        for name, endings in (("output", tables), ("plot", (".png",))):
            path = getattr(self, name)
            require(
                not path
                or path.endswith(endings)
                or (name == "output" and is_device(path)),
                f"config.{name}={path!r} must end in {' or '.join(endings)}.",
            )
        require(
            not self.output or self.output != self.input,
            f"config.output={self.output!r} would replace config.input; name another.",
        )


@dataclasses.dataclass(frozen=True)
class ZeroShotDataConfig:
    """Where the examples of zero-shot tasks come from."""

    source: str
    dir: str = dataclasses.field(metadata=place())
    max_examples: int

    def __post_init__(self):
        check_source(self.source, self.dir, ("tfds", "jsonl", "official"))
        not_negative("data", self, "max_examples")


@dataclasses.dataclass(frozen=True)
class ZeroShotConfig(AnalysisConfig):
    """The configuration for tasks that the model was not trained on."""

    baseline_init_from: str = dataclasses.field(metadata=newer("") | place())
    tasks: tuple[str, ...]
    seed: int
    data: ZeroShotDataConfig
    batch_tokens: int

    def __post_init__(self):
        super().__post_init__()
        require(
            self.baseline_init_from != self.init_from,
            f"config.baseline_init_from={self.baseline_init_from!r} is the run of "
            "config.init_from too; name another one, or none.",
        )
        require(bool(self.tasks), "config.tasks is empty; name one or more.")
        check_seed("seed", self.seed)
        require(
            self.batch_tokens > 0,
            f"config.batch_tokens={self.batch_tokens} must be positive.",
        )


@dataclasses.dataclass(frozen=True)
class ReportConfig(JobConfig):
    """The configuration of a report on runs."""

    runs: str = dataclasses.field(metadata=place(several=True))
    title: str

    def __post_init__(self):
        require(
            all(self.folders),
            f"config.runs={self.runs!r} must name a folder, or several with commas.",
        )
        require(bool(self.title.strip()), "config.title is empty; name the report.")

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that `runs` names."""
        return tuple(name.strip() for name in self.runs.split(","))
