"""Figures of runs: losses, comparisons of fine-tuned runs, scores without training.

Each function returns a matplotlib `Figure`, which a notebook displays with
`%matplotlib inline` and `figure.savefig(path)` saves. Text and background have the
colours of the matplotlib style in use; guides are mid-grey, visible on any.
"""

import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from gpt1_jax.data.files import write_whole
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.tasks.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GUIDE = "0.5"  # the grey of guide lines and numbers
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # of curves, in turn
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))

_DPI = 120


def plot_loss(folder: epath.Path, train: str, unit: str) -> epath.Path:
    """Draws training and validation loss over steps from `metrics.jsonl`.

    Args:
      folder: the run folder, local or gs://.
      train: the training metric to draw beside `valid_loss`.
      unit: the unit of both.

    Returns:
      The path of the picture, `plots/loss.png`.
    """
    records = read_metrics(folder / METRICS_FILE)
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    for name, label, style in (
        (train, "training", {"color": "tab:blue", "linewidth": 1.0, "alpha": 0.6}),
        ("valid_loss", "validation", {"color": "tab:orange", "marker": "o"}),
    ):
        points = [(r["step"], r[name]) for r in records if name in r]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    last = [r for r in records if "valid_loss" in r]
    if last:
        axes.set_title(
            f"validation loss {last[-1]['valid_loss']:.3f} {unit} at step "
            f"{last[-1]['step']:,}",
            fontsize=10,
        )
    axes.set(xlabel="step", ylabel=f"loss, {unit}")
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, folder / "plots" / "loss.png")


def scale_updates(axes: "Axes", steps: Sequence[int]) -> None:
    """Makes an axis of updates logarithmic, with a place for step 0 if it is there."""
    from matplotlib.ticker import StrMethodFormatter

    if 0 in steps:
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        axes.set_xlim(-0.4, 1.3 * max(steps))
    else:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def save_figure(figure: "Figure", path: epath.Path) -> epath.Path:
    """Writes a figure as PNG to a local path or gs://, and returns the path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
    return path


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of a size in inches, without pyplot, which picks a backend."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


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


# --- comparisons of fine-tuned runs ---------------------------------------------


_COLORS = ("C0", "C1", "C2", "C3", "C4", "C5")  # of the style
_PANELS = 2  # in a row
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


# --- zero-shot ------------------------------------------------------------------


_STEP_ASIDE = 0.008  # between points of one step, as a fraction of the axis
_CROWD = 0.4  # the most they take together, as a fraction of the way to the next step
_LABELLED_STEPS = 8  # the most steps that are all labelled
_BARS: dict[str, Any] = {"elinewidth": 1, "capsize": 2}
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
            axes.errorbar(places, curve["relative"], errors, **_BARS, **style)
        else:
            axes.axhline(curve["relative"].iloc[0], **{**style, "marker": ""})
    axes.set(xlabel="updates", ylabel=_LABEL)
    steps = _steps(curves)
    scale_updates(axes, steps)
    if len(steps) <= _LABELLED_STEPS:
        axes.set_xticks(steps, [f"{step:,}" for step in steps])
        axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    of_run = [curve for curve in curves if not _is_baseline(curve)]
    tasks = {_task(curve): _curve_style(curve, curves) for curve in of_run}
    _add_legend(figure, "outside right upper", tasks)
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
        errors: dict[str, Any] = {"xerr": curve["relative_standard_error"], **_BARS}
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


def _steps(curves: "Sequence[pd.DataFrame]") -> list[int]:
    """All steps of curves over steps; one that is at step 0 alone is a level."""
    over_steps = [curve["step"] for curve in curves if curve["step"].any()]
    return sorted({step for steps in over_steps for step in steps})


def _task(curve: "pd.DataFrame") -> str:
    return curve["task"].iloc[0]


def _is_baseline(curve: "pd.DataFrame") -> bool:
    return bool(curve["is_baseline"].iloc[0])


def _tasks(curves: "Sequence[pd.DataFrame]") -> list[str]:
    return list(dict.fromkeys(map(_task, curves)))


def _asides(curves: "Sequence[pd.DataFrame]") -> list[float]:
    """The factor, near 1, by which each curve's steps are shifted; 0 stays 0."""
    steps = [step for step in _steps(curves) if step]
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
        **_run_style(_is_baseline(curve)),
    }


def _run_style(is_baseline: bool) -> dict[str, Any]:
    if is_baseline:
        return {"markersize": 5, "linestyle": "--", "markerfacecolor": "none"}
    return {"markersize": 5, "linestyle": "-"}


