"""Figures of the surprisal of words, at one step or over several."""

import itertools
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
_LONGEST = 24  # characters of a label beside a heat map
_WIDEST, _COLUMN = 11.0, 0.42  # inches: of a heat map, and of a step in it
_MOST_TICKS = 40


def surprisal_of_words(
    words: Sequence[str], bits: Sequence[float], items: Sequence[int] = ()
) -> "Figure":
    """Draws the surprisal of each word of a text as a bar above it.

    Args:
      words: at least one.
      bits: -log2 P of each, given those before it.
      items: the number of the text that each word is in; a line stands between texts.
    """
    rows = _wrapped(words)
    room = max(sum(_room(words[i]) for i in row) for row in rows)
    figure = new_figure(0.9 + _CHARACTER * room, 0.5 + 1.5 * len(rows))
    grid = figure.subplots(len(rows), 1, squeeze=False, sharey=True)
    borders = _borders(items)
    for axes, row in zip(grid.flat, rows, strict=True):
        widths = np.asarray([_room(words[i]) for i in row])
        ends = np.cumsum(widths)
        middles = ends - widths / 2
        heights = [bits[i] for i in row]
        bars = axes.bar(middles, heights, widths - 1, color="tab:blue", alpha=0.8)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7, color=GUIDE)
        labels = [_label(words[i]) for i in row]
        axes.set_xticks(middles, labels, fontsize=9, parse_math=False)
        for number, end in zip(row[:-1], ends, strict=False):
            if number in borders:
                axes.axvline(end, color=GUIDE, linewidth=1)
        axes.tick_params(axis="x", length=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y")
        axes.set(xlim=(0, room), ylim=(0, 1.15 * max(*bits, 1)))
    figure.supylabel("surprisal, bits", fontsize=10)
    return figure


def surprisal_by_step(
    words: Sequence[str],
    bits: Sequence[Sequence[float]],
    steps: Sequence[int],
    means: Sequence[float],
    items: Sequence[int] = (),
) -> "Figure":
    """Draws the surprisal of words at several steps of training.

    Args:
      words: N, drawn as rows.
      bits: [S][N], -log2 P of each word at each step.
      steps: S, drawn as columns.
      means: [S], of a whole text, drawn above.
      items: N, the number of the text that each word is in; a line stands between
        texts.
    """
    heights = [1.4, 0.2 * len(words)]
    width = min(_WIDEST, max(5.0, 2.6 + _COLUMN * len(steps)))
    figure = new_figure(width, 1.2 + sum(heights))
    above, axes = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    columns = range(len(steps))
    numbered = len(steps) <= MOST_NUMBERED
    above.plot(columns, means, marker="o", color="tab:blue")
    if numbered:
        style = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
        for place, mean in enumerate(means):
            above.annotate(f"{mean:.2f}", (place, mean), (4, 6), **style)
    above.set_ylim(0, 1.35 * np.nanmax([*means, 1]))  # small changes look small
    above.set_ylabel("mean of the text,\nbits", fontsize=9)
    above.grid()
    above.tick_params(labelbottom=False)
    picture = axes.imshow(np.transpose(bits), vmin=0, cmap="viridis", aspect="auto")
    if numbered:
        number_cells(axes, picture, np.transpose(bits), "{:.1f}")
    for border in _borders(items):
        axes.axhline(border + 0.5, color="white", linewidth=1.5)
    labels = [_label(word, _LONGEST) for word in words]
    axes.set_yticks(range(len(words)), labels, fontsize=8, parse_math=False)
    every = -(-len(steps) // _MOST_TICKS)  # so that labels do not touch
    ticks = columns[::-1][::every][::-1]
    names = [f"{steps[column]:,}" for column in ticks]
    axes.set_xticks(ticks, names, rotation=90, fontsize=8)
    axes.set_xlabel("step of training")
    figure.colorbar(picture, ax=axes, label="surprisal, bits")
    return figure


def _borders(items: Sequence[int]) -> list[int]:
    """Indices of the words before those that begin another item."""
    return [i for i, (a, b) in enumerate(itertools.pairwise(items)) if a != b]


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


def _label(word: str, most: int | None = None) -> str:
    """A word without white space at its ends, cut to some characters."""
    label = token_label(word.strip() or word)
    return f"{label[: most - 1]}…" if most and len(label) > most else label


def _room(word: str) -> int:
    """Characters that a word takes in a row, with the space after it."""
    return max(len(_label(word)), _NARROWEST) + 1
