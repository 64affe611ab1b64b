"""The typed configuration of the page to look inside models."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import ALL, File, Free, LocalFile, Steps, ends_in, require
from gpt1_jax.config.report import RunsConfig

_TEXT = (
    "It was a cold morning, and the old man walked down to the river with his dog.\n"
    '"You are late again," said the woman at the bridge, but she smiled when she saw '
    "him. The dog, who had never liked the water, stood still and looked at them both "
    "until the man took a piece of bread out of his pocket."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExploreConfig(RunsConfig):
    """The configuration of a page to look inside models."""

    writes_folder = False

    # The saved steps of each run: "all", the "milestones" and the newest, "newest",
    # "best", "default" (a fine-tuned run's best, any other run's newest) or a number.
    step: Steps = ALL
    text: str = _TEXT  # up to 1,000 words, unless input names a file
    # A .txt file with the text.
    input: Annotated[File, ends_in(".txt", optional=True)] = ""
    output: Annotated[LocalFile, ends_in(".html")] = "explore.html"  # the page
    compilation_cache_dir: Free[File] = ""  # empty: ~/.cache/gpt1_jax/xla

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
