"""The typed configuration of the surprisal study."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import (
    FIGURE_SUFFIXES,
    File,
    LocalFile,
    ends_in,
    require,
)
from gpt1_jax.config.reading import WordsConfig
from gpt1_jax.studies.config import AnalysisConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurprisalConfig(WordsConfig, AnalysisConfig):
    """The configuration for the surprisal of words."""

    writes_folder = False

    text: str = ""  # a text, instead of a file
    input: File = ""  # a .txt file, or a table of words: .csv, .tsv or .jsonl
    words_column: str = ""  # a table's column with a word in each row
    # A table's column: a new text begins where its value changes.
    text_column: str = ""
    # A .csv, .tsv or .npz file; empty: standard output, as a table.
    output: Annotated[
        LocalFile, ends_in(".csv", ".tsv", ".npz", optional=True, device=True)
    ] = ""
    # A .png, .svg or .pdf file: the first words, and the mean at each step. The numbers
    # are in a .csv file beside it.
    figure: Annotated[File, ends_in(*FIGURE_SUFFIXES, optional=True)] = ""

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
            self.figure not in FIGURE_SUFFIXES,
            f"config.figure={self.figure!r} names no file; set it to a name with this "
            f"ending, such as surprisal{self.figure}.",
        )
