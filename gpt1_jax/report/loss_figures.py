"""Loss over the text that was read, of several pre-training runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt1_jax.report.figures import LINES, MARKERS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LossCurve(NamedTuple):
    """A run: tokens read and nats per token, in training and in validation."""

    name: str
    train: tuple[Sequence[float], Sequence[float]]
    valid: tuple[Sequence[float], Sequence[float]]


def pretraining_loss(curves: Sequence[LossCurve]) -> "Figure":
    """Draws training and validation loss of runs, a colour and a marker for each.

    Args:
      curves: runs with a record at least.
    """
    from matplotlib.ticker import EngFormatter

    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    handles, labels = [], []
    for number, curve in enumerate(curves):
        looks: dict[str, Any] = {
            "color": f"C{number}",
            "linestyle": LINES[number // len(MARKERS) % len(LINES)],
        }
        validation = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5}
        for what, points, more in (
            ("training", curve.train, {"linewidth": 1, "alpha": 0.55}),
            ("validation", curve.valid, validation),
        ):
            if points[0]:
                handles += axes.plot(*points, **looks, **more)
                labels.append(f"{curve.name}, {what}")
    axes.set(xlabel="tokens read", ylabel="loss, nats per token")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    # With its own labels: those of lines are left out if they begin with "_".
    for text in axes.legend(handles, labels).get_texts():
        text.set_parse_math(False)
    return figure
