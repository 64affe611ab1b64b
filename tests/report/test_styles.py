"""Figures in a light and a dark style."""

import matplotlib
import pytest

from gpt1_jax.report.figures import new_figure
from gpt1_jax.report.styles import DARK, LIGHT, drawn


def figure():
    figure = new_figure(2, 2)
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4])
    axes.set_title("title")
    return figure


@pytest.mark.parametrize("kind", ["svg", "png"])
@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_a_figure_is_drawn_to_the_same_bytes(style, kind):
    assert drawn(figure, style, kind) == drawn(figure, style, kind)


def test_the_styles_differ_and_leave_no_trace():
    before = dict(matplotlib.rcParams)
    light, dark = (drawn(figure, style, "svg").decode() for style in (LIGHT, DARK))
    assert "#ffffff" in light and "#16191d" in dark and "#ffffff" not in dark
    assert "#6cb6ff" in dark  # the first line's colour
    assert dict(matplotlib.rcParams) == before


def luminance(color):
    """WCAG 2, relative luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("style", [LIGHT, DARK])
@pytest.mark.parametrize(
    ("part", "least"), [("text.color", 7.0), ("xtick.color", 3.0)], ids=str
)
def test_contrast_is_enough(style, part, least):
    """WCAG 2: 7 for text at level AAA, 3 for lines that carry meaning."""
    darker, lighter = sorted(map(luminance, (style["figure.facecolor"], style[part])))
    assert (lighter + 0.05) / (darker + 0.05) >= least
