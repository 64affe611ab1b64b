"""Figures of runs: losses, comparisons of fine-tuned runs.

Each function returns a matplotlib `Figure`, which a notebook displays with
`%matplotlib inline` and `figure.savefig(path)` saves. Text and background have the
colours of the matplotlib style in use; guides are mid-grey, visible on any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt1_jax.report.plots import GUIDE, LINES, MARKERS, new_figure
from gpt1_jax.tasks.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd
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


class DevScores(NamedTuple):
    """The scores on the dev split of runs that differ in their seed alone."""

    title: str  # of the task
    metric: str
    curves: Sequence[tuple[Sequence[int], Sequence[float]]]  # updates, scores; by run
    baselines: Mapping[str, float]  # scores that have to be beaten, by name


def dev_scores(tasks: Sequence[DevScores]) -> "Figure":
    """Draws scores on dev splits over updates, beside the baselines: a panel a task."""
    columns = min(_PANELS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = new_figure(4.6 * columns, 0.4 + 2.8 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, metric, curves, baselines) in zip(grid.flat, tasks, strict=False):
        points = METRICS[metric].shown
        for (name, score), line in zip(baselines.items(), (":", "--"), strict=False):
            axes.axhline(points(score), color=GUIDE, linestyle=line, label=name)
        for number, (steps, scores) in enumerate(curves):
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(steps, [*map(points, scores)], marker=marker, markersize=5)
        axes.set(xlabel="updates", ylabel=_with_unit([metric]))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.grid(alpha=0.3)
        if baselines:
            axes.legend(fontsize=8)
    for axes in grid.flat[len(tasks) :]:
        axes.axis("off")
    return figure


_COLORS = ("C0", "C1", "C2", "C3", "C4", "C5")  # the style's colours
_PANELS = 2  # panels in a row
_ASIDE = 0.012  # between points of one lambda, as a fraction of the axis


def layer_transfer(scores: "pd.DataFrame") -> "Figure":
    """Draws scores over the number of layers transferred, as Figure 2 (left) does.

    Lines of dev scores are solid, those of training scores dashed; bars reach from the
    lowest to the highest of several seeds.

    Args:
      scores: columns "title" and "metric" of a task, "split" ("dev" or "train"),
        "layers" and "score". Two tasks have an axis each, any other number shares one.
    """
    figure = new_figure(7, 4.2)
    left = figure.subplots()
    tasks = list(scores.groupby(["title", "metric"], sort=False))
    two = len(tasks) == 2
    both = [left, left.twinx()] if two else [left] * len(tasks)
    for number, (((title, metric), of_task), axes) in enumerate(
        zip(tasks, both, strict=True)
    ):
        color, marker = _COLORS[number % len(_COLORS)], MARKERS[number % len(MARKERS)]
        for split, line in (("dev", "-"), ("train", "--")):
            style: dict[str, Any] = {
                "color": color,
                "marker": marker,
                "linestyle": line,
            }
            of_split = of_task[of_task["split"] == split]
            _plot_spreads(axes, of_split, "layers", label=f"{title} {split}", **style)
        if two:
            axes.set_ylabel(f"{title}, {_with_unit([metric])}", color=color)
            axes.tick_params(axis="y", colors=color)
    if not two:
        left.set_ylabel(_with_unit(scores["metric"].unique()))
    left.set_xticks(sorted(scores["layers"][scores["split"] == "dev"].unique()))
    left.set_xlabel("layers transferred")
    left.grid(alpha=0.3)
    # Each column holds a task's two lines.
    columns = min(4, len(tasks))
    figure.legend(loc="outside upper center", ncols=columns, fontsize=9, handlelength=3)
    return figure


def aux_lm_weight(scores: "pd.DataFrame") -> "Figure":
    """Draws scores over lambda: a panel per task, a line per training set size.

    Bars reach from the lowest to the highest of several seeds.

    Args:
      scores: columns "title" and "metric" of a task, "train_examples",
        "aux_lm_weight" and "score".
    """
    tasks = list(scores.groupby(["title", "metric"], sort=False))
    columns = min(_PANELS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = new_figure(5.2 * columns, 0.4 + 3.0 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, ((title, metric), of_task) in zip(grid.flat, tasks, strict=False):
        _weights_panel(axes, of_task)
        axes.set(xlabel="lambda", ylabel=_with_unit([metric]))
        axes.set_title(title, fontsize=10, parse_math=False)
    for axes in grid.flat[len(tasks) :]:
        axes.axis("off")
    return figure


def _with_unit(metrics: Iterable[str]) -> str:
    """Names of metrics, with what their values were multiplied by."""
    names = list(metrics)
    if all(METRICS[name].in_points for name in names):
        return f"{', '.join(names)} x 100"
    return ", ".join(f"{n} x 100" if METRICS[n].in_points else n for n in names)


def _weights_panel(axes: Any, scores: "pd.DataFrame") -> None:
    """Draws the lines of one task, fewest training examples first."""
    weights = sorted(scores["aux_lm_weight"].unique())
    sizes = list(scores.groupby("train_examples"))
    for number, (size, of_size) in enumerate(sizes):
        # Side by side, so error bars do not hide one another.
        aside = (number - (len(sizes) - 1) / 2) * _ASIDE * (weights[-1] - weights[0])
        _plot_spreads(
            axes,
            of_size,
            "aux_lm_weight",
            aside,
            label=f"{size:,}",
            color=_COLORS[number % len(_COLORS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number % len(LINES)],
        )
    axes.set_xticks(weights, [f"{weight:g}" for weight in weights])
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],  # from top to bottom, as the lines often are
        labels[::-1],
        loc="upper left",
        bbox_to_anchor=(1, 1),  # beside the panel, where it covers nothing
        frameon=False,
        title="training\nexamples",
        fontsize=8,
        title_fontsize=8,
        handlelength=3.5,
    )
    axes.grid(alpha=0.3)


def _plot_spreads(
    axes: Any, scores: "pd.DataFrame", x: str, aside: float = 0, **style: Any
) -> None:
    """Draws a line through medians, with bars from lowest to highest; none if empty.

    Args:
      axes: where to draw.
      scores: columns `x` and "score".
      x: the column of the horizontal axis.
      aside: added to x.
      style: matplotlib settings of the line.
    """
    if scores.empty:
        return
    spreads = scores.groupby(x)["score"].agg(["median", "min", "max"])
    medians = spreads["median"]
    below, above = medians - spreads["min"], spreads["max"] - medians
    if below.any() or above.any():
        axes.errorbar(
            spreads.index + aside,
            medians,
            [below, above],
            capsize=3,
            markersize=5,
            **style,
        )
    else:
        axes.plot(spreads.index + aside, medians, markersize=5, **style)
