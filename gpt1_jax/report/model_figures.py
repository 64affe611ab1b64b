"""Pictures of a model's inside: attention, hidden states, parameters."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_jax.model.costs import component_sizes
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.figures import NUMBERED_CELLS, new_figure, number_cells, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 11.0  # inches; what is wider is shrunk by the notebook
_LABEL = 40  # characters of a sentence


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

    words = [visible(token) for token in tokens]
    titles = titles or [f"head {i}" for i in range(1, len(probs) + 1)]
    side = max(2.0, (0.17 if len(probs) > 1 else 0.3) * len(words))  # inches
    columns = max(1, min(len(probs), 4, int(_WIDTH // side)))
    rows = math.ceil(len(probs) / columns)
    figure = new_figure(columns * side + 1.6, rows * (side + 0.3) + 0.9)
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
    units = _units(states)
    cosines = np.einsum("itd,jtd->ij", units, units) / states.shape[1]
    names = ["embedding", *(f"layer {i}" for i in range(1, len(states)))]
    return _cosine_map(cosines, names, names, lowest=-1.0)


def sentence_similarity(states: np.ndarray, sentences: Sequence[str]) -> "Figure":
    """Draws the cosine similarity of sentences.

    Args:
      states: [M, D], one of each sentence in some layer. All of a model's states share
        a direction, so colours begin at the lowest of the cosines.
      sentences: M texts; long ones are cut.
    """
    units = _units(states)
    cosines = units @ units.T
    numbers = [str(number) for number in range(1, len(sentences) + 1)]
    names = [
        f"{textwrap.shorten(sentence, _LABEL, placeholder=' …')}  {number}"
        for sentence, number in zip(sentences, numbers, strict=True)
    ]
    return _cosine_map(cosines, names, numbers, lowest=float(cosines.min()))


def parameters_by_component(params: Params) -> "Figure":
    """Draws how the parameters of a model are shared out.

    Args:
      params: a language model's, such as `model.params`, or a fine-tuned model's, such
        as `model.run.params`.
    """
    from matplotlib.ticker import EngFormatter

    sizes = component_sizes(params)
    total = sum(sizes.values())
    figure = new_figure(7, 0.9 + 0.4 * len(sizes))
    axes = figure.subplots()
    bars = axes.barh(range(len(sizes)), list(sizes.values()))
    shown = [f"{size:,} ({size / total:.1%})" for size in sizes.values()]
    axes.bar_label(bars, shown, padding=3, fontsize=9)
    axes.set_yticks(range(len(sizes)), list(sizes))
    axes.invert_yaxis()
    axes.margins(x=0.45)
    axes.set_xlabel("parameters")
    axes.set_title(f"{total:,} parameters", fontsize=10)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _units(states: np.ndarray) -> np.ndarray:
    return states / np.linalg.norm(states, axis=-1, keepdims=True)


def _cosine_map(
    cosines: np.ndarray, rows: Sequence[str], columns: Sequence[str], lowest: float
) -> "Figure":
    """A square heat map of named rows and columns, with numbers unless many."""
    side = 0.55 * len(rows)
    beside, below = (0.075 * max(map(len, names)) for names in (rows, columns))
    figure = new_figure(side + beside + 1.6, side + below + 0.6)
    axes = figure.subplots()
    colors = "RdBu_r" if lowest == -1 else "Blues"
    picture = axes.imshow(cosines, vmin=lowest, vmax=1, cmap=colors)
    rotation = 90 if below > 0.5 else 0
    axes.set_xticks(range(len(rows)), columns, rotation=rotation, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    if len(rows) <= NUMBERED_CELLS:
        number_cells(axes, picture, cosines, "{:.2f}")
    figure.colorbar(picture, ax=axes, shrink=0.8, label="cosine similarity")
    return figure
