"""What all figures share, and the loss of a run.

Whatever is drawn returns a matplotlib `Figure`, which a notebook shows with
`%matplotlib inline` and `figure.savefig(path)` saves. Text and background have the
colours of the matplotlib style in use; guides are mid-grey, which shows on any.
"""

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from gpt1_jax.data.files import write_whole
from gpt1_jax.runs.records import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GUIDE = "0.5"  # the grey of lines and numbers beside what is shown
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # of several curves, in turn
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
NUMBERED_CELLS = 15  # heat maps of at most so many columns have numbers in their cells

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
    return save(figure, folder / "plots" / "loss.png")


def save(figure: "Figure", path: epath.Path) -> epath.Path:
    """Writes a figure as PNG, local or to gs://, and returns its path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
    return path


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches; without pyplot, which would choose a backend."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def visible(token: str) -> str:
    """A token as a label, in quotes if nothing would be seen of it."""
    return token if token.strip() and token.isprintable() else repr(token)


def number_cells(axes: Any, picture: Any, values: np.ndarray, form: str) -> None:
    """Writes the value of each cell of a heat map into it."""
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = picture.to_rgba(value)
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        color = "white" if dark else "black"
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
        axes.text(column, row, form.format(value), color=color, **style)
