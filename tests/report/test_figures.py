import io

import numpy as np
import pytest
from etils import epath

from gpt1_jax.report import figures
from gpt1_jax.runs.records import METRICS_FILE

TOKENS = ("the", "$a", "b$", "\n", "")


def png(figure):
    """The picture, drawn: labels that cannot be drawn would warn."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def texts(labels):
    return [label.get_text() for label in labels]


def random_maps(count, size=5):
    weights = np.tril(np.random.default_rng(0).random((count, size, size)))
    return weights / weights.sum(-1, keepdims=True)


def test_plot_is_a_picture_even_without_validation(tmp_path):
    (tmp_path / METRICS_FILE).write_text('{"step": 1, "loss": 2.5}\n')
    path = figures.plot_loss(epath.Path(tmp_path), "loss", "nats")
    assert path == epath.Path(tmp_path) / "plots" / "loss.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_bars_stand_beside_their_tokens_the_likeliest_on_top():
    figure = figures.next_token_bars([("a$b$", 0.5), ("\n", 0.25)], "after $x$")
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert texts(axes.get_yticklabels()) == ["a$b$", r"'\n'"]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.25]
    assert axes.yaxis_inverted() and axes.get_title() == "after $x$"


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 1), (5, 2)])
def test_attention_maps_have_a_square_for_each_head(count, rows):
    probs = random_maps(count)
    figure = figures.attention_maps(probs, TOKENS)
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
    figure = figures.attention_maps(probs, ["w"] * 40, ["first", "second"])
    first, second, *_ = figure.axes
    assert (first.get_title(), second.get_title()) == ("first", "second")
    png(figure)
    assert first.get_position().y0 > second.get_position().y1


def test_the_lowest_map_of_each_column_names_the_tokens():
    figure = figures.attention_maps(random_maps(6), TOKENS)
    named = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes[:6]]
    assert named == [False, False, True, True, True, True]


def test_layer_similarity_is_the_mean_cosine_of_the_tokens():
    states = np.asarray([[[1, 0], [0, 2]], [[3, 0], [5, 0]]], np.float32)
    figure = figures.layer_similarity(states)
    assert png(figure).startswith(b"\x89PNG")
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[1, 0.5], [0.5, 1]])
    assert texts(axes.texts) == ["1.00", "0.50", "0.50", "1.00"]
    assert texts(axes.get_xticklabels()) == ["embedding", "layer 1"]
