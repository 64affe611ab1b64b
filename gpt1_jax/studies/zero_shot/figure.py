"""The figure of zero-shot scores: Figure 2, right."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.plots import (
    BARS,
    GUIDE,
    MARKERS,
    add_legend,
    new_figure,
    run_style,
    scale_updates,
    steps_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_STEP_ASIDE = 0.008  # between points of one step, as a fraction of the axis
_CROWD = 0.4  # the most they take together, as a fraction of the way to the next step
_LABEL = "relative score ± standard error\n(0: chance, 1: best published before)"


def relative_scores(scores: "pd.DataFrame") -> "Figure":
    """Draws relative zero-shot scores (Figure 2, right), with standard errors.

    Each task has its own colour and marker. A baseline has dashed lines and hollow
    markers. Scores at several steps are lines over the logarithm of the steps; scores
    at step 0 alone, which converted runs have, are levels. If no run has several steps,
    scores are points.

    Args:
      scores: columns "run" (its name), "is_baseline", "task" (its title), "step",
        "relative" and "relative_standard_error". Rows without a relative score are
        left out.
    """
    scores = scores.dropna(subset="relative")
    curves = [curve for _, curve in scores.groupby(["is_baseline", "task"], sort=False)]
    if any(len(curve) > 1 for curve in curves):
        return _over_steps(curves)
    return _at_one_step(curves)


def _over_steps(curves: "Sequence[pd.DataFrame]") -> "Figure":
    figure = new_figure(8.5, 4.8)
    axes = figure.subplots()
    axes.axhline(0, color=GUIDE, linewidth=1)
    for curve, aside in zip(curves, _asides(curves), strict=True):
        style = _curve_style(curve, curves)
        if curve["step"].any():
            # Side by side, so error bars do not hide one another.
            places, errors = curve["step"] * aside, curve["relative_standard_error"]
            axes.errorbar(places, curve["relative"], errors, **BARS, **style)
        else:
            axes.axhline(curve["relative"].iloc[0], **{**style, "marker": ""})
    axes.set(xlabel="updates", ylabel=_LABEL)
    steps = steps_of(curves)
    scale_updates(axes, steps)
    axes.grid(alpha=0.3)
    of_run = [curve for curve in curves if not _is_baseline(curve)]
    tasks = {_task(curve): _curve_style(curve, curves) for curve in of_run}
    add_legend(figure, "outside right upper", tasks)
    _add_legend_of_runs(figure, "outside right lower", curves)
    return figure


def _at_one_step(curves: "Sequence[pd.DataFrame]") -> "Figure":
    """Draws points, a row per task."""
    tasks, count = _tasks(curves), 1 + _is_baseline(curves[-1])
    figure = new_figure(7.5, 0.45 * count**0.5 * len(tasks) + 1.5)
    axes = figure.subplots()
    axes.axvline(0, color=GUIDE, linewidth=1)
    for curve in curves:
        row = tasks.index(_task(curve)) + (_is_baseline(curve) - (count - 1) / 2) * 0.3
        style = _curve_style(curve, curves)
        errors: dict[str, Any] = {"xerr": curve["relative_standard_error"], **BARS}
        _, _, (bar,) = axes.errorbar(curve["relative"], [row], **errors, **style)
        bar.set_linestyle(style["linestyle"])
    axes.set_yticks(range(len(tasks)), tasks)
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.set_xlabel(_LABEL)
    steps = dict.fromkeys(f"step {curve['step'].iloc[0]:,}" for curve in curves)
    axes.set_title(f"zero-shot, {' and '.join(steps)}", fontsize=10)
    axes.grid(alpha=0.3)
    _add_legend_of_runs(figure, "outside right upper", curves)
    return figure


def _task(curve: "pd.DataFrame") -> str:
    return curve["task"].iloc[0]


def _is_baseline(curve: "pd.DataFrame") -> bool:
    return bool(curve["is_baseline"].iloc[0])


def _tasks(curves: "Sequence[pd.DataFrame]") -> list[str]:
    return list(dict.fromkeys(map(_task, curves)))


def _asides(curves: "Sequence[pd.DataFrame]") -> list[float]:
    """The factor, near 1, by which each curve's steps are shifted; 0 stays 0."""
    steps = [step for step in steps_of(curves) if step]
    gaps = [
        math.log(later / step)
        for curve in curves
        for step, later in itertools.pairwise(curve["step"])
        if step
    ]
    most = _STEP_ASIDE * math.log(steps[-1] / steps[0])
    between = min(most, _CROWD * min(gaps, default=0.0) / len(curves))
    middle = (len(curves) - 1) / 2
    return [math.exp((number - middle) * between) for number in range(len(curves))]


def _curve_style(
    curve: "pd.DataFrame", curves: "Sequence[pd.DataFrame]"
) -> dict[str, Any]:
    """The style of a curve: colour and marker by task, the rest by run."""
    number = _tasks(curves).index(_task(curve))
    return {
        "color": f"C{number}",
        "marker": MARKERS[number % len(MARKERS)],
        **run_style(_is_baseline(curve)),
    }


def _add_legend_of_runs(
    figure: "Figure", place: Any, curves: "Sequence[pd.DataFrame]"
) -> None:
    """Adds which run is solid and which is dashed, if there is a baseline."""
    if _is_baseline(curves[-1]):
        grey = {"color": GUIDE, "marker": "o"}
        styles = {
            curve["run"].iloc[0]: {**grey, **run_style(_is_baseline(curve))}
            for curve in curves
        }
        add_legend(figure, place, styles)
