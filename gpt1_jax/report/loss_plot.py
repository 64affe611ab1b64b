"""The plot of losses that a training keeps up to date."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from gpt1_jax.report.plots import (
    GUIDE,
    figure_path,
    label_updates,
    new_figure,
    save_figure,
)
from gpt1_jax.runs.records import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW = 30  # points that are marked, since a line would not show them


def plot_loss(
    folder: epath.Path,
    train: str,
    unit: str,
    guess: float | None = None,
    figure: str = ".png",
) -> epath.Path | None:
    """Draws training and validation loss over steps from `metrics.jsonl`.

    The losses are written beside the picture, as `loss.csv`.

    Args:
      folder: the run folder, local or gs://.
      train: the training metric to draw beside `valid_loss`.
      unit: the unit of both.
      guess: the loss of a model that knows only how frequent labels are; dotted.
      figure: the key `figure`: a file, or the suffix of `plots/loss` in the folder.

    Returns:
      The path of the picture; None if it could not be drawn, which a warning says.
    """
    names = {"training": train, "validation": "valid_loss"}
    by_step: dict[int, dict[str, Any]] = {}
    for record in read_metrics(folder / METRICS_FILE):  # several may be of one step
        found = {name: record[key] for name, key in names.items() if key in record}
        if found:
            empty = {"step": record["step"], **dict.fromkeys(names)}
            by_step.setdefault(record["step"], empty).update(found)
    losses = list(by_step.values())
    path = figure_path(folder, "loss", figure)
    return save_figure(lambda: _draw(losses, unit, guess), path, losses)


def _draw(
    losses: Sequence[Mapping[str, Any]], unit: str, guess: float | None
) -> "Figure":
    figure = new_figure(7, 4.2, layout=None)  # another would draw it twice
    figure.subplots_adjust(left=0.11, right=0.97, bottom=0.12, top=0.92)
    axes = figure.subplots()
    for name, style in (
        ("training", {"color": "tab:blue", "linewidth": 1.0, "alpha": 0.6}),
        ("validation", {"color": "tab:orange", "marker": "o"}),
    ):
        drawn = [each for each in losses if each[name] is not None]
        points = [(each["step"], each[name]) for each in drawn]
        if len(points) <= _FEW:
            style["marker"] = "o"
        if points:
            axes.plot(*zip(*points, strict=True), label=name, **style)
    if guess is not None:
        axes.axhline(guess, color=GUIDE, linestyle=":", label="label frequencies alone")
    if found := [each for each in losses if each["validation"] is not None]:
        best = min(found, key=lambda e: (math.isnan(e["validation"]), e["validation"]))
        title = _at("validation loss", best, unit)
        if best is not found[-1]:
            title = f"best {title}; {_at('last', found[-1])}"
        axes.set_title(title)
    axes.set(xlabel="step", ylabel=f"loss, {unit}")
    label_updates(axes, [each["step"] for each in losses])
    axes.grid()
    axes.legend()
    return figure


def _at(name: str, losses: Mapping[str, Any], unit: str = "") -> str:
    value = f"{losses['validation']:.3f} {unit}".strip()
    return f"{name} {value} at step {losses['step']:,}"
