"""The typed configuration of the features study."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    DEFAULT,
    File,
    Limit,
    LocalFile,
    Step,
    ends_in,
    given,
    require,
)
from gpt1_jax.config.reading import ReadingConfig
from gpt1_jax.studies.config import AnalysisConfig

_different_layers = Limit(
    "name no layer twice", lambda value: len(set(value)) == len(value)
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeaturesConfig(ReadingConfig, AnalysisConfig):
    """The configuration for hidden states of words and lines."""

    writes_folder = False

    # The saved step: "default" (a fine-tuned run's best, any other run's newest),
    # "newest", "best" or a number.
    step: Step = DEFAULT
    # A .txt file, or a table: .csv, .tsv or .jsonl.
    input: Annotated[
        File,
        given("Name a text or a table of words or lines with --config.input=FILE."),
    ] = ""
    lines_column: str = ""  # a table's column with a line in each row
    words_column: str = ""  # or, instead, its column with a word in each row
    text_column: str = ""  # with words: a new text begins where this column changes
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
