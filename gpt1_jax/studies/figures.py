"""Shared by the figures of several studies: the axis of updates, styles of runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS: dict[str, Any] = {"elinewidth": 1, "capsize": 2}  # of standard errors


def scale_updates(axes: "Axes", steps: Sequence[int]) -> None:
    """Makes an axis of updates logarithmic, with a place for step 0 if it is there."""
    from matplotlib.ticker import StrMethodFormatter

    if 0 in steps:
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        axes.set_xlim(-0.4, 1.3 * max(steps))
    else:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def run_style(is_baseline: bool) -> dict[str, Any]:
    """The style of a run's lines: a baseline's are dashed, with hollow markers."""
    if is_baseline:
        return {"markersize": 5, "linestyle": "--", "markerfacecolor": "none"}
    return {"markersize": 5, "linestyle": "-"}


def steps_of(curves: "Sequence[pd.DataFrame]") -> list[int]:
    """All steps of curves over steps; one that is at step 0 alone is a level."""
    over_steps = [curve["step"] for curve in curves if curve["step"].any()]
    return sorted({step for steps in over_steps for step in steps})


def add_legend(figure: "Figure", place: Any, styles: dict[str, dict[str, Any]]) -> None:
    """Adds a legend of lines, by label, each in its style."""
    from matplotlib.lines import Line2D

    # Labels of their own, since matplotlib omits those of lines that begin with "_".
    lines = [Line2D([], [], **style) for style in styles.values()]
    legend = figure.legend(lines, list(styles), loc=place, handlelength=3)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of folders
