"""Typed, frozen views of a job's configuration, checked before any work.

A file in `configs/` builds a `ml_collections.ConfigDict`; the command line
overrides individual values; `load` turns the result into the frozen dataclass of its
job, and `saved.load_saved` does the same with the file in a run folder. A missing or
unknown key, or a value that cannot work, raises a `UserError` that names the key, the
value and a way out.
"""

import pkgutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpt1_jax.config.checks import (
    ALL,
    BEST,
    DEFAULT,
    MILESTONES,
    NEWEST,
    make_section,
    one_of,
)
from gpt1_jax.config.sections import JobConfig, ModelConfig


class Job(NamedTuple):
    """Where the parts of a job are, in this package."""

    config: str  # MODULE:CLASS of its configuration
    module: str  # the one with `run(config, workdir)`

    def config_class(self) -> type[JobConfig]:
        """Imports the class of the job's configuration."""
        return pkgutil.resolve_name(f"gpt1_jax.{self.config}")

    def import_module(self) -> Any:
        """Imports the module that does the job: `run(config, workdir)`."""
        return pkgutil.resolve_name(f"gpt1_jax.{self.module}")


# By name: what is named is imported when the job is asked for. A study is a folder in
# studies/, a file in configs/ and a line here.
STUDIES: Mapping[str, str] = {
    "zero_shot": "ZeroShotConfig",
    "minimal_pairs": "MinimalPairsConfig",
    "babylm": "BabyLMConfig",
    "surprisal": "SurprisalConfig",
    "reading_times": "ReadingTimesConfig",
    "features": "FeaturesConfig",
    "explore": "ExploreConfig",
    "batches": "BatchesConfig",
    "verify": "VerifyConfig",
}
JOBS: Mapping[str, Job] = {
    "pretrain": Job("config.pretrain:PretrainConfig", "jobs.pretrain"),
    "finetune": Job("config.finetune:FinetuneConfig", "jobs.finetune"),
    "predict": Job("config.models:PredictConfig", "jobs.predict"),
    "generate": Job("config.models:GenerateConfig", "jobs.generate"),
    "convert": Job("config.models:ConvertConfig", "jobs.convert"),
    "report": Job("config.report:ReportConfig", "jobs.report"),
    **{
        name: Job(f"studies.{name}.config:{config}", f"studies.{name}.job")
        for name, config in STUDIES.items()
    },
}


def find_job(name: Any) -> Job:
    """The job of a name.

    Raises:
      UserError: if there is none.
    """
    one_of("config.job", name, tuple(JOBS))
    return JOBS[name]


def load(values: Mapping[str, Any]) -> Any:
    """Checks a configuration and freezes it.

    Args:
      values: the mapping built by a file in `configs/`, with overrides applied.

    Returns:
      The frozen configuration of the job that it names.

    Raises:
      UserError: naming the first key that is unknown, missing or impossible.
    """
    return make_section("", find_job(values.get("job", "")).config_class(), values)


__all__ = [
    "ALL",
    "BEST",
    "DEFAULT",
    "JOBS",
    "MILESTONES",
    "NEWEST",
    "STUDIES",
    "Job",
    "ModelConfig",
    "find_job",
    "load",
]
