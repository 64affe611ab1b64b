"""Figures for notebooks, as drawn."""

import jax
import numpy as np
import pytest
from drawn import png, texts
from tiny_models import PAPER

from gpt1_jax.model.costs import num_params
from gpt1_jax.model.language_model import init_params
from gpt1_jax.report import notebook_figures


def test_bars_stand_beside_their_tokens_the_likeliest_on_top():
    figure = notebook_figures.next_token_bars(
        [("a$b$", 0.5), ("\n", 0.25)], "after $x$"
    )
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert texts(axes.get_yticklabels()) == ["a$b$", r"'\n'"]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.25]
    assert axes.yaxis_inverted() and axes.get_title() == "after $x$"


def test_tokens_per_word_are_shares_of_the_words():
    figure = notebook_figures.tokens_per_word([1, 1, 1, 2, 4, 1, 1, 1])
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    heights = {bar.get_x() + 0.4: bar.get_height() for bar in axes.patches}
    assert heights == pytest.approx({1: 0.75, 2: 0.125, 4: 0.125})
    assert axes.get_title() == "8 words, 1.50 tokens each"


TOKENS = ("the", "$a", "b$", "\n", "")


def random_maps(count, size=5):
    weights = np.tril(np.random.default_rng(0).random((count, size, size)))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 1), (5, 2)])
def test_attention_maps_have_a_square_for_each_head(count, rows):
    probs = random_maps(count)
    figure = notebook_figures.attention_maps(probs, TOKENS)
    assert png(figure).startswith(b"\x89PNG")
    maps = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert [axes.get_title() for axes in maps] == [
        f"head {i + 1}" for i in range(count)
    ]
    assert len({axes.get_subplotspec().rowspan.start for axes in maps}) == rows
    for axes, weights in zip(maps, probs, strict=True):
        shown = axes.images[0].get_array()
        np.testing.assert_array_equal(shown.filled(0), weights)
        np.testing.assert_array_equal(shown.mask, np.triu(np.ones((5, 5), bool), 1))
    labels = ["the", "$a", "b$", r"'\n'", "''"]
    assert texts(maps[0].get_yticklabels()) == labels
    assert texts(maps[-1].get_xticklabels()) == labels


def test_attention_maps_of_long_texts_stand_below_one_another():
    probs = random_maps(2, 40)
    figure = notebook_figures.attention_maps(probs, ["w"] * 40, ["first", "second"])
    first, second, *_ = figure.axes
    assert (first.get_title(), second.get_title()) == ("first", "second")
    png(figure)
    assert first.get_position().y0 > second.get_position().y1


def test_the_lowest_map_of_each_column_names_the_tokens():
    figure = notebook_figures.attention_maps(random_maps(6), TOKENS)
    named = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes[:6]]
    assert named == [False, False, True, True, True, True]


def test_layer_similarity_is_the_mean_cosine_of_the_tokens():
    states = np.asarray([[[1, 0], [0, 2]], [[3, 0], [5, 0]]], np.float32)
    figure = notebook_figures.layer_similarity(states)
    assert png(figure).startswith(b"\x89PNG")
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[1, 0.5], [0.5, 1]])
    assert texts(axes.texts) == ["1.00", "0.50", "0.50", "1.00"]
    assert texts(axes.get_xticklabels()) == ["embedding", "layer 1"]


def test_sentence_similarity_is_the_cosine_of_the_sentences():
    states = np.asarray([[1, 0], [3, 4], [0, -2]], np.float32)
    sentences = ["$x$ costs $1", "word " * 30, "short"]
    figure = notebook_figures.sentence_similarity(states, sentences)
    assert png(figure).startswith(b"\x89PNG")
    axes = figure.axes[0]
    expected = [[1, 0.6, 0], [0.6, 1, -0.8], [0, -0.8, 1]]
    np.testing.assert_allclose(axes.images[0].get_array(), expected, atol=1e-6)
    labels = texts(axes.get_yticklabels())
    assert labels[0] == "$x$ costs $1  1" and labels[2] == "short  3"
    assert labels[1].endswith("word …  2") and len(labels[1]) < 45
    assert texts(axes.get_xticklabels()) == ["1", "2", "3"]
    assert axes.images[0].get_clim() == pytest.approx((-0.8, 1))


def test_effects_are_coloured_by_sign_about_zero():
    effects = np.asarray([[0.5, -2, 0], [1, 0, -0.25]])
    figure = notebook_figures.effect_map(
        effects, ["embedding", "layer 1"], ["the", "$m$", " "], "nats"
    )
    assert png(figure).startswith(b"\x89PNG")
    axes, bar = figure.axes
    np.testing.assert_array_equal(axes.images[0].get_array(), effects)
    assert axes.images[0].get_clim() == (-2, 2) and bar.get_ylabel() == "nats"
    assert texts(axes.get_xticklabels()) == ["the", "$m$", "' '"]
    assert texts(axes.get_yticklabels()) == ["embedding", "layer 1"]
    assert texts(axes.texts)[:2] == ["0.50", "-2.00"]
    red, _, blue, _ = axes.images[0].to_rgba(1)
    assert red > blue
    nothing = notebook_figures.effect_map(np.zeros((1, 1)), ["layer 1"], ["a"], "nats")
    assert nothing.axes[0].images[0].get_clim() == (-1, 1)


def test_numbers_in_cells_can_be_read_on_their_colors():
    figure = notebook_figures.layer_similarity(np.eye(2, dtype=np.float32)[:, None])
    assert [text.get_color() for text in figure.axes[0].texts] == [
        "white",
        "black",
        "black",
        "white",
    ]


def test_parameters_by_component_have_a_bar_each():
    block = {"attn": np.ones(5), "ln_1": np.ones(2), "mlp": np.ones(10)}
    params = {"wte": np.ones((6, 4)), "wpe": np.ones(9), "h_0": block}
    figure = notebook_figures.parameters_by_component(params)
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [24, 9, 5, 10, 2]
    assert axes.get_title() == "50 parameters"
    assert texts(axes.texts)[0] == "24 (48.0%)"


def test_components_of_the_papers_model(tiny_model_config):
    config = tiny_model_config(**PAPER)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    sizes = notebook_figures.component_sizes(params)
    assert sizes == {
        "token embedding, also the output": 40_478 * 768,
        "position embedding": 512 * 768,
        "attention": 12 * (4 * 768**2 + 4 * 768),
        "MLP": 12 * (2 * 768 * 3072 + 3072 + 768),
        "LayerNorm": 12 * 4 * 768,
    }
    assert sum(sizes.values()) == num_params(config)
    head = {"kernel": params["wpe"], "bias": params["h_0"]["ln_1"]["bias"]}
    tuned = notebook_figures.component_sizes({"transformer": params, "head": head})
    assert tuned == {**sizes, "head": 513 * 768}


def test_components_of_an_lstm(tiny_model_config):
    config = tiny_model_config(**PAPER, kind="lstm", lstm_units=2048)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    assert notebook_figures.component_sizes(params) == {
        "token embedding, also the output": 40_478 * 768,
        "LSTM": 4 * 2048 * (768 + 2048 + 1) + 2048 * 768 + 768,
    }
