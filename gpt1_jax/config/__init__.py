"""Typed, frozen views of a job's configuration, checked before any work.

A file in `configs/` builds a `ml_collections.ConfigDict`; the command line
overrides single values; `from_config_dict` turns the result into the frozen
dataclasses of this package. A key that is missing or unknown, and a value that cannot
work, raise a `ValueError` naming the key, the value and a way out.
"""

from gpt1_jax.config.jobs import (
    FinetuneConfig,
    PredictConfig,
    PretrainConfig,
    from_config_dict,
    make_model_config,
)
from gpt1_jax.config.sections import (
    DTYPES,
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    default_cache_dir,
)
from gpt1_jax.config.task_sections import CustomTaskConfig, HeadConfig, TaskDataConfig

__all__ = [
    "DTYPES",
    "CheckpointConfig",
    "CustomTaskConfig",
    "DataConfig",
    "EvalConfig",
    "FinetuneConfig",
    "HeadConfig",
    "LogConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PredictConfig",
    "PretrainConfig",
    "TaskDataConfig",
    "TokenizerConfig",
    "TrainConfig",
    "default_cache_dir",
    "from_config_dict",
    "make_model_config",
]
