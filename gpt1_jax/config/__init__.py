"""Typed, frozen views of a job's configuration, checked before any work.

A file in `configs/` builds a `ml_collections.ConfigDict`; the command line
overrides individual values; `load` turns the result into the frozen dataclasses of
this package, and `load_saved` does the same with the file in a run folder. A missing or
unknown key, or a value that cannot work, raises a `ValueError` that names the key, the
value and a way out.
"""

from gpt1_jax.config.analysis_jobs import (
    DEFAULT_WORDS,
    FeaturesConfig,
    ReadingConfig,
    ReportConfig,
    SurprisalConfig,
    WordsConfig,
    ZeroShotConfig,
)
from gpt1_jax.config.job import JobConfig, check_encodable, make_model_config, places
from gpt1_jax.config.jobs import JOBS, load
from gpt1_jax.config.keep_at import UNITS as KEEP_AT_UNITS
from gpt1_jax.config.keep_at import Target
from gpt1_jax.config.model_jobs import ConvertConfig, GenerateConfig, PredictConfig
from gpt1_jax.config.model_section import KIND_NAMES, SIZES, ModelConfig
from gpt1_jax.config.saved import (
    adopt_older,
    flatten,
    load_saved,
    read_json,
    upgrade,
    without_local,
)
from gpt1_jax.config.sections import (
    ALL,
    BEST,
    DEFAULT,
    DEFAULT_SAMPLING,
    DTYPES,
    KEPT,
    NEWEST,
    CheckpointConfig,
    DataConfig,
    DistributedConfig,
    EvalConfig,
    LogConfig,
    MeshConfig,
    OptimizerConfig,
    SamplingConfig,
    TokenizerConfig,
    TrainConfig,
    check_step,
    compilation_cache,
    default_cache_dir,
    is_device,
)
from gpt1_jax.config.task_sections import (
    CustomTaskConfig,
    HeadConfig,
    TaskDataConfig,
    ZeroShotDataConfig,
)
from gpt1_jax.config.training_jobs import FinetuneConfig, PretrainConfig

__all__ = [
    "ALL",
    "BEST",
    "DEFAULT",
    "DEFAULT_SAMPLING",
    "DEFAULT_WORDS",
    "DTYPES",
    "JOBS",
    "KEEP_AT_UNITS",
    "KEPT",
    "KIND_NAMES",
    "NEWEST",
    "SIZES",
    "CheckpointConfig",
    "ConvertConfig",
    "CustomTaskConfig",
    "DataConfig",
    "DistributedConfig",
    "EvalConfig",
    "FeaturesConfig",
    "FinetuneConfig",
    "GenerateConfig",
    "HeadConfig",
    "JobConfig",
    "LogConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PredictConfig",
    "PretrainConfig",
    "ReadingConfig",
    "ReportConfig",
    "SamplingConfig",
    "SurprisalConfig",
    "Target",
    "TaskDataConfig",
    "TokenizerConfig",
    "TrainConfig",
    "WordsConfig",
    "ZeroShotConfig",
    "ZeroShotDataConfig",
    "adopt_older",
    "check_encodable",
    "check_step",
    "compilation_cache",
    "default_cache_dir",
    "flatten",
    "is_device",
    "load",
    "load_saved",
    "make_model_config",
    "places",
    "read_json",
    "upgrade",
    "without_local",
]
