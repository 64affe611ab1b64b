"""The plot of losses that a training keeps up to date, and how figures are saved."""

import io
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from etils import epath

from gpt1_jax.data.files import write_whole
from gpt1_jax.runs.records import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 120
_FEW = 30  # points that are marked, since a line would not show them


def plot_loss(
    folder: epath.Path, train: str, unit: str, guess: float | None = None
) -> epath.Path:
    """Draws training and validation loss over steps from `metrics.jsonl`.

    Args:
      folder: the run folder, local or gs://.
      train: the training metric to draw beside `valid_loss`.
      unit: the unit of both.
      guess: the loss of a model that knows only how frequent labels are; dotted.

    Returns:
      The path of the picture, `plots/loss.png`.
    """
    records = read_metrics(folder / METRICS_FILE)
    figure = new_figure(7, 4.2, layout=None)  # another would draw it twice
    figure.subplots_adjust(left=0.11, right=0.97, bottom=0.12, top=0.92)
    axes = figure.subplots()
    for name, label, style in (
        (train, "training", {"color": "tab:blue", "linewidth": 1.0, "alpha": 0.6}),
        ("valid_loss", "validation", {"color": "tab:orange", "marker": "o"}),
    ):
        points = [(r["step"], r[name]) for r in records if name in r]
        if len(points) <= _FEW:
            style["marker"] = "o"
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    if guess is not None:
        axes.axhline(guess, color="0.5", linestyle=":", label="label frequencies alone")
    if found := [r for r in records if "valid_loss" in r]:
        best = min(found, key=lambda r: (math.isnan(r["valid_loss"]), r["valid_loss"]))
        title = _at("validation loss", best, unit)
        if best is not found[-1]:
            title = f"best {title}; {_at('last', found[-1])}"
        axes.set_title(title, fontsize=9)
    axes.set(xlabel="step", ylabel=f"loss, {unit}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, folder / "plots" / "loss.png")


def _at(name: str, record: Mapping[str, Any], unit: str = "") -> str:
    value = f"{record['valid_loss']:.3f} {unit}".strip()
    return f"{name} {value} at step {record['step']:,}"


def save_figure(figure: "Figure", path: epath.Path) -> epath.Path:
    """Writes a figure as PNG to a local path or gs://, and returns the path."""
    with warnings.catch_warnings():  # a letter that the font lacks becomes a box
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(picture := io.BytesIO(), format="png")
    write_whole(path, picture.getvalue())
    return path


def new_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> "Figure":
    """An empty figure of a size in inches, without pyplot, which picks a backend."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout=layout)
