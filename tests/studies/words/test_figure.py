"""What the figures of surprisal show."""

import numpy as np
from drawn import png, texts

from gpt1_jax.studies.words.figure import surprisal_by_step, surprisal_of_words


def test_surprisal_stands_above_its_words():
    words, bits = ["The", "$5", "“cat”"], [3.0, 12.5, 0.0]
    figure = surprisal_of_words(words, bits)
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert texts(axes.get_xticklabels()) == words
    assert [bar.get_height() for bar in axes.patches] == bits


def test_surprisal_by_step_has_a_column_for_each_step():
    bits = [[4.0, 12.25], [3.0, 10.0]]
    figure = surprisal_by_step(["$a$", " b\n"], bits, [500, 1000], means=[8.0, 7.5])
    assert png(figure).startswith(b"\x89PNG")
    above, below, *_ = figure.axes
    np.testing.assert_array_equal(above.lines[0].get_ydata(), [8.0, 7.5])
    np.testing.assert_array_equal(below.images[0].get_array(), [[4, 3], [12.25, 10]])
    assert texts(below.get_yticklabels()) == ["$a$", "b"]
    assert texts(below.get_xticklabels()) == ["500", "1,000"]
