"""Figures of runs: losses, and scores over updates, with panels for tasks.

Each function returns a matplotlib `Figure`, which a notebook displays with
`%matplotlib inline` and `figure.savefig(path)` saves. Text and background have the
colours of the matplotlib style in use; guides are mid-grey, visible on any.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt1_jax.report.plots import GUIDE, LINES, MARKERS, label_updates, new_figure
from gpt1_jax.tasks.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --- losses ---------------------------------------------------------------------


def pretraining_loss(
    losses: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
) -> "Figure":
    """Draws training and validation loss of runs, each with a colour and a marker.

    Args:
      losses: the curves "training" and "validation" of each run by its name. A curve
        is tokens read, and nats per token.
    """
    from matplotlib.ticker import EngFormatter

    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    handles, labels = [], []
    for number, (name, curves) in enumerate(losses.items()):
        looks: dict[str, Any] = {
            "color": f"C{number}",
            "linestyle": LINES[number // len(MARKERS) % len(LINES)],
        }
        marker = MARKERS[number % len(MARKERS)]
        for split, more in (
            ("training", {"linewidth": 1, "alpha": 0.55}),
            ("validation", {"marker": marker, "markersize": 5}),
        ):
            if len(curves[split][0]) == 1:  # a line of one point is invisible
                more = {**more, "marker": marker}
            if curves[split][0]:
                handles += axes.plot(*curves[split], **looks, **more)
                labels.append(f"{name}, {split}")
    axes.set(xlabel="tokens read", ylabel="loss, nats per token")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    # Labels of their own, since matplotlib omits those of lines that begin with "_".
    for text in axes.legend(handles, labels).get_texts():
        text.set_parse_math(False)
    return figure


# --- fine-tuned runs ------------------------------------------------------------

_PANELS = 2  # panels in a row


class DevScores(NamedTuple):
    """The scores on the dev split of runs that differ in their seed alone."""

    title: str  # of the task
    metric: str
    curves: Mapping[
        str, tuple[Sequence[int], Sequence[float]]
    ]  # updates, scores; by run
    baselines: Mapping[str, float]  # scores that have to be beaten, by name


def dev_scores(tasks: Sequence[DevScores]) -> "Figure":
    """Draws scores on dev splits over updates, beside the baselines: a panel a task."""
    figure, panels = make_panels(len(tasks))
    for axes, (title, metric, curves, baselines) in zip(panels, tasks, strict=True):
        points = METRICS[metric].shown
        for (name, score), line in zip(baselines.items(), (":", "--"), strict=False):
            axes.axhline(points(score), color=GUIDE, linestyle=line, label=name)
        for number, (name, (steps, scores)) in enumerate(curves.items()):
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(steps, [*map(points, scores)], marker=marker, label=name)
        axes.set(xlabel="updates", ylabel=with_unit(metric))
        label_updates(axes, [each for steps, _ in curves.values() for each in steps])
        axes.set_title(title, parse_math=False)
        axes.grid(alpha=0.3)
        legend_beside(axes)
    return figure


def dev_score_rows(tasks: Sequence[DevScores]) -> list[dict[str, Any]]:
    """The numbers of `dev_scores`, as they are shown; baselines have no step."""
    rows = []
    for title, metric, curves, baselines in tasks:
        of_task = {"task": title, "metric": metric}
        for name, (steps, scores) in {
            **{name: ([None], [score]) for name, score in baselines.items()},
            **curves,
        }.items():
            rows += [
                {**of_task, "run": name, "step": step, "score": shown}
                for step, shown in zip(
                    steps, map(METRICS[metric].shown, scores), strict=True
                )
            ]
    return rows


def make_panels(number: int) -> tuple["Figure", Sequence["Axes"]]:
    """A figure of some panels, two in a row."""
    columns = min(_PANELS, number)
    rows = math.ceil(number / columns)
    figure = new_figure(5 * columns, 0.4 + 2.6 * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[number:]:
        axes.axis("off")
    return figure, grid[:number]


def legend_beside(axes: "Axes") -> None:
    """Names the lines of a panel, right of it, where the legend covers nothing."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    axes.legend(**place, frameon=False, handlelength=3.5)


def with_unit(metric: str) -> str:
    """The name of a metric, with what its values were multiplied by."""
    return f"{metric} x 100" if METRICS[metric].in_points else metric
