"""What tests of the model share."""

import jax
import pytest
from tiny_models import perturbed

from gpt1_jax.model.language_model import init_params


@pytest.fixture(scope="session")
def tiny_params(tiny_model_config):
    """Parameters of `tiny_model_config()` whose gains and biases are not 1 and 0."""
    config = tiny_model_config()
    return jax.jit(lambda: perturbed(init_params(config, jax.random.key(0))))()
