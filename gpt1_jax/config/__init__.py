"""Typed, frozen views of a job's configuration, checked before any work.

A file in `configs/` builds a `ml_collections.ConfigDict`; the command line
overrides individual values; `load` turns the result into the frozen dataclasses of
this package, and `saved.load_saved` does the same with the file in a run folder. A
missing or unknown key, or a value that cannot work, raises a `UserError` that names the
key, the value and a way out.
"""

from collections.abc import Mapping
from typing import Any

from gpt1_jax.config.analyses import (
    BabyLMConfig,
    BatchesConfig,
    ExploreConfig,
    FeaturesConfig,
    MinimalPairsConfig,
    ReadingTimesConfig,
    ReportConfig,
    SurprisalConfig,
    VerifyConfig,
    ZeroShotConfig,
)
from gpt1_jax.config.checks import (
    ALL,
    BEST,
    DEFAULT,
    MILESTONES,
    NEWEST,
    make_section,
    one_of,
)
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.models import ConvertConfig, GenerateConfig, PredictConfig
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.sections import JobConfig, ModelConfig

# A job is a file in configs/, a file in jobs/ and a line here.
JOBS: Mapping[str, type[JobConfig]] = {
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "predict": PredictConfig,
    "generate": GenerateConfig,
    "zero_shot": ZeroShotConfig,
    "minimal_pairs": MinimalPairsConfig,
    "babylm": BabyLMConfig,
    "convert": ConvertConfig,
    "features": FeaturesConfig,
    "surprisal": SurprisalConfig,
    "reading_times": ReadingTimesConfig,
    "report": ReportConfig,
    "explore": ExploreConfig,
    "batches": BatchesConfig,
    "verify": VerifyConfig,
}


def load(values: Mapping[str, Any]) -> Any:
    """Checks a configuration and freezes it.

    Args:
      values: the mapping built by a file in `configs/`, with overrides applied.

    Returns:
      The frozen configuration of the job that it names.

    Raises:
      UserError: naming the first key that is unknown, missing or impossible.
    """
    one_of("config.job", values.get("job", ""), tuple(JOBS))
    return make_section("", JOBS[values["job"]], values)


__all__ = [
    "ALL",
    "BEST",
    "DEFAULT",
    "JOBS",
    "MILESTONES",
    "NEWEST",
    "BabyLMConfig",
    "BatchesConfig",
    "ConvertConfig",
    "ExploreConfig",
    "FeaturesConfig",
    "FinetuneConfig",
    "GenerateConfig",
    "MinimalPairsConfig",
    "ModelConfig",
    "PredictConfig",
    "PretrainConfig",
    "ReadingTimesConfig",
    "ReportConfig",
    "SurprisalConfig",
    "VerifyConfig",
    "ZeroShotConfig",
    "load",
]
