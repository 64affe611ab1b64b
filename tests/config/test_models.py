"""The configurations of the jobs that use a trained model."""

import pytest
from tiny_run import load_config

from gpt1_jax.config import load


def test_a_prediction_is_valid():
    values = load_config("", file="predict", init_from="run", text="a")
    config = load(values.to_dict())
    assert (config.job, config.batch_size) == ("predict", 64)


@pytest.mark.parametrize("job", ["predict", "generate", "convert"])
def test_a_model_has_to_be_named(job):
    values = load_config("run" if job == "convert" else "", file=job)
    with pytest.raises(ValueError, match=r"--config\.init_from="):
        load(values.to_dict())
