"""What figures show."""

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from drawn import png, texts
from etils import epath
from matplotlib.colors import to_rgba

from gpt1_jax.report import figures
from gpt1_jax.report.figures import DARK, LIGHT, new_figure, render_figure
from gpt1_jax.runs.records import METRICS_FILE


def test_plot_is_a_picture_even_without_validation(tmp_path):
    (tmp_path / METRICS_FILE).write_text('{"step": 1, "loss": 2.5}\n')
    path = figures.plot_loss(epath.Path(tmp_path), "loss", "nats")
    assert path == epath.Path(tmp_path) / "plots" / "loss.png"
    assert path.read_bytes().startswith(b"\x89PNG")


NONE = ([], [])


def losses(**curves):
    """The axes and the legend of runs, each with its two curves."""
    figure = figures.pretraining_loss(
        {
            name: {"training": training, "validation": validation}
            for name, (training, validation) in curves.items()
        }
    )
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    return axes, texts(axes.get_legend().get_texts())


def test_each_run_has_its_curves():
    small, lstm = (
        (([10, 20], [5.0, 4.0]), ([20], [4.5])),
        (([10, 20], [6.0, 5.0]), ([20], [5.5])),
    )
    axes, legend = losses(small=small, lstm=lstm)
    assert legend == [
        "small, training",
        "small, validation",
        "lstm, training",
        "lstm, validation",
    ]
    points = [
        list(map(list, zip(*line.get_data(), strict=True))) for line in axes.lines
    ]
    assert points == [[[10, 5], [20, 4]], [[20, 4.5]], [[10, 6], [20, 5]], [[20, 5.5]]]
    colors = [line.get_color() for line in axes.lines]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    markers = [line.get_marker() for line in axes.lines]
    assert markers[1] != markers[3], "colour alone does not tell runs apart"


def test_a_curve_without_points_is_left_out():
    axes, legend = losses(a=(([10], [5.0]), NONE))
    assert legend == ["a, training"] and len(axes.lines) == 1


def test_names_of_folders_are_drawn_as_they_are():
    axes, legend = losses(**{"_a$x$_{": (([10], [5.0]), NONE)})
    assert legend == ["_a$x$_{, training"]
    assert not any(text.get_parse_math() for text in axes.get_legend().get_texts())


def layer_scores(title, spread=0.0, train=True):
    """Scores of a task over layers, of three seeds."""
    medians = {("dev", 0): 40.0, ("dev", 1): 45.0, ("dev", 2): 50.0}
    if train:
        medians |= {("train", 0): 60.0, ("train", 2): 90.0}
    return pd.DataFrame(
        [
            (title, "accuracy", split, layers, median + spread * offset)
            for (split, layers), median in medians.items()
            for offset in (0, -1, 1)
        ],
        columns=["title", "metric", "split", "layers", "score"],
    )


def legend(figure):
    return texts(figure.legends[0].get_texts())


def test_two_tasks_have_an_axis_each_as_in_figure_2():
    figure = figures.layer_transfer(
        pd.concat([layer_scores("RACE"), layer_scores("MNLI-m")])
    )
    assert png(figure).startswith(b"\x89PNG")
    left, right = figure.axes
    assert left.get_ylabel().startswith("RACE, accuracy")
    assert right.get_ylabel().startswith("MNLI-m, accuracy")
    assert right.yaxis.get_label_position() == "right"
    assert left.get_xticks().tolist() == [0, 1, 2]
    for axes in (left, right):
        dev, train = axes.lines
        assert (dev.get_linestyle(), train.get_linestyle()) == ("-", "--")
        assert dev.get_xdata().tolist() == [0, 1, 2]
        assert dev.get_ydata().tolist() == [40, 45, 50]
        assert train.get_ydata().tolist() == [60, 90]
    assert left.lines[0].get_marker() != right.lines[0].get_marker()
    assert legend(figure) == ["RACE dev", "RACE train", "MNLI-m dev", "MNLI-m train"]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_any_other_number_of_tasks_shares_one_axis(count):
    tasks = [layer_scores(f"task {k}", train=k > 0) for k in range(count)]
    figure = figures.layer_transfer(pd.concat(tasks))
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert axes.get_ylabel() == "accuracy x 100"
    assert len(axes.lines) == len(legend(figure)) == 2 * count - 1


