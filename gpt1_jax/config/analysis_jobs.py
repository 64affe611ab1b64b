"""The typed configurations of the jobs that look inside a trained model."""

import dataclasses

from gpt1_jax.config.job import JobConfig
from gpt1_jax.config.sections import DTYPES, one_of, require


@dataclasses.dataclass(frozen=True)
class AnalysisConfig(JobConfig):
    """What these jobs have in common: the model they look into."""

    init_from: str
    step: str
    dtype: str
    compilation_cache_dir: str

    def __post_init__(self):
        require(
            bool(self.init_from),
            "Name the run to look into with --config.init_from=runs/pretrain/NAME.",
        )
        one_of("dtype", self.dtype, ("", *DTYPES))
