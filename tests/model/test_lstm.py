"""The LSTM: its parameters, dropout and states; see also test_language_model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    PAPER,
    flat_params,
    hidden_states,
    random_tokens,
    record_dropout,
)

from gpt1_jax.inference.cache import init_cache
from gpt1_jax.model import interventions
from gpt1_jax.model.language_model import init_params


@pytest.fixture
def config(moving_lstm):
    return moving_lstm[0]


def test_param_tree_at_paper_size(tiny_model_config):
    config = tiny_model_config(**PAPER, kind="lstm", lstm_units=2048)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    flat = flat_params(params)
    assert {name: leaf.shape for name, leaf in flat.items()} == {
        "wte": (40478, 768),
        "h_0/lstm/c_input/kernel": (768, 8192),
        "h_0/lstm/c_input/bias": (8192,),
        "h_0/lstm/c_hidden/kernel": (2048, 8192),
        "h_0/lstm/c_proj/kernel": (2048, 768),
        "h_0/lstm/c_proj/bias": (768,),
    }
    assert {leaf.dtype for leaf in flat.values()} == {jnp.dtype("float32")}
    assert type(params["h_0"]["lstm"]["c_input"]) is dict


def test_init_params_opens_the_forget_gate(config):
    """Kernels by their inputs, biases 0 but for the second quarter of the gates'."""
    config = dataclasses.replace(config, embed_dim=64, lstm_units=100)
    params = flat_params(init_params(config, jax.random.key(0)))
    gates = np.asarray(params.pop("h_0/lstm/c_input/bias")).reshape(4, 100)
    np.testing.assert_array_equal(gates, [[0] * 100, [1] * 100, [0] * 100, [0] * 100])
    for name, leaf in params.items():
        values = np.asarray(leaf)
        if name.endswith("bias"):
            assert (values == 0).all(), name
        else:
            expected = 0.02 if name == "wte" else len(values) ** -0.5
            sigmas = 5 / np.sqrt(2 * values.size)
            assert values.std() == pytest.approx(expected, rel=sigmas), name


def test_dropout_acts_on_the_embedding_and_on_the_output(monkeypatch, config):
    config = dataclasses.replace(config, embed_dropout=0.2, resid_dropout=0.4)
    calls = record_dropout(monkeypatch, config, random_tokens((4, 8)))
    assert calls == [(0, 0.2, (4, 8, 32)), (1, 0.4, (4, 8, 24))]


def test_a_cache_does_not_grow_with_its_places(config):
    padding = jnp.zeros(4, jnp.int32)
    for size in (1, 19):
        layers = init_cache(config, padding, size=size).layers
        assert jax.tree.map(jnp.shape, layers) == (((4, 24), (4, 24)),)


def test_hidden_states_are_the_embedding_and_the_last(moving_lstm):
    (config, params), tokens = moving_lstm, random_tokens()
    states = jax.jit(interventions.hidden_states, static_argnums=0)
    first, last = states(config, params, tokens)
    np.testing.assert_array_equal(first, np.asarray(params["wte"])[tokens])
    expected = hidden_states(config, params, tokens)
    np.testing.assert_allclose(last, expected, atol=1e-6)


def test_attention_is_refused(moving_lstm):
    with pytest.raises(ValueError, match=r"no attention maps: .*kind='lstm'"):
        interventions.attention(*moving_lstm, random_tokens())
