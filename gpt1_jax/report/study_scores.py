"""The scores of a study: one long table, and the Markdown and the figure made from it.

pandas is imported where it is used: it takes a third of a second.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.markdown import escape, markdown_table
from gpt1_jax.report.plots import (
    BARS,
    GUIDE,
    LINES,
    MARKERS,
    add_legend,
    new_figure,
    run_style,
    scale_updates,
)
from gpt1_jax.report.tables import run_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# The rows of a task in the long table, from its name and its scores.
Rows = Callable[[str, Mapping[str, Any]], Iterable[Mapping[str, Any]]]
RUN, BASELINE = "run", "baseline"  # names in results.json, of several with _2, _3, ..
_NO_STEP = -1  # of published scores
_MEAN = "mean of "
_MOST_COLUMNS = 8  # of several runs in one table
_COLUMNS = 4  # panels in a row
_POINTS = ("1", "2", "3", "x", "*")  # markers of published scores


def long_table(runs: Sequence[Mapping[str, Any]], rows: Rows) -> "pd.DataFrame":
    """The scores of runs at all their steps, a row for each.

    Args:
      runs: the "runs" of a results.json: each `{"name": .., "init_from": .., "kind":
        .., "checkpoints": [{"step": .., "tasks": {task: scores, ..}}, ..]}`. Those of
        1.0 have no names: the second is the baseline.
      rows: the rows of a task.

    Returns:
      Columns "run" (what tells runs apart), "set" (the same for runs that differ by
      their seed), "is_baseline", "step", "at" (the step's name) and those of the rows:
      "score" and "error" (a standard error, or NaN), as they are shown, and the names
      of groups.
    """
    import pandas as pd

    names = [
        run.get("name") or run.get("set") or (RUN, BASELINE)[n > 0]
        for n, run in enumerate(runs)
    ]
    labels = run_names([{"kind": "", **run} for run in runs])
    if len(set(labels)) < len(labels):  # one run, scored on several sets
        labels = names
    return pd.DataFrame(
        {
            "run": label,
            "set": name.partition("_")[0],
            "is_baseline": name.startswith(BASELINE),
            "step": checkpoint["step"],
            "at": checkpoint.get("revision", f"step {checkpoint['step']:,}"),
            **row,
        }
        for run, name, label in zip(runs, names, labels, strict=True)
        for checkpoint in run["checkpoints"]
        for task, scores in checkpoint["tasks"].items()
        for row in rows(task, scores)
    )


def with_published(
    scores: "pd.DataFrame", published: Iterable[Mapping[str, Any]]
) -> "pd.DataFrame":
    """Adds published scores to those of runs, as runs without a step.

    Args:
      scores: as `long_table` returns them.
      published: rows with "run", who scored it, "score" and the columns of groups.
    """
    import pandas as pd

    known = {"is_baseline": False, "step": _NO_STEP, "at": "", "error": math.nan}
    rows = [{"set": row["run"], **known, **row} for row in published]
    return pd.concat([scores, pd.DataFrame(rows)]) if rows else scores


def mean_over_runs(scores: "pd.DataFrame", labels: Sequence[str]) -> "pd.DataFrame":
    """The mean over runs that differ by their seed, with its spread as the error.

    The spread is the standard deviation over the runs. Steps and groups that one of
    them lacks are left out.

    Args:
      scores: as `long_table` returns them.
      labels: the columns that name groups.
    """
    import pandas as pd

    parts = []
    for _, own in scores.groupby("set", sort=False):
        runs = list(own["run"].unique())
        if len(runs) > 1:
            first = dict.fromkeys(["set", "is_baseline", "step", "at", *labels])
            groups = own.groupby(list(first), sort=False)["score"]
            own = groups.agg(score="mean", error="std", runs="size").reset_index()
            own = own[own.pop("runs") == len(runs)]
            own = own.assign(run=f"{_MEAN}{', '.join(runs)} (± SD)")
        parts.append(own)
    return pd.concat(parts, ignore_index=True)


def shown(score: float, error: float, digits: int = 1) -> str:
    """A score, with its error unless that is unknown or 0, as of equal scores."""
    if not error > 0:
        return f"{score:.{digits}f}"
    return f"{score:.{digits}f} ± {error:.{digits}f}"


def scores_table(scores: "pd.DataFrame", labels: Sequence[str], digits: int = 1) -> str:
    """A Markdown table: a line for each group, a column for each step of each run.

    If that would be many columns, each run has a table.

    Args:
      scores: as `long_table` returns them.
      labels: the columns that name a group; those of numbers come last.
      digits: of a score.
    """
    scores = mean_over_runs(scores, labels)
    of_runs = scores[scores["step"] != _NO_STEP]
    runs = list(of_runs["run"].unique())
    if len(runs) < 2 or len(of_runs[["run", "at"]].drop_duplicates()) <= _MOST_COLUMNS:
        parts = [_table(scores, labels, digits, alone=len(runs) < 2)]
    else:
        parts = []
        for run in runs:
            own = scores[(scores["run"] == run) | (scores["step"] == _NO_STEP)]
            parts += [f"**{escape(run)}**", _table(own, labels, digits, alone=True)]
    if means := [escape(run) for run in runs if run.startswith(_MEAN)]:
        parts.append(f"Scores: {'; '.join(means)}. SD is that over runs.")
    return "\n\n".join(parts)


def _table(
    scores: "pd.DataFrame", labels: Sequence[str], digits: int, *, alone: bool
) -> str:
    columns: dict[str, None] = {}
    lines: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in scores.to_dict("records"):
        names = [row["run"]] if row["step"] == _NO_STEP or not alone else []
        title = ", ".join(filter(None, [*names, row["at"]]))
        columns[title] = None
        line = lines.setdefault(tuple(row[label] for label in labels), {})
        line[title] = shown(row["score"], row["error"], digits)
    body = [
        [*map(_cell, group), *(line.get(title, "-") for title in columns)]
        for group, line in lines.items()
    ]
    num_texts = sum(scores[label].dtype.kind not in "if" for label in labels)
    return markdown_table([*labels, *map(escape, columns)], body, num_texts)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def draw_scores(
    scores: "pd.DataFrame",
    by: str,
    label: str,
    guides: Sequence[float] = (),
    *,
    panels: bool = False,
    share: bool = True,
) -> "Figure":
    """Draws scores with their errors, over steps or at one.

    Over steps, groups are curves of their colours or have a panel each; a run with one
    step is a point. If that is step 0, as of converted runs, it is a level line, like a
    published score. At one step there is a row of points for each group. A baseline has
    dashed lines and hollow markers.

    Args:
      scores: as `long_table` returns them.
      by: the column of groups.
      label: names the axis of scores.
      guides: scores to mark, such as chance.
      panels: whether each group has a panel, and each run a colour.
      share: whether panels share the axis of scores.
    """
    scores = mean_over_runs(scores, [by])
    steps = scores[scores["step"] != _NO_STEP].groupby(["run", by])["step"].nunique()
    if (steps > 1).any():
        return _draw_steps(scores, by, label, guides, panels, share)
    return _draw_rows(scores, by, label, guides)


def _draw_steps(
    scores: "pd.DataFrame",
    by: str,
    label: str,
    guides: Sequence[float],
    panels: bool,
    share: bool,
) -> "Figure":
    """Curves over updates: of one colour for each group, or a panel for each."""
    groups, runs = (list(scores[name].unique()) for name in (by, "run"))
    panels = panels and len(groups) > 1
    by_run = panels or len(groups) == 1
    titles = [_spelled(group) for group in groups] if panels else [""]
    columns = min(_COLUMNS, len(titles))
    num_rows = math.ceil(len(titles) / columns)
    width, height = (2.6 * columns + 1.6, 2.1 * num_rows + 0.7) if panels else (8, 4.5)
    figure = new_figure(width, height)
    grid = figure.subplots(num_rows, columns, squeeze=False, sharex=True, sharey=share)
    styles: dict[str, dict[str, Any]] = {}
    steps: set[int] = set()
    for (group, run), own in scores.groupby([by, "run"], sort=False):
        number = runs.index(run) if by_run else groups.index(group)
        style = _style(own, number)
        styles.setdefault(run if by_run else group, style)
        axes = grid.flat[groups.index(group) if panels else 0]
        if own["step"].max() > 0:
            steps.update(own["step"])
            style = {**style, "markersize": 3} if panels else style
            axes.errorbar(own["step"], own["score"], own["error"], **BARS, **style)
        else:
            axes.axhline(
                own["score"].iloc[0], **{**style, "marker": "", "linewidth": 1}
            )
    for axes in grid.flat[len(titles) :]:
        axes.set_visible(False)
    for number, (axes, title) in enumerate(zip(grid.flat, titles, strict=False)):
        axes.set_title(title, fontsize=8, parse_math=False)
        for guide in guides:
            axes.axhline(guide, color=GUIDE, linewidth=0.8)
        axes.grid(alpha=0.3)
        # The lowest of each column, as the last row may be short.
        axes.tick_params(labelbottom=number + columns >= len(titles))
    scale_updates(grid.flat[0], steps)  # the axis is shared
    figure.supxlabel("updates", fontsize=9)
    figure.supylabel(label, fontsize=9)
    add_legend(figure, "outside right upper", styles)
    if not by_run and scores["is_baseline"].any():
        named = scores.groupby("run", sort=False)
        grey = {"color": GUIDE, "marker": "o"}
        styles = {run: {**_style(own, 0), **grey} for run, own in named}
        add_legend(figure, "outside right lower", styles)
    return figure


def _draw_rows(
    scores: "pd.DataFrame", by: str, label: str, guides: Sequence[float]
) -> "Figure":
    """Points at one step, a row for each group."""
    groups = list(scores[by].unique())
    figure = new_figure(7.5, 0.34 * len(groups) + 1.4)
    axes = figure.subplots()
    for guide in guides:
        axes.axvline(guide, color=GUIDE, linewidth=0.8)
    styles: dict[str, dict[str, Any]] = {}
    num_scored = scores.loc[scores["step"] != _NO_STEP, "run"].nunique()
    for number, (run, own) in enumerate(scores.groupby("run", sort=False)):
        style = {**_style(own, number), "linestyle": "none"}
        aside = 0.0
        if own["step"].iloc[0] == _NO_STEP:
            style["marker"] = _POINTS[(number - num_scored) % len(_POINTS)]
        else:
            aside = 0.2 * (number - (num_scored - 1) / 2)
        places = [groups.index(group) + aside for group in own[by]]
        axes.errorbar(own["score"], places, xerr=own["error"], **BARS, **style)
        styles[", ".join(filter(None, [run, own["at"].iloc[0]]))] = style
    axes.set_yticks(range(len(groups)), map(_spelled, groups), parse_math=False)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
    add_legend(figure, "outside right upper", styles)
    return figure


def _style(own: "pd.DataFrame", number: int) -> dict[str, Any]:
    """The style of a run's scores, or of a group's; published ones are grey lines."""
    if own["step"].iloc[0] == _NO_STEP:
        return {"color": GUIDE, "marker": "", "linestyle": LINES[number % len(LINES)]}
    return {
        "color": f"C{number}",
        "marker": MARKERS[number % len(MARKERS)],
        **run_style(bool(own["is_baseline"].iloc[0])),
    }


def _spelled(name: str) -> str:
    return str(name).replace("_", " ")