def test_bars_reach_from_the_lowest_to_the_highest_seed():
    figure = figures.layer_transfer(layer_scores("RACE", spread=2.0))
    assert png(figure).startswith(b"\x89PNG")
    dev, _ = figure.axes[0].containers
    (bars,) = dev.lines[2]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    assert ends == [[38, 42], [43, 47], [48, 52]]


def weight_scores(title, size, spread=1.0):
    return pd.DataFrame(
        [
            (title, "f1", size, weight, median + spread * offset)
            for weight, median in ((0.0, 50.0), (0.5, 60.0))
            for offset in (0, -1, 1)
        ],
        columns=["title", "metric", "train_examples", "aux_lm_weight", "score"],
    )


def test_each_task_has_a_panel_and_each_size_a_line():
    tasks = [weight_scores("A$b$", 3000), weight_scores("A$b$", 1000)]
    tasks += [weight_scores("B", 500), weight_scores("C", 500, spread=0.0)]
    figure = figures.aux_lm_weight(pd.concat(tasks))
    assert png(figure).startswith(b"\x89PNG")
    first, second, third, empty = figure.axes
    assert [axes.get_title() for axes in (first, second, third)] == ["A$b$", "B", "C"]
    assert not empty.axison
    shown = [text.get_text() for text in first.get_legend().get_texts()]
    assert shown == ["3,000", "1,000"]
    few, many = (container.lines[0] for container in first.containers)
    assert few.get_ydata().tolist() == many.get_ydata().tolist() == [50, 60]
    assert few.get_xdata()[0] < 0 < many.get_xdata()[0]  # side by side
    assert few.get_marker() != many.get_marker()
    assert few.get_linestyle() != many.get_linestyle()
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["0", "0.5"]
    assert third.lines[0].get_xdata().tolist() == [0.0, 0.5]


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
    return figures.relative_scores(pd.concat([ours, theirs]))


def lines(figure):
    """The data line of each curve, in order."""
    return [container.lines[0] for container in figure.axes[0].containers]


def legends(figure):
    return [texts(legend.get_texts()) for legend in figure.legends]


def test_each_task_has_a_line_with_its_scores_and_errors():
    figure = figures.relative_scores(curves([100, 1000, 10000]))
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


def test_many_steps_are_not_all_labelled():
    figure = figures.relative_scores(curves(TEN))
    png(figure)
    assert "2,000" not in texts(figure.axes[0].get_xticklabels())


def test_one_step_is_a_row_of_points():
    figure = figures.relative_scores(curves([3000]))
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


def test_pairs_over_steps_show_step_0_of_milestones():
    rows = [
        (run, run == "LSTM", step, group, 0.5 + 0.1 * number, 0.01)
        for run, steps in (("Transformer", [0, 1, 10]), ("LSTM", [0]))
        for group in ("binding", "ellipsis")
        for number, step in enumerate(steps)
    ]
    columns = ["run", "is_baseline", "step", "group", "accuracy", "standard_error"]
    figure = figures.pairs_over_steps(pd.DataFrame(rows, columns=columns), {})
    assert png(figure).startswith(b"\x89PNG")
    for axes in figure.axes[:2]:
        [curve] = axes.containers  # the baseline is a level
        assert list(curve.lines[0].get_xdata()) == [0, 1, 10]
        np.testing.assert_allclose(list(curve.lines[0].get_ydata()), [50, 60, 70])
        assert axes.get_xlim()[0] <= 0


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


def small_figure():
    figure = new_figure(2, 2)
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4])
    axes.set_title("title")
    return figure


@pytest.mark.parametrize("kind", ["svg", "png"])
@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_a_figure_is_drawn_to_the_same_bytes(style, kind):
    assert render_figure(small_figure, style, kind) == render_figure(
        small_figure, style, kind
    )


def test_the_styles_differ_and_leave_no_trace():
    before = dict(matplotlib.rcParams)
    light, dark = (
        render_figure(small_figure, style, "svg").decode() for style in (LIGHT, DARK)
    )
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
