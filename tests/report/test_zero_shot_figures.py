"""Figure 2 (right), as drawn."""

import pytest
from drawn import png, texts

from gpt1_jax.report import zero_shot_figures
from gpt1_jax.report.zero_shot import Curve


@pytest.mark.parametrize("steps", [[3000], [100, 1000, 10000]])
def test_zero_shot_scores_have_a_line_for_each_task(steps):
    count = len(steps)
    curves = [
        Curve(title, steps, [0.1 * k] * count, [0.05] * count)
        for k, title in enumerate(("CoLA", "SST-2"))
    ]
    figure = zero_shot_figures.relative_scores(curves)
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert len(axes.containers) == 2
    if count == 1:
        assert texts(axes.get_yticklabels()) == ["CoLA", "SST-2"]
        assert axes.yaxis_inverted() and "3,000" in axes.get_title()
    else:
        assert axes.get_xscale() == "log"
        assert texts(axes.get_xticklabels()) == ["100", "1,000", "10,000"]
        assert texts(figure.legends[0].get_texts()) == ["CoLA", "SST-2"]
