"""The plot of losses that a training keeps up to date, and how figures are saved."""

import io
from typing import TYPE_CHECKING

from etils import epath

from gpt1_jax.data.files import write_whole
from gpt1_jax.runs.records import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
