"""What tests of the model share."""

import jax
import numpy as np
import pytest
from tiny_models import LSTM, drawn_params


@pytest.fixture(scope="session")
def tiny_params(tiny_model_config):
    """Parameters of `tiny_model_config()` whose gains and biases are not 1 and 0."""
    return drawn_params(tiny_model_config())


@pytest.fixture(scope="session")
def one_layer(tiny):
    """The same of `tiny()`."""
    return drawn_params(tiny())


@pytest.fixture(scope="session")
def moving_lstm(tiny_model_config):
    """(config, params) of an LSTM whose gates open and shut."""
    config, larger = tiny_model_config(**LSTM), {"kernel": 2, "wte": 5}
    params = jax.tree.map_with_path(
        lambda path, leaf: leaf * larger.get(path[-1].key, 1), drawn_params(config)
    )
    forget = np.repeat(np.float32([0, 1, 0, 0]), config.lstm_units)
    params["h_0"]["lstm"]["c_input"]["bias"] += forget  # as at first
    return config, params


@pytest.fixture(params=["transformer", "lstm"])
def either(request, tiny_model_config, tiny_params, moving_lstm):
    """(config, params) of a model of each kind."""
    transformer = tiny_model_config(), tiny_params
    return {"transformer": transformer, "lstm": moving_lstm}[request.param]
