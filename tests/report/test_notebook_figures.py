"""Figures for notebooks, as drawn."""

import jax
import numpy as np
from drawn import drawn_axes, texts
from tiny_models import PAPER

from gpt1_jax.model.costs import num_params
from gpt1_jax.model.language_model import init_params
from gpt1_jax.report import notebook_figures


def test_attention_maps_have_a_square_for_each_head():
    probs = np.tril(np.random.default_rng(0).random((5, 5, 5)))
    tokens = ("the", "$a", "b$", "\n", "")
    found = drawn_axes(notebook_figures.attention_maps(probs, tokens))
    maps = [axes for axes in found if axes.images and axes.get_title()]
    assert texts(axes.title for axes in maps) == [f"head {n}" for n in range(1, 6)]
    for axes, weights in zip(maps, probs, strict=True):
        shown = axes.images[0].get_array()
        np.testing.assert_array_equal(shown.filled(0), weights)
        np.testing.assert_array_equal(shown.mask, np.triu(np.ones((5, 5), bool), 1))
    labels = ["the", "$a", "b$", r"'\n'", "''"]
    assert texts(maps[0].get_yticklabels()) == labels
    assert texts(maps[-1].get_xticklabels()) == labels


def test_layer_similarity_is_the_mean_cosine_of_the_tokens():
    states = np.asarray([[[1, 0], [0, 2]], [[3, 0], [5, 0]]], np.float32)
    axes, *_ = drawn_axes(notebook_figures.layer_similarity(states))
    np.testing.assert_allclose(axes.images[0].get_array(), [[1, 0.5], [0.5, 1]])
    assert texts(axes.texts) == ["1.00", "0.50", "0.50", "1.00"]
    assert texts(axes.get_xticklabels()) == ["embedding", "layer 1"]


def test_sentence_similarity_is_the_cosine_of_the_sentences():
    states = np.asarray([[1, 0], [3, 4], [0, -2]], np.float32)
    sentences = ["$x$ costs $1", "word " * 30, "short"]
    axes, *_ = drawn_axes(notebook_figures.sentence_similarity(states, sentences))
    expected = [[1, 0.6, 0], [0.6, 1, -0.8], [0, -0.8, 1]]
    np.testing.assert_allclose(axes.images[0].get_array(), expected, atol=1e-6)
    first, _, third = texts(axes.get_yticklabels())
    assert (first, third) == ("$x$ costs $1  1", "short  3")


def test_components_of_the_papers_model(tiny_model_config):
    """Here of two of its layers."""
    sized = {**PAPER, "num_layers": 2}

    def params_of(**values):
        config = tiny_model_config(**sized, **values)
        return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))

    params = params_of()
    sizes = notebook_figures.component_sizes(params)
    assert sizes == {
        "token embedding, also the output": 40_478 * 768,
        "position embedding": 512 * 768,
        "attention": 2 * (4 * 768**2 + 4 * 768),
        "MLP": 2 * (2 * 768 * 3072 + 3072 + 768),
        "LayerNorm": 2 * 4 * 768,
    }
    assert sum(sizes.values()) == num_params(tiny_model_config(**sized))
    lstm = params_of(kind="lstm", lstm_units=2048)
    found = notebook_figures.component_sizes(lstm)
    assert found["LSTM"] == 4 * 2048 * (768 + 2048 + 1) + 2048 * 768 + 768
    head = {"kernel": params["wpe"], "bias": params["h_0"]["ln_1"]["bias"]}
    tuned = notebook_figures.component_sizes({"transformer": params, "head": head})
    assert tuned == {**sizes, "head": 513 * 768}
