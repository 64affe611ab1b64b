"""Figure 2 (right): zero-shot scores over the updates of pre-training."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.figures import GUIDE, MARKERS, new_figure
from gpt1_jax.report.zero_shot import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ASIDE = 0.008  # between points of one step, as a part of the axis
_CROWD = 0.4  # what they take together at most, as a part of the way to the next step
_LABELLED_STEPS = 8  # so many steps or fewer are the ticks of their axis
_BARS: dict[str, Any] = {"elinewidth": 1, "capsize": 2}
_LABEL = "relative score ± standard error\n(0: chance, 1: best published before)"


def relative_scores(curves: Sequence[Curve]) -> "Figure":
    """Draws relative zero-shot scores (Figure 2, right), with standard errors.

    Args:
      curves: those of the run, then those of the baseline, which are dashed and have
        hollow markers. Each task has a colour and a marker of its own. Scores of
        several steps are lines over the logarithm of the steps, and those of step 0, as
        a converted run has, are levels; scores of one step only are points.
    """
    several = any(curve.steps[1:] for curve in curves)
    return _over_steps(curves) if several else _at_one_step(curves)


def _over_steps(curves: Sequence[Curve]) -> "Figure":
    figure = new_figure(8.5, 4.8)
    axes = figure.subplots()
    axes.axhline(0, color=GUIDE, linewidth=1)
    for curve, aside in zip(curves, _asides(curves), strict=True):
        style = _style(curve, curves)
        if any(curve.steps):
            # Side by side, so that error bars do not hide one another.
            places = [step * aside for step in curve.steps]
            axes.errorbar(places, curve.scores, curve.standard_errors, **_BARS, **style)
        else:
            axes.axhline(curve.scores[0], **{**style, "marker": ""})
    axes.set(xscale="log", xlabel="updates", ylabel=_LABEL)
    steps = _steps(curves)
    if len(steps) <= _LABELLED_STEPS:
        axes.set_xticks(steps, [f"{step:,}" for step in steps])
        axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    of_run = [curve for curve in curves if not curve.is_baseline]
    tasks = {curve.title: _style(curve, curves) for curve in of_run}
    _add_legend(figure, "outside right upper", tasks)
    _add_legend_of_runs(figure, "outside right lower", curves)
    return figure


def _at_one_step(curves: Sequence[Curve]) -> "Figure":
    """Points, a row for each task."""
    titles, count = _titles(curves), 1 + curves[-1].is_baseline
    figure = new_figure(7.5, 0.45 * count**0.5 * len(titles) + 1.5)
    axes = figure.subplots()
    axes.axvline(0, color=GUIDE, linewidth=1)
    for curve in curves:
        row = titles.index(curve.title) + (curve.is_baseline - (count - 1) / 2) * 0.3
        style = _style(curve, curves)
        errors: dict[str, Any] = {"xerr": curve.standard_errors, **_BARS}
        _, _, (bar,) = axes.errorbar(curve.scores, [row], **errors, **style)
        bar.set_linestyle(style["linestyle"])
    axes.set_yticks(range(len(titles)), titles)
    axes.set_ylim(len(titles) - 0.5, -0.5)
    axes.set_xlabel(_LABEL)
    steps = dict.fromkeys(f"step {curve.steps[0]:,}" for curve in curves)
    axes.set_title(f"zero-shot, {' and '.join(steps)}", fontsize=10)
    axes.grid(alpha=0.3)
    _add_legend_of_runs(figure, "outside right upper", curves)
    return figure


def _steps(curves: Sequence[Curve]) -> list[int]:
    """All steps that a logarithmic axis can show."""
    return sorted({step for curve in curves for step in curve.steps} - {0})


def _titles(curves: Sequence[Curve]) -> list[str]:
    return list(dict.fromkeys(curve.title for curve in curves))


def _asides(curves: Sequence[Curve]) -> list[float]:
    """Factors of the steps of each curve, around 1."""
    steps = _steps(curves)
    gaps = [
        math.log(later / step)
        for curve in curves
        for step, later in itertools.pairwise(curve.steps)
    ]
    most = _ASIDE * math.log(steps[-1] / steps[0])
    between = min(most, _CROWD * min(gaps) / len(curves))
    middle = (len(curves) - 1) / 2
    return [math.exp((number - middle) * between) for number in range(len(curves))]


def _style(curve: Curve, curves: Sequence[Curve]) -> dict[str, Any]:
    """How a curve is drawn: colour and marker are the task's, the rest the run's."""
    number = _titles(curves).index(curve.title)
    return {
        "color": f"C{number}",
        "marker": MARKERS[number % len(MARKERS)],
        **_run_style(curve),
    }


def _run_style(curve: Curve) -> dict[str, Any]:
    if curve.is_baseline:
        return {"markersize": 5, "linestyle": "--", "markerfacecolor": "none"}
    return {"markersize": 5, "linestyle": "-"}


def _add_legend_of_runs(figure: "Figure", place: Any, curves: Sequence[Curve]) -> None:
    """What is solid and what is dashed, where there is a baseline."""
    if curves[-1].is_baseline:
        grey = {"color": GUIDE, "marker": "o"}
        styles = {curve.run: {**grey, **_run_style(curve)} for curve in curves}
        _add_legend(figure, place, styles)


def _add_legend(
    figure: "Figure", place: Any, styles: dict[str, dict[str, Any]]
) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=label, **style) for label, style in styles.items()]
    legend = figure.legend(handles=lines, loc=place, handlelength=3)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of folders
