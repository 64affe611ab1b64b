"""What the configurations of the jobs that look inside a model share."""

import pytest

from gpt1_jax.config.analysis_jobs import AnalysisConfig

VALID = dict(
    job="surprisal",
    preset="",
    init_from="run",
    step="newest",
    dtype="",
    compilation_cache_dir="",
)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"init_from": ""}, "--config.init_from=runs/pretrain/NAME"),
        ({"dtype": "float16"}, "config.dtype='float16'.*bfloat16"),
    ],
)
def test_impossible_values_are_refused_by_name(overrides, problem):
    AnalysisConfig(**VALID)
    with pytest.raises(ValueError, match=problem):
        AnalysisConfig(**{**VALID, **overrides})
