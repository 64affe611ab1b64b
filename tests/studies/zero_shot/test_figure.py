"""What the figure of zero-shot scores shows."""

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from drawn import png, texts
from gpt1_jax.studies.zero_shot.figure import relative_scores
from matplotlib.colors import to_rgba

TEN = [m * 10**k for k in (3, 4, 5) for m in (1, 2, 5)] + [10**6]
TITLES = ("CoLA", "SST-2", "RACE")


def curves(steps, name="Transformer", is_baseline=False, titles=TITLES):
    """Scores of each task: 0.1, 0.2, ... at the first step, rising by 0.01."""
    rows = [
        (name, is_baseline, title, step, 0.1 * (k + 1) + 0.01 * n, 0.05)
        for k, title in enumerate(titles)
        for n, step in enumerate(steps)
    ]
    columns = ["run", "is_baseline", "task", "step"]
    columns += ["relative", "relative_standard_error"]
    return pd.DataFrame(rows, columns=columns)


def both(ours, theirs):
    """The figure of a run and a baseline."""
    return relative_scores(pd.concat([ours, theirs]))


def lines(figure):
    """The data line of each curve, in order."""
    return [container.lines[0] for container in figure.axes[0].containers]


def legends(figure):
    return [texts(legend.get_texts()) for legend in figure.legends]


