"""The typed configuration of a report."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import (
    FigureSuffix,
    Free,
    Names,
    RunFolders,
    different,
    require,
    split_paths,
)
from gpt1_jax.config.sections import JobConfig

KIND_NAMES = {"transformer": "Transformer", "lstm": "LSTM"}  # in texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsConfig(JobConfig):
    """The keys shared by the jobs that read several runs."""

    # Folders of runs, or folders above them, separated by commas.
    runs: RunFolders = ""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(RunsConfig):
    """The configuration of a report on runs."""

    # Folders of runs, or folders above them, separated by commas: pre-trained,
    # fine-tuned, and those of studies that score runs.
    runs: RunFolders = "runs"
    title: str = ""  # the heading of the page; empty: made of what was run
    # Modules of studies outside of this program, whose results get sections too.
    studies: Annotated[Names, different] = ()
    # The format of the pictures in plots/; .csv files beside them hold the numbers.
    figure: Free[FigureSuffix] = ".png"
