"""The typed configuration of the page to look inside models."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import File, Free, LocalFile, require
from gpt1_jax.config.constraints import Steps, ends_in
from gpt1_jax.config.report import RunsConfig


@dataclasses.dataclass(frozen=True)
class ExploreConfig(RunsConfig):
    """The configuration of a page to look inside models."""

    writes_folder = False

    step: Steps
    text: str
    input: Annotated[File, ends_in(".txt", optional=True)]
    output: Annotated[LocalFile, ends_in(".html")]
    compilation_cache_dir: Free[File]

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
