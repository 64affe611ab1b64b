"""The figure of how well surprisal predicts reading times."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.plots import GUIDE, add_legend, new_figure, scale_updates
from gpt1_jax.report.scores import run_names
from gpt1_jax.studies.reading_times.table import steps_of_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_gains(runs: Sequence[Mapping[str, Any]]) -> "Figure":
    """The gain over updates, or the stories' gains if there is one step alone.

    Args:
      runs: as `StepScores.of_runs` returns them.
    """
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    several = any(len(list(steps_of_run(run))) > 1 for run in runs)
    styles: dict[str, dict[str, Any]] = {}
    for number, (run, name) in enumerate(zip(runs, run_names(runs), strict=True)):
        style: dict[str, Any] = {"color": f"C{number}", "marker": "o", "markersize": 4}
        styles[name] = style
        style["linestyle"] = "--" if number else "-"
        steps, scores = zip(*steps_of_run(run), strict=True)
        if several:
            gains = [1000 * each["gain"] for each in scores]
            errors = [1000 * each["gain_error"] for each in scores]
            axes.errorbar(steps, gains, errors, capsize=2, **style)
        else:
            gains = [1000 * gain for gain in scores[0]["by_story"].values()]
            style["linestyle"] = ""
            axes.plot(range(1, len(gains) + 1), gains, **style)
            axes.axhline(1000 * scores[0]["gain"], color=f"C{number}", linewidth=1)
    axes.axhline(0, color=GUIDE, linewidth=0.6)
    if several:
        steps = [step for run in runs for step, _ in steps_of_run(run)]
        scale_updates(axes, steps)
        axes.set_xlabel("updates")
    else:
        axes.set_xlabel("story, in the order of the table")
    axes.set_ylabel("gain, nats per word x 1000")
    axes.grid(alpha=0.3)
    add_legend(figure, "outside lower center", styles)
    return figure
