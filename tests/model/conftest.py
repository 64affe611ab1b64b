"""What tests of the model share."""

import jax
import pytest
from tiny_models import LSTM, PAPER, drawn_params, with_moving_gates

from gpt1_jax.model.language_model import init_params


@pytest.fixture(scope="session")
def tiny_params(tiny_model_config):
    """Parameters of `tiny_model_config()` whose gains and biases are not 1 and 0."""
    return drawn_params(tiny_model_config())


@pytest.fixture(scope="session")
def one_layer(tiny):
    """The same of `tiny()`."""
    return drawn_params(tiny())


@pytest.fixture(scope="session")
def paper_params(tiny_model_config):
    """The shapes of the parameters at the paper's size."""
    config = tiny_model_config(**PAPER)
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


@pytest.fixture(scope="session")
def moving_lstm(tiny_model_config):
    """(config, params) of an LSTM whose gates open and shut."""
    config = tiny_model_config(**LSTM)
    initial = jax.jit(lambda key: with_moving_gates(init_params(config, key)))
    return config, initial(jax.random.key(0))


@pytest.fixture(params=["transformer", "lstm"])
def either(request, tiny_model_config, tiny_params, moving_lstm):
    """(config, params) of a model of each kind."""
    transformer = tiny_model_config(), tiny_params
    return {"transformer": transformer, "lstm": moving_lstm}[request.param]
