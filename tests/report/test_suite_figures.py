import io

import pytest
from etils import epath

from gpt1_jax.report import suite_figures
from gpt1_jax.report.comparisons import AuxWeightCurve, LayerCurve, Spread


def png(figure):
    """The picture, drawn: labels that cannot be drawn would warn."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def spreads(medians, spread=0.0):
    return {x: Spread(y, y - spread, y + spread) for x, y in medians.items()}


def layer_curve(title, spread=0.0, train=True):
    dev, seen = {0: 40.0, 1: 45.0, 2: 50.0}, {0: 60.0, 2: 90.0}
    scores = spreads(seen, spread) if train else {}
    return LayerCurve(title, "accuracy", spreads(dev, spread), scores)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_two_tasks_have_an_axis_each_as_in_figure_2():
    figure = suite_figures.layer_transfer([layer_curve("RACE"), layer_curve("MNLI-m")])
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
    curves = [layer_curve(f"task {k}", train=k > 0) for k in range(count)]
    figure = suite_figures.layer_transfer(curves)
    assert png(figure).startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert axes.get_ylabel() == "accuracy x 100"
    assert len(axes.lines) == len(legend(figure)) == 2 * count - 1


def test_bars_reach_from_the_lowest_to_the_highest_seed():
    figure = suite_figures.layer_transfer([layer_curve("RACE", spread=2.0)])
    assert png(figure).startswith(b"\x89PNG")
    dev, _ = figure.axes[0].containers
    (bars,) = dev.lines[2]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    assert ends == [[38, 42], [43, 47], [48, 52]]


def weight_curve(title, size, spread=1.0):
    scores = spreads({0.0: 50.0, 0.5: 60.0}, spread)
    return AuxWeightCurve(title, "f1", size, scores)


def test_each_task_has_a_panel_and_each_size_a_line():
    curves = [weight_curve("A$b$", 3000), weight_curve("A$b$", 1000)]
    curves += [weight_curve("B", 500), weight_curve("C", 500, spread=0.0)]
    figure = suite_figures.aux_lm_weight(curves)
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


def test_nothing_is_drawn_where_there_is_nothing_to_compare(tmp_path):
    for compare in ("", "scratch", "ablations", "layer_transfer", "aux_lm_weight"):
        assert suite_figures.draw(compare, [], epath.Path(tmp_path)) == []
    assert not list(tmp_path.iterdir())
