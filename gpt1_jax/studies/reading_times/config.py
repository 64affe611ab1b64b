"""The typed configuration of the reading-times study."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import (
    File,
    Files,
    Names,
    Section,
    at_least,
    different,
    given,
    one_of,
    require,
)
from gpt1_jax.studies.config import ScoringConfig


@dataclasses.dataclass(frozen=True)
class ReadingTimesDataConfig(Section):
    """A table of words with reading times, and the meaning of its columns."""

    section = "data"

    # A table of words with reading times: .csv, .tsv or .jsonl.
    times: Annotated[
        File, given("Name a table of words and times with --config.data.times=FILE.")
    ] = ""
    # Its column of words.
    word: Annotated[str, given("Name the column of words with --config.data.word.")] = (
        "word"
    )
    # Its column of times in milliseconds; an empty cell or NA: not measured.
    time: Annotated[str, given("Name the column of times with --config.data.time.")] = (
        "time"
    )
    # Its column of stories: a new story begins where it changes.
    story: Annotated[
        str, given("Name the column of stories with --config.data.story.")
    ] = "story"
    # Its column with the number of the word in its story; empty: rows are in order.
    position: str = ""
    # Its column with the text before the word, where each row has its own, in any
    # order; empty: the rows of a story are its text.
    context: str = ""
    # Its column with the number of characters of the word; empty: they are counted.
    length: str = ""
    # Its column with the frequency; empty: counted in frequency_corpus.
    log_frequency: str = ""
    # A table of the words alone, to compare with: the same columns for word, story and
    # position; empty: none.
    text: File = ""

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.context and (self.text or self.position)),
            f"config.data.context={self.context!r} gives each row a text of its own; "
            "leave config.data.text and config.data.position empty.",
        )
        require(
            self.context in ("", self.story),
            f"config.data.context={self.context!r} gives each row a text of its own, "
            "and times are judged by the sentences that these make; set "
            "config.data.story to the same column.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingTimesConfig(ScoringConfig):
    """The configuration of comparing surprisal with reading times."""

    data: ReadingTimesDataConfig
    # Files, folders or globs of text in which words are counted; empty: the text that
    # the run was trained on.
    frequency_corpus: Files = ""
    # Words to leave out: with "punctuation", or "unknown" in the frequency corpus; and
    # always those that do not follow two words with a frequency.
    exclude: Annotated[Names, different] = ("punctuation", "unknown")
    # For cross-validation over stories; at most one for each story.
    folds: Annotated[int, at_least(2, ", one to fit and one to compare on")] = 10

    def __post_init__(self):
        super().__post_init__()
        for name in self.exclude:
            one_of("config.exclude", name, ("punctuation", "unknown"))
