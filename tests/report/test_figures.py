"""What figures show."""

import pandas as pd
import pytest
from drawn import png, texts

from gpt1_jax.report import figures

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
