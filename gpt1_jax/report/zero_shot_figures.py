"""Figure 2 (right): zero-shot scores over the updates of pre-training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.figures import GUIDE, new_figure
from gpt1_jax.report.zero_shot import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ASIDE = 0.008  # between points of one step, as a part of the axis
_LABELLED_STEPS = 8  # so many steps or fewer are the ticks of their axis


def relative_scores(curves: Sequence[Curve]) -> "Figure":
    """Draws relative zero-shot scores (Figure 2, right), with standard errors.

    Args:
      curves: a line of each task over the logarithm of the steps; where there is one
        step only, a point of each.
    """
    steps = curves[0].steps
    label = "relative score ± standard error\n(0: chance, 1: best published before)"
    line: dict[str, Any] = {"marker": "o", "markersize": 5, "capsize": 3}
    if steps[1:]:
        figure = new_figure(8, 4.6)
        axes = figure.subplots()
        for number, (title, _, scores, errors) in enumerate(curves):
            # Side by side, so that error bars do not hide one another.
            aside = (number - (len(curves) - 1) / 2) * _ASIDE
            places = [step * (steps[-1] / steps[0]) ** aside for step in steps]
            axes.errorbar(places, scores, errors, label=title, **line)
        axes.set(xscale="log", xlabel="updates", ylabel=label)
        if len(steps) <= _LABELLED_STEPS:
            axes.set_xticks(steps, [f"{step:,}" for step in steps])
            axes.set_xticks([], minor=True)
        axes.axhline(0, color=GUIDE, linewidth=1)
        figure.legend(loc="outside right upper")
    else:
        figure = new_figure(7, 0.45 * len(curves) + 1.4)
        axes = figure.subplots()
        for number, curve in enumerate(curves):
            error: dict[str, Any] = {"xerr": curve.standard_errors}
            axes.errorbar(curve.scores, [number], color="tab:blue", **error, **line)
        axes.set_yticks(range(len(curves)), [curve.title for curve in curves])
        axes.invert_yaxis()
        axes.axvline(0, color=GUIDE, linewidth=1)
        axes.set_xlabel(label)
        axes.set_title(f"zero-shot, step {steps[0]:,}", fontsize=10)
    axes.grid(alpha=0.3)
    return figure
