"""What the figures of surprisal show."""

import itertools

import numpy as np
import pytest
from drawn import png, texts

from gpt1_jax.studies.words.figure import surprisal_by_step, surprisal_of_words


def test_surprisal_stands_above_its_words():
    words, bits = ["The", "$5", "“cat”"], [3.0, 12.5, 0.0]
    figure = surprisal_of_words(words, bits)
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert texts(axes.get_xticklabels()) == words
    assert [bar.get_height() for bar in axes.patches] == bits
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert axes.get_xticks().tolist() == pytest.approx(middles)


def test_surprisal_of_a_long_sentence_takes_several_rows_of_one_scale():
    words = [f"word{i}" for i in range(40)]
    figure = surprisal_of_words(words, list(range(40)))
    png(figure)
    rows = [texts(axes.get_xticklabels()) for axes in figure.axes]
    assert len(rows) == 3 and [word for row in rows for word in row] == words
    assert len({(axes.get_ylim(), axes.get_xlim()) for axes in figure.axes}) == 1
    assert figure.get_figwidth() < 13
    figure = surprisal_of_words(["a", "b" * 150, "c"], [1, 2, 3])  # wider than a row
    assert [len(axes.patches) for axes in figure.axes] == [1, 1, 1]


def test_surprisal_by_step_has_a_column_for_each_step():
    bits = [[4.0, 12.25], [3.0, 10.0]]
    figure = surprisal_by_step(["$a$", " b\n"], bits, [500, 1000], means=[8.0, 7.5])
    assert png(figure).startswith(b"\x89PNG")
    above, below, *_ = figure.axes
    np.testing.assert_array_equal(above.lines[0].get_ydata(), [8.0, 7.5])
    assert above.get_ylim()[0] == 0  # a small difference looks small
    assert texts(above.texts) == ["8.00", "7.50"]
    np.testing.assert_array_equal(below.images[0].get_array(), [[4, 3], [12.25, 10]])
    assert texts(below.texts) == ["4.0", "3.0", "12.2", "10.0"]
    assert texts(below.get_yticklabels()) == ["$a$", "b"]
    assert texts(below.get_xticklabels()) == ["500", "1,000"]


def test_a_line_stands_between_items():
    words, items = ["a", "b", "c", "d"], [1, 1, 2, 2]
    (axes,) = surprisal_of_words(words, [1.0] * 4, items).axes
    (line,) = axes.lines
    left, right = axes.patches[1], axes.patches[2]
    assert left.get_x() + left.get_width() < line.get_xdata()[0] < right.get_x()
    figure = surprisal_by_step(words, [[1.0] * 4] * 2, [1, 2], [1.0, 1.0], items)
    (line,) = figure.axes[1].lines
    assert [*line.get_ydata()] == [1.5, 1.5]


def test_many_steps_have_no_numbers_and_labels_that_do_not_touch():
    steps = range(0, 50_000, 250)
    figure = surprisal_by_step(["a"] * 9, [[1.0] * 9] * 200, steps, [1.0] * 200)
    png(figure)
    axes = figure.axes[1]
    labels = axes.get_xticklabels()
    assert texts(labels)[-1] == "49,750" and not texts(axes.texts)
    boxes = [label.get_window_extent() for label in labels]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert figure.get_figwidth() < 12
