"""Figures of runs: losses, and scores over updates, with panels for tasks.

Each function returns a matplotlib `Figure`, which a notebook displays with
`%matplotlib inline` and `figure.savefig(path)` saves. Text and background have the
colours of the matplotlib style in use; guides are mid-grey, visible on any.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt1_jax.report.plots import GUIDE, LINES, MARKERS, label_updates, new_figure
from gpt1_jax.tasks.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NUMBERED = 20  # labels of a confusion matrix with numbers and names
Curve = tuple[Sequence[int], Sequence[float]]  # tokens or updates, and values

# --- losses ---------------------------------------------------------------------


def pretraining_loss(losses: Mapping[str, Mapping[str, Curve]]) -> "Figure":
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


class DevScores(NamedTuple):
    """The scores on the dev split of runs that differ in their seed alone."""

    title: str  # of the task
    metric: str
    curves: Mapping[str, Curve]  # by run
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
        label_updates(axes, [each for steps, _ in curves.values() for each in steps])
        name_panel(axes, title, "updates", metric)
    return figure


def dev_score_rows(tasks: Sequence[DevScores]) -> list[dict[str, Any]]:
    """The numbers of `dev_scores`, as they are shown; baselines have no step."""
    rows: list[dict[str, Any]] = []
    for title, metric, curves, baselines in tasks:
        points = METRICS[metric].shown
        levels = {name: ([None], [score]) for name, score in baselines.items()}
        for name, (steps, scores) in {**levels, **curves}.items():
            of_curve = {"task": title, "metric": metric, "run": name}
            for step, score in zip(steps, scores, strict=True):
                rows.append({**of_curve, "step": step, "score": points(score)})
    return rows


def confusion_matrices(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """Draws confusion matrices, a panel a task, from `own_tasks.confusion_rows`.

    Colours are shares of the examples of a true label; numbers are examples.
    """
    matrices = [
        (title, own.pivot_table("n", "true", "predicted", aggfunc="sum", sort=False))
        for title, own in _by_split(rows)
    ]
    most = max(len(counts) for _, counts in matrices)
    size = 1.6 + 0.45 * min(most, _MOST_NUMBERED)
    figure, panels = make_panels(len(matrices), size + 0.6, size)
    for axes, (title, counts) in zip(panels, matrices, strict=True):
        numbers = counts.to_numpy()
        shares = numbers / numbers.sum(axis=1, keepdims=True).clip(1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        labels = [str(label)[:20] for label in counts]
        if len(labels) <= _MOST_NUMBERED:
            ticks = range(len(labels))
            axes.set_xticks(ticks, labels, rotation=45, ha="right", parse_math=False)
            axes.set_yticks(ticks, labels, parse_math=False)
            for (true, predicted), share in np.ndenumerate(shares):
                colour = "white" if share > 0.5 else "black"
                text = f"{numbers[true, predicted]:,}"
                place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(predicted, true, text, color=colour, **place)
        axes.set(xlabel="predicted label", ylabel="true label")
        axes.set_title(title, parse_math=False)
    return figure


def reliability_curves(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """Draws how often answers are right by their probability: a panel a task.

    Args:
      rows: as `own_tasks.reliability_rows` gives them.
    """
    groups = _by_split(rows)
    figure, panels = make_panels(len(groups), 3.4, 3.4)
    for axes, (title, own) in zip(panels, groups, strict=True):
        axes.plot([0, 1], [0, 1], color=GUIDE, linestyle="--")
        axes.plot(own["confidence"], own["accuracy"])
        share = own["n"] / own["n"].sum()
        sizes: dict[str, Any] = {"s": 10 + 150 * share, "zorder": 3, "clip_on": False}
        axes.scatter(own["confidence"], own["accuracy"], **sizes)
        error = (share * (own["confidence"] - own["accuracy"]).abs()).sum()
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set(xlabel="probability of the answer", ylabel="share that is right")
        name = f"{title}\nexpected calibration error {error:.3f}"
        axes.set_title(name, parse_math=False)
        axes.grid(alpha=0.3)
    return figure


def _by_split(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, "pd.DataFrame"]]:
    """The rows of each split of a task, with the title of their panel."""
    import pandas as pd

    groups = pd.DataFrame(rows).groupby(["task", "split"], sort=False)
    return [(", ".join(names), own) for names, own in groups]


def make_panels(
    number: int, width: float = 5.0, height: float = 2.6
) -> tuple["Figure", Sequence["Axes"]]:
    """A figure of some panels of a size in inches, two in a row."""
    columns = min(2, number)
    rows = math.ceil(number / columns)
    figure = new_figure(width * columns, 0.4 + height * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[number:]:
        axes.axis("off")
    return figure, grid[:number]


def name_panel(axes: "Axes", title: str, label: str, metric: str) -> None:
    """Names a panel, its axes and, right of it, where nothing is covered, its lines."""
    unit = " x 100" if METRICS[metric].in_points else ""
    axes.set(xlabel=label, ylabel=f"{metric}{unit}")
    axes.set_title(title, parse_math=False)
    axes.grid(alpha=0.3)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    axes.legend(**place, frameon=False, handlelength=3.5)
