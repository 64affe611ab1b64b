"""What figures show."""

from drawn import drawn_axes, texts

from gpt1_jax.report import figures


def test_each_run_has_its_curves():
    losses = {
        "small": {"training": ([10, 20], [5, 4]), "validation": ([20], [4.5])},
        "_a$x$_{": {"training": ([10, 20], [6, 5]), "validation": ([20], [5.5])},
        "begun": {"training": ([10], [7]), "validation": ([], [])},
    }
    (axes,) = drawn_axes(figures.pretraining_loss(losses))
    legend = axes.get_legend().get_texts()
    of_both = [f"{run}, {part}" for run in ("small", "_a$x$_{") for part in losses[run]]
    assert texts(legend) == [*of_both, "begun, training"]
    assert not any(text.get_parse_math() for text in legend)
    points = [[list(values) for values in line.get_data()] for line in axes.lines]
    assert points == [
        [[10, 20], [5, 4]],
        [[20], [4.5]],
        [[10, 20], [6, 5]],
        [[20], [5.5]],
        [[10], [7]],
    ]
    markers = [line.get_marker() for line in axes.lines]
    assert markers[1] != markers[3], "colour alone does not tell runs apart"
    colors = [line.get_color() for line in axes.lines]
    assert colors[0] == colors[1] != colors[2] == colors[3]
