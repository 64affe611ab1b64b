"""The typed configuration of the reading-times study."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import (
    File,
    Files,
    Section,
    at_least,
    given,
    one_of,
    require,
)
from gpt1_jax.config.constraints import Names, different
from gpt1_jax.studies.config import ScoringConfig


@dataclasses.dataclass(frozen=True)
class ReadingTimesDataConfig(Section):
    """A table of words with reading times, and the meaning of its columns."""

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
        require(
            self.context in ("", self.story),
            f"config.data.context={self.context!r} gives each row a text of its own, "
            "and times are judged by the sentences that these make; set "
            "config.data.story to the same column.",
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
