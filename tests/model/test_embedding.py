"""The input of the first layer and the softmax's matrix, with embedding dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import LSTM, drawn_params, observe, random_tokens

from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import apply, logits
from gpt1_jax.ops.dropout import step_noise


@pytest.mark.parametrize(
    ("softmax_rows", "rows"), [("tokens", 97), ("tokens+positions", 97 + 16)]
)
def test_softmax_rows_are_tokens_then_positions(tiny, one_layer, softmax_rows, rows):
    config = tiny(softmax_rows=softmax_rows)
    apply_jitted = jax.jit(apply, static_argnums=0)
    output = apply_jitted(config, one_layer, random_tokens((2, 5)))
    both = np.concatenate([one_layer["wte"], one_layer["wpe"]])
    np.testing.assert_array_equal(output.unembedding, both[:rows])
    scores = jax.eval_shape(lambda output: logits(config, output), output)
    assert scores.shape == (2, 5, rows)


class Embedding(Execution):
    """Keeps the embedding."""

    def at(self, name, x, layer=None):
        x = super().at(name, x, layer)
        if name == "embedding":
            self.embedding = x
        return x


@functools.partial(jax.jit, static_argnums=0)
def embedded(config, params, tokens, noise=None):
    """h_0, the input of the first block, and the matrix of the softmax."""
    how = Embedding(config, noise)
    unembedding = apply(config, params, tokens, how).unembedding
    return how.embedding, unembedding


def test_embedding_is_the_sum_of_token_and_position_vector(tiny, one_layer):
    tokens = random_tokens((2, 9))
    h_0, _ = embedded(tiny(), one_layer, tokens)
    wte, wpe = one_layer["wte"], one_layer["wpe"]
    np.testing.assert_allclose(h_0, wte[tokens] + wpe[np.arange(9)], rtol=1e-6)


@pytest.fixture
def masked(tiny, one_layer):
    """`masked(on, tokens)`: `embedded` of token entries 1 and positions' 2, by NumPy.

    Sums tell what was dropped.
    """
    ones = {name: np.ones_like(one_layer[name]) for name in ("wte", "wpe")}
    params = {**one_layer, "wte": ones["wte"], "wpe": 2 * ones["wpe"]}

    def masked(on, tokens, **ways):
        config = tiny(embed_dropout=0.5, embed_dropout_on=on, **ways)
        noise = step_noise(0, jnp.int32(0), 4)
        return map(np.asarray, embedded(config, params, tokens, noise))

    return masked


def test_embedding_dropout_on_sum_drops_token_and_position_together(masked):
    h_0, unembedding = masked("sum", np.full((4, 16), 7))
    assert set(np.unique(h_0)) == {0.0, 6.0}
    assert len({row.tobytes() for row in h_0.reshape(-1, 32)}) == 64
    assert (unembedding == 1).all()


def test_embedding_dropout_on_lookups_drops_the_two_vectors_apart(masked):
    h_0, unembedding = masked("lookups", np.full((4, 16), 7))
    values, counts = np.unique(h_0, return_counts=True)
    assert values.tolist() == [0.0, 2.0, 4.0, 6.0]
    # Four equally likely outcomes: the two masks are independent of each other.
    assert np.abs(counts - h_0.size / 4).max() < 4 * np.sqrt(h_0.size * 3 / 16)
    assert len({row.tobytes() for row in (h_0 >= 4).reshape(-1, 32)}) == 64
    assert len({row.tobytes() for row in (h_0 % 4 == 2).reshape(-1, 32)}) == 64
    assert (unembedding == 1).all()


def test_embedding_dropout_on_matrix_is_shared_by_lookup_and_softmax(masked):
    """A (row, dim) is dropped at every occurrence and in the logits (released code)."""
    tokens = np.array(random_tokens((4, 12)))
    tokens[:, 3], tokens[1, 5] = 7, 7
    h_0, unembedding = masked("matrix", tokens, softmax_rows="tokens+positions")
    assert set(np.unique(unembedding[:97])) == {0.0, 2.0}
    assert set(np.unique(unembedding[97:])) == {0.0, 4.0}
    assert 0.4 < (unembedding == 0).mean() < 0.6
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


def test_without_positions_sum_and_lookups_are_the_same(tiny_model_config):
    """In an LSTM there is one vector to drop from; the matrix is dropped as a whole."""
    tokens, noise = random_tokens((4, 16)), step_noise(0, jnp.int32(0), 4)
    params = drawn_params(tiny_model_config(**LSTM))
    on_sum, on_lookups, on_matrix = (
        embedded(
            tiny_model_config(**LSTM, embed_dropout_on=which), params, tokens, noise
        )[0]
        for which in ("sum", "lookups", "matrix")
    )
    np.testing.assert_array_equal(on_sum, on_lookups)
    assert 0.05 < (on_sum == 0).mean() < 0.15
    assert (on_matrix != on_sum).any()
