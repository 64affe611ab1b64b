"""Figures of the surprisal of words, at one step or over several."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpt1_jax.report.notebook_figures import (
    MOST_NUMBERED,
    number_cells,
    token_label,
)
from gpt1_jax.report.plots import GUIDE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW, _NARROWEST = 110, 3  # characters: of a row of words, and the least of a word
_CHARACTER = 0.093  # inches


def surprisal_of_words(words: Sequence[str], bits: Sequence[float]) -> "Figure":
    """Draws the surprisal of each word of a text as a bar above it.

    Args:
      words: at least one.
      bits: -log2 P of each, given those before it.
    """
    rows = _wrapped(words)
    room = max(sum(_room(words[i]) for i in row) for row in rows)
    figure = new_figure(0.9 + _CHARACTER * room, 0.5 + 1.5 * len(rows))
    grid = figure.subplots(len(rows), 1, squeeze=False, sharey=True)
    for axes, row in zip(grid.flat, rows, strict=True):
        widths = np.asarray([_room(words[i]) for i in row])
        middles = np.cumsum(widths) - widths / 2
        heights = [bits[i] for i in row]
        bars = axes.bar(middles, heights, widths - 1, color="tab:blue", alpha=0.8)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7, color=GUIDE)
        labels = [token_label(words[i]) for i in row]
        axes.set_xticks(middles, labels, fontsize=9, parse_math=False)
        axes.tick_params(axis="x", length=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set(axisbelow=True, xlim=(0, room), ylim=(0, 1.15 * max(*bits, 1)))
    figure.supylabel("surprisal, bits", fontsize=10)
    return figure


def surprisal_by_step(
    words: Sequence[str],
    bits: Sequence[Sequence[float]],
    steps: Sequence[int],
    means: Sequence[float],
) -> "Figure":
    """Draws the surprisal of words at several steps of training.

    Args:
      words: N, drawn as rows.
      bits: [S][N], -log2 P of each word at each step.
      steps: S, drawn as columns.
      means: [S], of a whole text, drawn above.
    """
    figure = new_figure(max(5.0, 2.6 + 0.42 * len(steps)), 2.6 + 0.2 * len(words))
    heights = [1.4, 0.2 * len(words)]
    above, axes = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    columns = range(len(steps))
    above.plot(columns, means, marker="o", color="tab:blue")
    for column, mean in zip(columns, means, strict=True):
        above.annotate(
            f"{mean:.2f}",
            (column, mean),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    above.margins(y=0.35)
    above.set_ylabel("mean of the text,\nbits", fontsize=9)
    above.grid(alpha=0.3)
    picture = axes.imshow(np.transpose(bits), vmin=0, cmap="viridis", aspect="auto")
    if len(steps) <= MOST_NUMBERED:
        number_cells(axes, picture, np.transpose(bits), "{:.1f}")
    labels = [token_label(word) for word in words]
    axes.set_yticks(range(len(words)), labels, fontsize=8, parse_math=False)
    axes.set_xticks(columns, [f"{step:,}" for step in steps], rotation=90, fontsize=8)
    axes.set_xlabel("step of training")
    figure.colorbar(picture, ax=axes, label="surprisal, bits")
    return figure


def _wrapped(words: Sequence[str]) -> list[list[int]]:
    """Indices of words, in rows as wide as a figure."""
    rows: list[list[int]] = [[]]
    taken = 0
    for number, word in enumerate(words):
        taken += _room(word)
        if rows[-1] and taken > _ROW:
            rows.append([])
            taken = _room(word)
        rows[-1].append(number)
    return rows


def _room(word: str) -> int:
    """Characters that a word takes in a row, with the space after it."""
    return max(len(token_label(word)), _NARROWEST) + 1
