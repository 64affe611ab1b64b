"""The figures of minimal pairs, at one step or over several."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.plots import (
    BARS,
    GUIDE,
    add_legend,
    new_figure,
    run_style,
    scale_updates,
    steps_of,
)
from gpt1_jax.studies.minimal_pairs.table import group_means, published_means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_PUBLISHED_MARKERS = ("1", "2", "3", "x", "*")  # grey, of `PUBLISHED` in turn
_GRID_COLUMNS, _GRID_TICKS = 4, 4
_GUIDES = {"5-gram": ":", "GPT-2": "--", "people": "-"}  # drawn over steps


def draw_pairs(scores: "pd.DataFrame") -> "Figure":
    """The figure of terms, at one step or over several.

    Args:
      scores: as `pair_scores` returns them.
    """
    import pandas as pd

    groups = ["", "term"]
    means = pd.concat([group_means(scores, group) for group in groups])
    published = {**published_means(scores, ""), **published_means(scores, "term")}
    if (scores.groupby("run")["step"].nunique() > 1).any():
        return pairs_over_steps(means, published)
    return pairs_by_group(means, published)


def pairs_by_group(
    means: "pd.DataFrame", published: Mapping[str, Mapping[str, float]]
) -> "Figure":
    """Draws the accuracy on minimal pairs of each group at one step, a row per group.

    Args:
      means: columns "run", "is_baseline", "group", "accuracy" and "standard_error".
      published: group -> model -> accuracy; drawn in grey.
    """
    groups = list(dict.fromkeys(means["group"]))
    figure = new_figure(8.5, 0.34 * len(groups) + 1.4)
    axes = figure.subplots()
    axes.axvline(50, color=GUIDE, linewidth=1)
    models = list(dict.fromkeys(model for each in published.values() for model in each))
    others: dict[str, dict[str, Any]] = {}
    for model, marker in zip(models, _PUBLISHED_MARKERS, strict=False):
        own = [(100 * published[g][model], groups.index(g)) for g in published]
        style: dict[str, Any] = {"color": GUIDE, "marker": marker, "linestyle": "none"}
        axes.plot(*zip(*own, strict=True), **style)
        others[f"{model}, published"] = style
    styles: dict[str, dict[str, Any]] = {}
    for number, (run, of_run) in enumerate(means.groupby("run", sort=False)):
        baseline = bool(of_run["is_baseline"].iloc[0])
        aside = 0.12 * (1 if baseline else -1) * (means["run"].nunique() > 1)
        style = {"color": f"C{number}", "marker": "o", **run_style(baseline)}
        style["linestyle"] = "none"
        places = [groups.index(group) + aside for group in of_run["group"]]
        errors = 100 * of_run["standard_error"]
        axes.errorbar(100 * of_run["accuracy"], places, xerr=errors, **BARS, **style)
        styles[str(run)] = style
    axes.set_yticks(range(len(groups)), [group.replace("_", " ") for group in groups])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("accuracy x 100 ± standard error (50: chance)")
    axes.grid(alpha=0.3)
    add_legend(figure, "outside right upper", {**styles, **others})
    return figure


def pairs_over_steps(
    means: "pd.DataFrame", published: Mapping[str, Mapping[str, float]]
) -> "Figure":
    """Draws the accuracy on minimal pairs over updates, a panel for each group.

    A baseline has dashed lines and hollow markers. Grey lines are published accuracies.
    A run that has step 0 alone, as a converted one, is drawn as a level.

    Args:
      means: columns "run", "is_baseline", "step", "group", "accuracy" and
        "standard_error".
      published: group -> model -> accuracy.
    """
    groups = list(dict.fromkeys(means["group"]))
    columns = min(_GRID_COLUMNS, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(2.6 * columns + 1.6, 2.1 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    styles: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, Any]] = {}
    for axes, group in zip(grid.flat, groups, strict=False):
        axes.axhline(50, color=GUIDE, linewidth=0.6)
        for model, line in _GUIDES.items():
            if model in published.get(group, {}):
                guide: dict[str, Any] = {"color": GUIDE, "linestyle": line}
                axes.axhline(100 * published[group][model], linewidth=1, **guide)
                others[f"{model}, published"] = guide
        of_group = means[means["group"] == group]
        style: dict[str, Any]
        for number, (run, own) in enumerate(of_group.groupby("run", sort=False)):
            style = {"color": f"C{number}", "marker": "o"}
            style |= {**run_style(own["is_baseline"].iloc[0]), "markersize": 3}
            styles[str(run)] = style
            if own["step"].any():
                errors = 100 * own["standard_error"]
                axes.errorbar(
                    own["step"], 100 * own["accuracy"], errors, **BARS, **style
                )
            else:
                axes.axhline(100 * own["accuracy"].iloc[0], **{**style, "marker": ""})
        axes.set_title(group.replace("_", " "), fontsize=8, parse_math=False)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(groups) :]:
        axes.axis("off")
    if steps := steps_of([own for _, own in means.groupby("run")]):
        ticks = steps[:: -(-len(steps) // _GRID_TICKS)]
        scale_updates(grid.flat[0], steps)  # the axis is shared
        for axes in grid.flat[max(0, len(groups) - columns) : len(groups)]:
            axes.tick_params(labelbottom=True)  # the lowest panel of each column
            axes.set_xticks(ticks, [f"{step:,}" for step in ticks], fontsize=8)
            axes.set_xticks([], minor=True)
    figure.supxlabel("updates", fontsize=9)
    figure.supylabel("accuracy x 100", fontsize=9)
    add_legend(figure, "outside right upper", {**styles, **others})
    return figure
