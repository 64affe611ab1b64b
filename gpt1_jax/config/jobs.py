"""The jobs, and their typed configurations."""

from collections.abc import Mapping
from typing import Any

from gpt1_jax.config.analysis_jobs import (
    FeaturesConfig,
    ReportConfig,
    SurprisalConfig,
    ZeroShotConfig,
)
from gpt1_jax.config.job import JobConfig, make_section
from gpt1_jax.config.model_jobs import ConvertConfig, GenerateConfig, PredictConfig
from gpt1_jax.config.sections import one_of
from gpt1_jax.config.training_jobs import FinetuneConfig, PretrainConfig

# A job is a file in configs/, a file in jobs/ and a line here.
JOBS: Mapping[str, type[JobConfig]] = {
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "predict": PredictConfig,
    "generate": GenerateConfig,
    "zero_shot": ZeroShotConfig,
    "convert": ConvertConfig,
    "features": FeaturesConfig,
    "surprisal": SurprisalConfig,
    "report": ReportConfig,
}


def load(values: Mapping[str, Any]) -> Any:
    """Checks a configuration and freezes it.

    Args:
      values: the mapping built by a file in `configs/`, with overrides applied.

    Returns:
      The frozen configuration of the job that it names.

    Raises:
      ValueError: naming the first key that is unknown, missing or impossible.
    """
    one_of("job", values.get("job", ""), tuple(JOBS))
    return make_section("", JOBS[values["job"]], values)
