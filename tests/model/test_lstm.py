"""The LSTM: its parameters, dropout, padding, cache and states."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up_batches import made_up_batch, unpadded
from tiny_models import (
    LSTM,
    PAPER,
    all_logits,
    count_params,
    flat_params,
    forward,
    hidden_states,
    observe,
    random_tokens,
    record_dropout,
    with_moving_gates,
)

from gpt1_jax.finetuning.unpad import Unpadded, make_unpadding, pad
from gpt1_jax.inference.cache import decode, init_cache
from gpt1_jax.model import interventions, language_model
from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import apply, init_params
from gpt1_jax.ops.dropout import step_noise

DROPOUT = dict(embed_dropout=0.2, resid_dropout=0.4)


@pytest.fixture(scope="module")
def config(tiny_model_config):
    return tiny_model_config(**LSTM)


@pytest.fixture(scope="module")
def params(config):
    initial = jax.jit(lambda key: with_moving_gates(init_params(config, key)))
    return initial(jax.random.key(0))


# Parameters


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
    lstm_alone = 4 * 2048 * (768 + 2048 + 1)
    assert count_params(params) == 40478 * 768 + lstm_alone + 2048 * 768 + 768


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


# Values


def test_at_first_the_state_is_neither_lost_nor_saturated(tiny_model_config):
    """Whatever the sizes: the units differ by token, and none is at its limit."""
    for width, units in ((32, 80), (128, 340)):
        config = tiny_model_config(
            kind="lstm", embed_dim=width, lstm_units=units, vocab_size=500
        )
        params = init_params(config, jax.random.key(0))
        hidden = hidden_states(config, params, random_tokens((8, 16), 500))
        assert 0.02 < float(hidden[:, 8:].std()) < 0.3, (width, units)


def test_the_future_and_the_neighbours_are_not_seen(config, params):
    """And all of the past is."""
    tokens = random_tokens()
    before = all_logits(config, params, tokens)
    later = all_logits(config, params, tokens.at[:, 9:].set(0))
    np.testing.assert_array_equal(before[:, :9], later[:, :9])
    first = all_logits(config, params, tokens.at[:, 0].set((tokens[:, 0] + 1) % 97))
    assert np.abs(before - first).max(-1).min() > 1e-6
    others = all_logits(config, params, tokens.at[1:].set(0))
    np.testing.assert_array_equal(before[0], others[0])


def test_too_long_sequences_are_refused(config, params):
    with pytest.raises(ValueError, match=r"17 positions .* max_seq_len=16"):
        apply(config, params, random_tokens((1, 17)))


def test_bfloat16_stays_close_to_float32(config, params):
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    exact, rough = (
        observe(dataclasses.replace(config, dtype=dtype), params, tokens, noise)
        for dtype in ("float32", "bfloat16")
    )
    assert (exact.hidden.dtype, rough.hidden.dtype) == ("float32", "bfloat16")
    assert {g.dtype for g in jax.tree.leaves(rough.gradient)} == {jnp.dtype("float32")}
    error = np.linalg.norm(rough.logits - exact.logits) / np.linalg.norm(exact.logits)
    assert 1e-4 < error < 0.02
    gradient = flat_params(rough.gradient)
    for name, leaf in flat_params(exact.gradient).items():
        error = np.linalg.norm(gradient[name] - leaf)
        assert error < 0.05 * np.linalg.norm(leaf), name


# Dropout


def test_dropout_acts_on_the_embedding_and_on_the_output(monkeypatch, config):
    config = dataclasses.replace(config, **DROPOUT)
    calls = record_dropout(monkeypatch, config, random_tokens((4, 8)))
    assert calls == [(0, 0.2, (4, 8, 32)), (1, 0.4, (4, 8, 24))]


def test_zero_rates_equal_no_noise(config, params):
    rates, tokens = dict(embed_dropout=0.0, resid_dropout=0.0), random_tokens()
    noise = step_noise(0, jnp.int32(0), 4)
    clean = hidden_states(config, params, tokens)
    without = dataclasses.replace(config, **rates)
    found = hidden_states(without, params, tokens, noise)
    np.testing.assert_array_equal(found, clean)
    assert np.abs(hidden_states(config, params, tokens, noise) - clean).max() > 0.01


@pytest.mark.parametrize("dropout", [False, True])
def test_padding_removal_changes_no_state(config, params, dropout):
    """Padded behind or left out, the masks are those of the padded batch."""
    batch = made_up_batch(config, (6, 1, 12), 2)
    tokens, lengths = batch.tokens[:, 0], jnp.asarray(batch.lengths[:, 0])
    noise = step_noise(0, jnp.int32(3), 6) if dropout else None

    @jax.jit
    def both(params, noise):
        indices = jnp.asarray(unpadded(batch, 2).real_indices)
        unpadding = make_unpadding(indices, lengths, 12)
        how = Unpadded(config, noise, unpadding)
        padded = apply(config, params, tokens, Execution(config, noise)).hidden
        hidden = apply(config, params, tokens, how).hidden
        assert hidden.shape[:2] == indices.shape
        return padded, pad(hidden, unpadding)

    padded, whole = map(np.asarray, both(params, noise))
    real = np.arange(12) < batch.lengths
    np.testing.assert_allclose(whole[real], padded[real], atol=1e-6)


# Cache and states


def test_reading_on_from_a_cache_gives_the_same_logits(config, params):
    """Behind padding too; and what is kept does not grow."""
    tokens = random_tokens()
    _, expected = forward(config, params, tokens)
    padding = np.array([0, 3, 2, 0], np.int32)
    padded = np.zeros((4, 19), np.int32)
    for row, first, real in zip(padded, padding, tokens, strict=True):
        row[first : first + 16] = real
    read_on = jax.jit(decode, static_argnums=0)
    caches = [init_cache(config, jnp.asarray(padding), size=size) for size in (19, 1)]
    cache, other = (jax.tree.map(jnp.shape, cache.layers) for cache in caches)
    assert cache == other == (((4, 24), (4, 24)),)
    cache, found = caches[0], []
    for part in jnp.split(padded, [1, 2, 8, 9], axis=1):
        output, cache = read_on(config, params, part, cache)
        found.append(language_model.logits(config, output))
    assert cache.taken == 19
    for row, first, real in zip(np.hstack(found), padding, expected, strict=True):
        np.testing.assert_allclose(row[first : first + 16], real, atol=1e-5)


def test_hidden_states_are_the_embedding_and_the_last(config, params):
    tokens = random_tokens()
    first, last = interventions.hidden_states(config, params, tokens)
    np.testing.assert_array_equal(first, params["wte"][tokens])
    expected = hidden_states(config, params, tokens)
    np.testing.assert_allclose(last, expected, atol=1e-6)


def test_attention_is_refused(config, params):
    with pytest.raises(ValueError, match=r"no attention maps: .*kind='lstm'"):
        interventions.attention(config, params, random_tokens())
