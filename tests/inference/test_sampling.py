"""Samples keep the prompt and follow the model."""

import jax
import numpy as np
import pytest
from tiny_models import all_logits

from gpt1_jax.inference.sampling import make_sampler
from gpt1_jax.model import language_model


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config(max_seq_len=10)


@pytest.fixture(scope="module")
def params(model):
    """Large embeddings: probabilities differ from token to token."""
    params = language_model.init_params(model, jax.random.key(0))
    return {**params, "wte": 20 * params["wte"]}


def prompt():
    tokens = np.zeros((1, 10), np.int32)
    tokens[0, :3] = [5, 6, 7]
    return tokens


def test_samples_keep_the_prompt_and_follow_the_model(model, params):
    greedy = make_sampler(model, temperature=1.0, top_k=1)
    sampled = np.asarray(greedy(params, prompt(), 3, jax.random.key(0)))
    assert sampled[0, :3].tolist() == [5, 6, 7]
    expected = np.asarray(all_logits(model, params, sampled)).argmax(-1)[0, 2:-1]
    assert sampled[0, 3:].tolist() == expected.tolist()


def test_samples_are_a_function_of_the_key(model, params):
    sample = make_sampler(model, temperature=1.0, top_k=0)
    one, again, other = (
        np.asarray(sample(params, prompt(), 3, jax.random.key(seed)))
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def next_tokens(model, params, temperature, top_k, number=300):
    """The token drawn after the prompt, by many keys; and the model's scores of it."""
    sample = make_sampler(model, temperature, top_k)
    keys = jax.random.split(jax.random.key(0), number)
    tokens = prompt()[:, :4]
    drawn = jax.lax.map(lambda key: sample(params, tokens, 3, key)[0, 3], keys)
    scores = all_logits(model, params, prompt()[:, :3])
    return np.asarray(drawn), np.asarray(scores)[0, 2]


def test_top_k_draws_from_the_most_likely_tokens(model, params):
    drawn, scores = next_tokens(model, params, temperature=3.0, top_k=4)
    assert set(drawn) == set(np.argsort(scores)[-4:])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_samples_have_the_probabilities_of_the_tempered_softmax(
    model, params, temperature
):
    drawn, scores = next_tokens(model, params, temperature, top_k=0)
    probabilities = np.asarray(jax.nn.softmax(scores / temperature))
    likely = np.argsort(probabilities)[-5:]
    share, expected = np.isin(drawn, likely).mean(), probabilities[likely].sum()
    assert 0.02 < expected < 1.0
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / 300) + 1e-3


def test_only_tokens_of_the_vocabulary_are_drawn(tiny_model_config, params):
    """Positions may have rows in the softmax; they are never sampled."""
    model = tiny_model_config(max_seq_len=10, softmax_rows="tokens+positions")
    large = {**params, "wpe": 100 * params["wpe"]}
    drawn, scores = next_tokens(model, large, temperature=5.0, top_k=0)
    assert scores.shape == (97 + 10,)
    assert drawn.max() < 97
