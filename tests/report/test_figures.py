"""What figures show."""

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
    markers = [line.get_marker() for line in axes.lines]
    assert markers[1] != markers[3], "colour alone does not tell runs apart"
    colors = [line.get_color() for line in axes.lines]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    axes, legend = losses(**{"_a$x$_{": (([10], [5.0]), NONE)})
    assert legend == ["_a$x$_{, training"] and len(axes.lines) == 1
    assert not any(text.get_parse_math() for text in axes.get_legend().get_texts())
