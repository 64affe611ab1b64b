"""The input of the first layer and the softmax's matrix, with embedding dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import LSTM, made_up_params, observe, random_tokens

from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import apply, init_params, logits
from gpt1_jax.ops.dropout import step_noise

apply_jitted = jax.jit(apply, static_argnums=0)


@pytest.mark.parametrize(
    ("embed_dropout_on", "softmax_rows", "rows"),
    [
        ("sum", "tokens", 97),
        ("sum", "tokens+positions", 97 + 16),
        ("lookups", "tokens+positions", 97 + 16),
        ("matrix", "tokens", 97),
    ],
)
def test_softmax_rows_are_tokens_then_positions(
    tiny, one_layer, embed_dropout_on, softmax_rows, rows
):
    tokens = random_tokens((2, 5))
    config = tiny(softmax_rows=softmax_rows, embed_dropout_on=embed_dropout_on)
    output = apply_jitted(config, one_layer, tokens)
    assert output.hidden.shape == (2, 5, 32)
    assert output.unembedding.shape == (rows, 32)
    scores = jax.eval_shape(lambda output: logits(config, output), output)
    assert scores.shape == (2, 5, rows)
    unembedding = np.asarray(output.unembedding)
    np.testing.assert_array_equal(unembedding[:97], one_layer["wte"])
    np.testing.assert_array_equal(unembedding[97:], one_layer["wpe"][: rows - 97])


@functools.partial(jax.jit, static_argnums=0)
def run(config, params, tokens, noise):
    """The input of the first block, and the matrix of the softmax."""
    how = Embedding(config, noise)
    return apply(config, params, tokens, how).unembedding, how.embedding


class Embedding(Execution):
    """Keeps the embedding."""

    def at(self, name, x, layer=None):
        x = super().at(name, x, layer)
        if name == "embedding":
            self.embedding = x
        return x


def embedded(config, params, tokens, noise):
    """h_0, the input of the first block, and the matrix of the softmax."""
    unembedding, h_0 = run(config, params, tokens, noise)
    return np.asarray(h_0), np.asarray(unembedding)


def test_embedding_is_the_sum_of_token_and_position_vector(
    tiny_model_config, tiny_params
):
    tokens = random_tokens((2, 9))
    h_0, _ = embedded(tiny_model_config(), tiny_params, tokens, None)
    wte, wpe = np.asarray(tiny_params["wte"]), np.asarray(tiny_params["wpe"])
    np.testing.assert_allclose(h_0, wte[tokens] + wpe[np.arange(9)], rtol=1e-6)


def constant_embeddings(tiny_params):
    """Token entries are 1 and position entries 2: sums tell what was dropped."""
    ones = np.ones_like
    return {
        **tiny_params,
        "wte": ones(tiny_params["wte"]),
        "wpe": 2 * ones(tiny_params["wpe"]),
    }


def test_embedding_dropout_on_sum_drops_token_and_position_together(
    tiny_model_config, tiny_params
):
    config = tiny_model_config(embed_dropout=0.5, embed_dropout_on="sum")
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = np.full((4, 16), 7)
    h_0, unembedding = embedded(config, params, tokens, noise)
    assert set(np.unique(h_0)) == {0.0, 6.0}
    assert len({row.tobytes() for row in h_0.reshape(-1, 32)}) == 64
    np.testing.assert_array_equal(unembedding, params["wte"])


def test_embedding_dropout_on_lookups_drops_the_two_vectors_apart(
    tiny_model_config, tiny_params
):
    config = tiny_model_config(embed_dropout=0.5, embed_dropout_on="lookups")
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = np.full((4, 16), 7)
    h_0, unembedding = embedded(config, params, tokens, noise)
    values, counts = np.unique(h_0, return_counts=True)
    assert values.tolist() == [0.0, 2.0, 4.0, 6.0]
    # Four equally likely outcomes: the two masks are independent of each other.
    assert np.abs(counts - h_0.size / 4).max() < 4 * np.sqrt(h_0.size * 3 / 16)
    assert len({row.tobytes() for row in (h_0 >= 4).reshape(-1, 32)}) == 64
    assert len({row.tobytes() for row in (h_0 % 4 == 2).reshape(-1, 32)}) == 64
    np.testing.assert_array_equal(unembedding, params["wte"])


def test_embedding_dropout_on_matrix_is_shared_by_lookup_and_softmax(
    tiny_model_config, tiny_params
):
    """A (row, dim) is dropped at every occurrence and in the logits (released code)."""
    config = tiny_model_config(
        embed_dropout=0.5,
        embed_dropout_on="matrix",
        softmax_rows="tokens+positions",
    )
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = np.array(random_tokens((4, 12)))
    tokens[:, 3], tokens[1, 5] = 7, 7
    h_0, unembedding = embedded(config, params, tokens, noise)
    assert set(np.unique(unembedding[:97])) == {0.0, 2.0}
    assert set(np.unique(unembedding[97:])) == {0.0, 4.0}
    dropped = (unembedding == 0).mean(-1)
    assert 0.4 < dropped.mean() < 0.6
    assert len({row.tobytes() for row in unembedding != 0}) == 97 + 16
    expected = unembedding[tokens] + unembedding[97 + np.arange(12)]
    np.testing.assert_array_equal(h_0, expected)


def test_embedding_dropout_on_matrix_stays_in_the_gradient(tiny, one_layer):
    """Dropped entries of the tied matrix get no gradient, kept ones do."""
    config = tiny(embed_dropout=0.5, embed_dropout_on="matrix")
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    gradient = observe(config, one_layer, tokens, noise).gradient
    _, unembedding = embedded(config, one_layer, tokens, noise)
    np.testing.assert_array_equal(np.asarray(gradient["wte"]) != 0, unembedding != 0)


# Without positions, in an LSTM


def test_without_positions_the_embedding_is_the_token_vector(tiny_model_config):
    tokens, config = random_tokens((2, 9)), tiny_model_config(**LSTM)
    params = made_up_params(init_params, config)
    h_0, unembedding = embedded(config, params, tokens, None)
    np.testing.assert_array_equal(h_0, params["wte"][tokens])
    np.testing.assert_array_equal(unembedding, params["wte"])


def test_without_positions_sum_and_lookups_are_the_same(tiny_model_config):
    """There is one vector to drop from; the matrix still is dropped as a whole."""
    tokens, noise = random_tokens((4, 16)), step_noise(0, jnp.int32(0), 4)
    params = made_up_params(init_params, tiny_model_config(**LSTM))
    on_sum, on_lookups, on_matrix = (
        embedded(
            tiny_model_config(**LSTM, embed_dropout_on=which), params, tokens, noise
        )[0]
        for which in ("sum", "lookups", "matrix")
    )
    np.testing.assert_array_equal(on_sum, on_lookups)
    assert 0.05 < (np.asarray(on_sum) == 0).mean() < 0.15
    assert (np.asarray(on_matrix) != on_sum).any()
