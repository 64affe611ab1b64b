"""What tests of the model share."""

import jax
import numpy as np
import pytest
from tiny_models import made_up_params

from gpt1_jax.model.language_model import init_params


def perturbed_params(config):
    """Like initial ones, but for gains of 1 +- 0.1 and biases of 0.02; from NumPy."""
    rng = np.random.default_rng(0)

    def perturb(path, leaf):
        size = {"scale": 0.1, "bias": 0.02}.get(path[-1].key, 0.0)
        return leaf + np.float32(size) * rng.normal(size=leaf.shape).astype(leaf.dtype)

    return jax.tree.map_with_path(perturb, made_up_params(init_params, config))


@pytest.fixture(scope="session")
def tiny_params(tiny_model_config):
    """Parameters of `tiny_model_config()` whose gains and biases are not 1 and 0."""
    return perturbed_params(tiny_model_config())


@pytest.fixture(scope="session")
def one_layer(tiny):
    """The same of `tiny()`."""
    return perturbed_params(tiny())