def _add_legend_of_runs(
    figure: "Figure", place: Any, curves: "Sequence[pd.DataFrame]"
) -> None:
    """Adds which run is solid and which is dashed, if there is a baseline."""
    if _is_baseline(curves[-1]):
        grey = {"color": GUIDE, "marker": "o"}
        styles = {
            curve["run"].iloc[0]: {**grey, **_run_style(_is_baseline(curve))}
            for curve in curves
        }
        _add_legend(figure, place, styles)


def _add_legend(
    figure: "Figure", place: Any, styles: dict[str, dict[str, Any]]
) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=label, **style) for label, style in styles.items()]
    legend = figure.legend(handles=lines, loc=place, handlelength=3)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of folders


# --- minimal pairs --------------------------------------------------------------

_PUBLISHED_MARKERS = ("1", "2", "3", "x", "*")  # grey, of `PUBLISHED` in turn
_GRID_COLUMNS, _GRID_TICKS = 4, 4
_GUIDES = {"5-gram": ":", "GPT-2": "--", "people": "-"}  # drawn over steps


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
        style = {"color": f"C{number}", "marker": "o", **_run_style(baseline)}
        style["linestyle"] = "none"
        places = [groups.index(group) + aside for group in of_run["group"]]
        errors = 100 * of_run["standard_error"]
        axes.errorbar(100 * of_run["accuracy"], places, xerr=errors, **_BARS, **style)
        styles[str(run)] = style
    axes.set_yticks(range(len(groups)), [group.replace("_", " ") for group in groups])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("accuracy x 100 ± standard error (50: chance)")
    axes.grid(alpha=0.3)
    _add_legend(figure, "outside right upper", {**styles, **others})
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
            style |= {**_run_style(own["is_baseline"].iloc[0]), "markersize": 3}
            styles[str(run)] = style
            if own["step"].any():
                errors = 100 * own["standard_error"]
                axes.errorbar(
                    own["step"], 100 * own["accuracy"], errors, **_BARS, **style
                )
            else:
                axes.axhline(100 * own["accuracy"].iloc[0], **{**style, "marker": ""})
        axes.set_title(group.replace("_", " "), fontsize=8, parse_math=False)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(groups) :]:
        axes.axis("off")
    if steps := _steps([own for _, own in means.groupby("run")]):
        ticks = steps[:: -(-len(steps) // _GRID_TICKS)]
        scale_updates(grid.flat[0], steps)  # the axis is shared
        for axes in grid.flat[max(0, len(groups) - columns) : len(groups)]:
            axes.tick_params(labelbottom=True)  # the lowest panel of each column
            axes.set_xticks(ticks, [f"{step:,}" for step in ticks], fontsize=8)
            axes.set_xticks([], minor=True)
    figure.supxlabel("updates", fontsize=9)
    figure.supylabel("accuracy x 100", fontsize=9)
    _add_legend(figure, "outside right upper", {**styles, **others})
    return figure


# --- styles of a page -----------------------------------------------------------


def _page_style(ink: str, guide: str, paper: str) -> dict[str, Any]:
    """Settings of matplotlib for the colours of text, guides and page."""
    return {
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "axes.edgecolor": guide,
        "xtick.color": guide,
        "ytick.color": guide,
        "grid.color": guide,
        "legend.edgecolor": guide,
        "legend.facecolor": paper,
        "figure.facecolor": paper,
        "axes.facecolor": paper,
        "savefig.facecolor": paper,
        "svg.fonttype": "path",  # looks the same without the font
        "svg.hashsalt": "gpt1_jax",  # the same file each time
    }


# The colours of the page, in templates/style.css.
LIGHT = _page_style(ink="#1f2328", guide="#7b838c", paper="#ffffff")
_BRIGHT = ["#6cb6ff", "#ffab5e", "#6fd08c", "#ff8a80", "#c9a4f5", "#d3a688", "#f59bd5"]
DARK = {
    **_page_style(ink="#e6e8eb", guide="#8d96a0", paper="#16191d"),
    "axes.prop_cycle": f"cycler(color={_BRIGHT})",
}


def render_figure(
    draw: "Callable[[], Figure]", style: Mapping[str, Any], kind: str
) -> bytes:
    """The bytes of a figure in a style.

    Args:
      draw: makes the figure.
      style: `LIGHT` or `DARK`.
      kind: "svg" or "png".
    """
    import matplotlib

    settings: Any = dict(style)
    file = io.BytesIO()
    with matplotlib.rc_context(settings):
        # Without the date and the version of matplotlib.
        nothing = {"svg": {"Date": None}, "png": {"Software": None}}
        draw().savefig(file, format=kind, metadata=nothing[kind])
    return file.getvalue()