def test_each_task_has_a_line_with_its_scores_and_errors():
    figure = relative_scores(curves([100, 1000, 10000]))
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    for number, container in enumerate(axes.containers):
        line, _, (bars,) = container.lines
        first = 0.1 * (number + 1)
        expected = [first, first + 0.01, first + 0.02]
        np.testing.assert_allclose(line.get_ydata().astype(float), expected)
        tops = [segment[:, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(tops[0], [first - 0.05, first + 0.05])
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "updates"
    assert axes.get_ylabel().startswith("relative score ± standard error")
    assert not axes.get_xticks(minor=True).size
    assert texts(axes.get_xticklabels()) == ["100", "1,000", "10,000"]
    assert legends(figure) == [list(TITLES)]


def test_the_baseline_is_dashed_in_the_colours_of_the_tasks():
    figure = both(curves(TEN), curves(TEN[::3], "LSTM", is_baseline=True))
    assert png(figure).startswith(b"\x89PNG")
    ours, theirs = lines(figure)[:3], lines(figure)[3:]
    assert {line.get_linestyle() for line in ours} == {"-"}
    assert {line.get_linestyle() for line in theirs} == {"--"}
    assert [line.get_color() for line in ours] == [line.get_color() for line in theirs]
    assert [line.get_marker() for line in ours] == [
        each.get_marker() for each in theirs
    ]
    assert len({line.get_color() for line in ours}) == 3
    assert len({line.get_marker() for line in ours}) == 3
    assert {line.get_markerfacecolor() for line in theirs} == {"none"}
    assert [len(line.get_xdata()) for line in (ours[0], theirs[0])] == [10, 4]


def test_legends_name_tasks_by_colour_and_runs_by_line():
    figure = both(curves(TEN), curves(TEN, "LSTM", is_baseline=True))
    assert legends(figure) == [list(TITLES), ["Transformer", "LSTM"]]
    by_task, by_run = (legend.get_lines() for legend in figure.legends)
    drawn = [line.get_color() for line in lines(figure)[:3]]
    assert [line.get_color() for line in by_task] == drawn
    assert [line.get_linestyle() for line in by_run] == ["-", "--"]
    assert {line.get_color() for line in by_run} == {"0.5"}


@pytest.mark.parametrize(
    ("steps", "most"),
    [(TEN, 0.45 * np.log(2)), ([1, 10**6], 0.1 * np.log(10**6))],
    ids=["near", "far"],
)
def test_points_of_a_step_stand_side_by_side_far_from_the_next_step(steps, most):
    """Of six curves, and of twelve, which are crowded."""
    for tasks in (TITLES, [*TITLES, *"ABC"]):
        ours = curves(steps, titles=tasks)
        figure = both(ours, curves(steps, "LSTM", is_baseline=True, titles=tasks))
        drawn = lines(figure)
        places = np.log([line.get_xdata().astype(float) for line in drawn])
        assert (np.diff(places, axis=0) > 0).all()
        assert (places[-1] - places[0] < most).all()
        np.testing.assert_allclose(places.mean(axis=0), np.log(steps), atol=1e-9)


def test_one_step_is_a_row_of_points():
    figure = relative_scores(curves([3000]))
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert texts(axes.get_yticklabels()) == list(TITLES) and axes.yaxis_inverted()
    assert [line.get_xdata()[0] for line in lines(figure)] == [0.1, 0.2, 0.1 * 3]
    assert [line.get_ydata()[0] for line in lines(figure)] == [0, 1, 2]
    segments = axes.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose(segments[0][:, 0], [0.05, 0.15])
    assert axes.get_title() == "zero-shot, step 3,000" and not figure.legends
    assert axes.get_xlabel().startswith("relative score ± standard error")
    chance = axes.lines[0]
    assert (chance.get_xdata(), chance.get_color()) == ([0, 0], "0.5")


def test_one_step_of_two_runs_is_two_points_a_row():
    figure = both(curves([3000]), curves([2000], "LSTM", is_baseline=True))
    assert png(figure).startswith(b"\x89PNG")
    rows = [line.get_ydata()[0] for line in lines(figure)]
    assert rows == pytest.approx([-0.15, 0.85, 1.85, 0.15, 1.15, 2.15])
    hollow = [line.get_markerfacecolor() == "none" for line in lines(figure)]
    assert hollow == [False] * 3 + [True] * 3
    bars = [container.lines[2][0] for container in figure.axes[0].containers]
    dashed = [bar.get_linestyle()[0][1] is not None for bar in bars]
    assert dashed == hollow
    assert legends(figure) == [["Transformer", "LSTM"]]
    assert figure.axes[0].get_title() == "zero-shot, step 3,000 and step 2,000"


def test_step_0_of_a_converted_run_is_a_level():
    figure = both(curves([10, 100]), curves([0], r"$\frac$", is_baseline=True))
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    levels = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in levels] == [0.1, 0.2, 0.1 * 3]
    assert len(axes.containers) == 3
    assert texts(axes.get_xticklabels()) == ["10", "100"]


@pytest.mark.parametrize("steps", [[0, 1], [0, 1, 10, 100]])
def test_step_0_of_a_run_of_milestones_has_its_place(steps):
    figure = both(curves(steps), curves([0], "LSTM", is_baseline=True))
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    for line in lines(figure):
        np.testing.assert_allclose(line.get_xdata().astype(float), steps, rtol=0.1)
    assert len(lines(figure)) == 3  # the baseline is a level
    assert axes.transData.transform((0, 0))[0] < axes.transData.transform((1, 0))[0]
    assert texts(axes.get_xticklabels()) == [str(step) for step in steps]


def test_steps_of_the_baseline_alone_are_a_line_beside_points():
    figure = both(curves([100]), curves([10, 100], "LSTM", is_baseline=True))
    assert png(figure).startswith(b"\x89PNG")
    assert [len(line.get_xdata()) for line in lines(figure)] == [1, 1, 1, 2, 2, 2]
    assert figure.axes[0].get_xscale() == "log"


def test_text_has_the_colour_of_the_style():
    with matplotlib.style.context("dark_background"):
        figure = both(curves(TEN), curves(TEN, "LSTM", is_baseline=True))
        (axes,) = figure.axes
        shown = [axes.xaxis.label, *figure.legends[1].get_texts()]
        assert {to_rgba(text.get_color()) for text in shown} == {to_rgba("white")}
        assert to_rgba(figure.get_facecolor()) == to_rgba("black")
        assert to_rgba(axes.lines[0].get_color()) == to_rgba("0.5")  # chance
