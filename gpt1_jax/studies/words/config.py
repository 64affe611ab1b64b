"""The typed configurations of surprisal and features, which read words alike."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    DEFAULT,
    FIGURE_SUFFIXES,
    File,
    Free,
    Limit,
    LocalFile,
    Step,
    ends_in,
    given,
    require,
)
from gpt1_jax.config.reading import ReadingConfig, WordsConfig
from gpt1_jax.studies.config import AnalysisConfig

_different_layers = Limit(
    "name no layer twice", lambda value: len(set(value)) == len(value)
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputConfig(ReadingConfig, AnalysisConfig):
    """The keys that both share: the file of words."""

    writes_folder = False
    # Keys that only one of them has, with the values that change nothing.
    text, lines_column = "", ""
    rows, punctuation = "words", "with_word"

    input: File = ""  # a .txt file, or a table of words: .csv, .jsonl, .parquet
    words_column: str = ""  # a table's column with a word in each row
    # A table's column: a new text begins where its value changes.
    text_column: str = ""

    def __post_init__(self):
        super().__post_init__()
        self._require_with("text_column", "words_column")

    def _require_with(self, name: str, needs: str) -> None:
        require(
            bool(getattr(self, needs)) or not getattr(self, name),
            f"config.{name}={getattr(self, name)!r} does nothing without "
            f"config.{needs}; set that too.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurprisalConfig(WordsConfig, InputConfig):
    """The configuration for the surprisal of words."""

    text: str = ""  # a text, instead of a file
    # A .csv, .tsv or .npz file; empty: standard output, as a table.
    output: Annotated[
        LocalFile, ends_in(".csv", ".tsv", ".npz", optional=True, device=True)
    ] = ""
    # A .png, .svg or .pdf file: the first words, and the mean at each step; a .csv file
    # beside it holds the numbers.
    figure: Free[Annotated[File, ends_in(*FIGURE_SUFFIXES, optional=True)]] = ""

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.text) != bool(self.input),
            f"config.text={self.text!r:.80} and config.input={self.input!r}: set one "
            "of them, to a text or to a file.",
        )
        self._require_with("words_column", "input")
        require(
            not self.words_column or self.punctuation == "with_word",
            "config.punctuation='apart' would make several rows of a word, and "
            "words that are given stay one row each: leave it at with_word.",
        )
        require(
            self.figure not in FIGURE_SUFFIXES,
            f"config.figure={self.figure!r} names no file; set it to a name with this "
            f"ending, such as surprisal{self.figure}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeaturesConfig(InputConfig):
    """The configuration for hidden states of words and lines."""

    # The saved step: "default" (a fine-tuned run's best, any other run's newest),
    # "newest", "best" or a number.
    step: Step = DEFAULT
    # A .txt file, or a table of words or lines: .csv, .tsv, .jsonl or .parquet.
    input: Annotated[
        File,
        given("Name a text or a table of words or lines with --config.input=FILE."),
    ] = ""
    lines_column: str = ""  # a table's column with a line in each row
    # 0 is the embedding, then 1 to the number of layers; empty: all.
    layers: Annotated[tuple[int, ...], _different_layers] = ()
    # "words": the state at the end of each word. For each line: "last", the state of
    # its last token; "mean", the mean over its tokens; "extract", the state that the
    # head of a fine-tuned model reads.
    rows: Literal["words", "last", "mean", "extract"] = "words"
    attention: bool = False  # also write the attention maps of each line
    output: Annotated[LocalFile, ends_in(".npz", ".h5")] = ""  # an .npz or .h5 file
    output_dtype: Literal["float32", "float16"] = "float32"  # float16: half the size

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.lines_column and self.words_column),
            f"config.lines_column={self.lines_column!r} and config.words_column="
            f"{self.words_column!r}: name one of the two.",
        )
        words = self.rows == "words"
        require(
            words or not self.words_column,
            f"config.rows={self.rows!r} needs lines, but config.words_column="
            f"{self.words_column!r} has words.",
        )
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
