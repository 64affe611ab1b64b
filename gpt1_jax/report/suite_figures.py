"""Pictures of what a fine-tuning suite compares: Figure 2 (left), lambda."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from gpt1_jax.report.comparisons import (
    AuxWeightCurve,
    LayerCurve,
    Spread,
    aux_weight_curves,
    layer_transfer_curves,
)
from gpt1_jax.report.figures import LINES, MARKERS, new_figure, save
from gpt1_jax.runs.past_runs import Finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = ("C0", "C1", "C2", "C3", "C4", "C5")  # of the style
_PANELS = 2  # in a row
_ASIDE = 0.012  # between points of one lambda, as a part of the axis


def draw(
    compare: str, finished: Sequence[Finished], folder: epath.Path
) -> list[epath.Path]:
    """Draws what `config.suite.compare` asks for; returns the paths of the pictures."""
    drawn: dict[str, Figure] = {}
    if compare == "layer_transfer" and (layers := layer_transfer_curves(finished)):
        drawn[compare] = layer_transfer(layers)
    if compare == "aux_lm_weight" and (weights := aux_weight_curves(finished)):
        drawn[compare] = aux_lm_weight(weights)
    plots = folder / "plots"
    return [save(figure, plots / f"{name}.png") for name, figure in drawn.items()]


def layer_transfer(curves: Sequence[LayerCurve]) -> "Figure":
    """Draws scores over the number of layers transferred, as Figure 2 (left) does.

    Solid are dev scores and dashed training scores; bars reach from the lowest to the
    highest of several seeds.

    Args:
      curves: two share the picture with an axis each, any other number has one axis.
    """
    figure = new_figure(7, 4.2)
    left = figure.subplots()
    two = len(curves) == 2
    both = [left, left.twinx()] if two else [left] * len(curves)
    for number, (curve, axes) in enumerate(zip(curves, both, strict=True)):
        color, marker = _COLORS[number % len(_COLORS)], MARKERS[number % len(MARKERS)]
        for split, scores, line in (
            ("dev", curve.dev, "-"),
            ("train", curve.train, "--"),
        ):
            style: dict[str, Any] = {
                "color": color,
                "marker": marker,
                "linestyle": line,
            }
            _plot(axes, scores, label=f"{curve.title} {split}", **style)
        if two:
            axes.set_ylabel(f"{curve.title}, {curve.metric} x 100", color=color)
            axes.tick_params(axis="y", colors=color)
    if not two:
        left.set_ylabel(_common([curve.metric for curve in curves]))
    layers = sorted({number for curve in curves for number in curve.dev})
    left.set_xticks(layers)
    left.set_xlabel("layers transferred")
    left.grid(alpha=0.3)
    # Each column holds a task's two lines.
    columns = min(4, len(curves))
    figure.legend(loc="outside upper center", ncols=columns, fontsize=9, handlelength=3)
    return figure


def aux_lm_weight(curves: Sequence[AuxWeightCurve]) -> "Figure":
    """Draws dev scores over lambda: a panel a task, a line a number of examples.

    Bars reach from the lowest to the highest of several seeds.

    Args:
      curves: those of a task one after another.
    """
    tasks: dict[str, list[AuxWeightCurve]] = {}
    for curve in curves:
        tasks.setdefault(curve.title, []).append(curve)
    columns = min(_PANELS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = new_figure(5.2 * columns, 0.4 + 3.0 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, found) in zip(grid.flat, tasks.items(), strict=False):
        _weights_panel(axes, sorted(found, key=lambda curve: curve.train_examples))
        axes.set_title(title, fontsize=10, parse_math=False)
    for axes in grid.flat[len(tasks) :]:
        axes.axis("off")
    return figure


def _weights_panel(axes: Any, curves: Sequence[AuxWeightCurve]) -> None:
    """The lines of one task, those of fewer examples first."""
    weights = sorted({weight for curve in curves for weight in curve.dev})
    for number, curve in enumerate(curves):
        # Side by side, so that error bars do not hide one another.
        aside = (number - (len(curves) - 1) / 2) * _ASIDE * (weights[-1] - weights[0])
        _plot(
            axes,
            {weight + aside: scores for weight, scores in curve.dev.items()},
            label=f"{curve.train_examples:,}",
            color=_COLORS[number % len(_COLORS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number % len(LINES)],
        )
    axes.set_xticks(weights, [f"{weight:g}" for weight in weights])
    axes.set(xlabel="lambda", ylabel=f"{curves[0].metric} x 100")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],  # from top to bottom, as lines often are
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


def _plot(axes: Any, scores: Mapping[Any, Spread], **style: Any) -> None:
    """A line through the medians, with bars from lowest to highest; or nothing."""
    if not scores:
        return
    spreads = list(scores.values())
    medians = [spread.median for spread in spreads]
    bars = [
        [spread.median - spread.low for spread in spreads],
        [spread.high - spread.median for spread in spreads],
    ]
    if not any(map(any, bars)):
        axes.plot(list(scores), medians, markersize=5, **style)
    else:
        axes.errorbar(list(scores), medians, bars, capsize=3, markersize=5, **style)


def _common(metrics: Sequence[str]) -> str:
    """The label of an axis that several metrics may share."""
    return f"{', '.join(dict.fromkeys(metrics))} x 100"
