"""Pictures for people; the only file that imports matplotlib.

What is drawn from arrays returns a matplotlib `Figure`, which a notebook shows with
`%matplotlib inline` and `figure.savefig(path)` saves.
"""

import io
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from gpt1_jax.runs.records import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 120
_WIDTH = 11.0  # inches; what is wider is shrunk by the notebook
_NUMBERED_CELLS = 15  # heat maps of at most so many columns have numbers in their cells


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
    figure = _figure(7, 4.2)
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    path = folder / "plots" / "loss.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture.getvalue())
    return path


def next_token_bars(predictions: Sequence[tuple[str, float]], title: str) -> "Figure":
    """Draws the likeliest next tokens as bars, the likeliest on top.

    Args:
      predictions: tokens and their probabilities, as `model.next_tokens` gives them.
      title: such as the text that they follow.
    """
    words = [_visible(word) for word, _ in predictions]
    figure = _figure(7, 0.9 + 0.3 * len(words))
    axes = figure.subplots()
    bars = axes.barh(range(len(words)), [share for _, share in predictions])
    axes.bar_label(bars, fmt="%.3f", padding=3, fontsize=9)
    axes.set_yticks(range(len(words)), words, parse_math=False)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("probability")
    axes.set_title(textwrap.fill(title, 80), fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def attention_maps(
    probs: np.ndarray, tokens: Sequence[str], titles: Sequence[str] = ()
) -> "Figure":
    """Draws attention maps, each a square of the same tokens; grey is the future.

    Args:
      probs: [M, T, T]: the rows of each map are the tokens that attend, its columns
        those attended to. `model.attention(text)[layer]` has one map for each head.
      tokens: T texts, as `model.tokens` gives them.
      titles: M, one above each map; by default "head 1" to "head M".
    """
    from matplotlib import colormaps

    words = [_visible(token) for token in tokens]
    titles = titles or [f"head {i}" for i in range(1, len(probs) + 1)]
    side = max(2.0, (0.17 if len(probs) > 1 else 0.3) * len(words))  # inches
    columns = max(1, min(len(probs), 4, int(_WIDTH // side)))
    rows = math.ceil(len(probs) / columns)
    figure = _figure(columns * side + 1.6, rows * (side + 0.3) + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    colors = colormaps["Blues"].with_extremes(bad="0.94")
    future = np.triu(np.ones(probs.shape[1:], bool), 1)
    lowest = grid.flat[max(0, len(probs) - columns) : len(probs)]
    for axes, title, weights in zip(grid.flat, titles, probs, strict=False):
        weights = np.ma.masked_where(future, weights)
        picture = axes.imshow(weights, vmin=0, vmax=1, cmap=colors)
        axes.set_title(title, fontsize=10)
        labels: dict[str, Any] = {"fontsize": 8, "parse_math": False}
        axes.set_xticks(range(len(words)), words, rotation=90, **labels)
        axes.set_yticks(range(len(words)), words, **labels)
        axes.tick_params(labelbottom=axes in lowest)
    for axes in grid.flat[len(probs) :]:
        axes.axis("off")
    figure.supxlabel("attended to", fontsize=9)
    figure.supylabel("attending from", fontsize=9)
    bar: dict[str, Any] = {"shrink": 0.8 / rows, "anchor": (0, 1)}
    figure.colorbar(picture, ax=grid, label="probability", **bar)
    return figure


def layer_similarity(states: np.ndarray) -> "Figure":
    """Draws the cosine similarity of a text's states in different layers.

    Args:
      states: [L + 1, T, D], as `model.hidden_states` gives them. Each cell is the mean
        over the tokens of the cosine between a token's states in two layers.
    """
    units = states / np.linalg.norm(states, axis=-1, keepdims=True)
    cosines = np.einsum("itd,jtd->ij", units, units) / states.shape[1]
    names = ["embedding", *(f"layer {i}" for i in range(1, len(states)))]
    figure = _figure(0.55 * len(names) + 2.6, 0.55 * len(names) + 1.6)
    axes = figure.subplots()
    picture = axes.imshow(cosines, vmin=-1, vmax=1, cmap="RdBu_r")
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    if len(names) <= _NUMBERED_CELLS:
        for (row, column), cosine in np.ndenumerate(cosines):
            color = "white" if abs(cosine) > 0.6 else "black"
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(column, row, f"{cosine:.2f}", color=color, **style)
    figure.colorbar(picture, ax=axes, shrink=0.8, label="cosine similarity")
    return figure


def _figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches; without pyplot, which would choose a backend."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def _visible(token: str) -> str:
    """A token as a label, in quotes if nothing would be seen of it."""
    return token if token.strip() and token.isprintable() else repr(token)
