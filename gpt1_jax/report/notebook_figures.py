"""Figures for notebooks: predictions, attention, states, parameters."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gpt1_jax.model.language_model import Params
from gpt1_jax.report.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NUMBERED = 15  # the most columns of a heat map with numbers in its cells
_WIDTH = 11.0  # inches; notebooks shrink wider figures
_SENTENCE = 40  # characters of a label
_COMPONENTS = {
    "wte": "token embedding, also the output",
    "wpe": "position embedding",
    "attn": "attention",
    "mlp": "MLP",
    "lstm": "LSTM",
    "ln_1": "LayerNorm",
    "ln_2": "LayerNorm",
    "head": "head",
}


def next_token_bars(predictions: Sequence[tuple[str, float]], title: str) -> "Figure":
    """Draws the likeliest next tokens as bars, the likeliest on top.

    Args:
      predictions: tokens and their probabilities, as `model.next_tokens` gives them.
      title: such as the text that they follow.
    """
    words = [token_label(word) for word, _ in predictions]
    figure = new_figure(7, 0.9 + 0.3 * len(words))
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


def tokens_per_word(counts: Sequence[int]) -> "Figure":
    """Draws the share of the words of a text that take one token, two and so on.

    Args:
      counts: tokens of each word.
    """
    numbers, words = np.unique(np.asarray(counts), return_counts=True)
    figure = new_figure(7, 3.6)
    axes = figure.subplots()
    bars = axes.bar(numbers, words / len(counts))
    axes.bar_label(bars, [f"{n / len(counts):.1%}" for n in words], fontsize=8)
    axes.set_xticks(range(int(numbers.min()), int(numbers.max()) + 1))
    axes.margins(y=0.12)
    axes.set(xlabel="tokens of a word", ylabel="share of the words")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title(
        f"{len(counts):,} words, {np.mean(counts):.2f} tokens each", fontsize=10
    )
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

    words = [token_label(token) for token in tokens]
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
    return _heat_map(cosines, names, names, (-1.0, 1.0), "cosine similarity")


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
        f"{textwrap.shorten(sentence, _SENTENCE, placeholder=' …')}  {number}"
        for sentence, number in zip(sentences, numbers, strict=True)
    ]
    limits = float(cosines.min()), 1.0
    return _heat_map(cosines, names, numbers, limits, "cosine similarity")


def effect_map(
    effects: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str
) -> "Figure":
    """Draws the effects of interventions, positive ones red and negative ones blue.

    Args:
      effects: [R, C], such as those of a patch in each layer at each token.
      rows: R names, such as "layer 1".
      columns: C names, such as tokens or heads.
      label: what an effect is, with its unit.
    """
    most = float(np.abs(effects).max()) or 1.0
    names = [token_label(column) for column in columns]
    return _heat_map(effects, rows, names, (-most, most), label)


def component_sizes(params: Params) -> dict[str, int]:
    """The number of parameters of each component of a model, summed over its layers.

    Args:
      params: the parameters of a language model or a fine-tuned model.
    """
    sizes = dict.fromkeys(_COMPONENTS.values(), 0)
    for path, leaf in jax.tree.leaves_with_path(params):
        (kind,) = (key.key for key in path if key.key in _COMPONENTS)
        sizes[_COMPONENTS[kind]] += leaf.size
    return {name: size for name, size in sizes.items() if size}


def parameters_by_component(params: Params) -> "Figure":
    """Draws the parameters in each component of a model.

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
    labels = [f"{size:,} ({size / total:.1%})" for size in sizes.values()]
    axes.bar_label(bars, labels, padding=3, fontsize=9)
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


def _heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    limits: tuple[float, float],
    label: str,
) -> "Figure":
    """A heat map of named rows and columns, with numbers if it is small."""
    beside, below = (0.075 * max(map(len, names)) for names in (rows, columns))
    width, height = 0.55 * len(columns), 0.55 * len(rows)
    figure = new_figure(width + beside + 2, height + below + 0.6)
    axes = figure.subplots()
    lowest, highest = limits
    colors = "RdBu_r" if lowest == -highest else "Blues"
    picture = axes.imshow(values, vmin=lowest, vmax=highest, cmap=colors)
    rotation = 90 if below > 0.5 else 0
    axes.set_xticks(range(len(columns)), columns, rotation=rotation, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    if len(columns) <= MOST_NUMBERED:
        number_cells(axes, picture, values, "{:.2f}")
    figure.colorbar(picture, ax=axes, shrink=0.8, label=label)
    return figure


def token_label(token: str) -> str:
    """A token as a label, quoted if it is blank or not printable."""
    return token if token.strip() and token.isprintable() else repr(token)


def number_cells(axes: Any, picture: Any, values: np.ndarray, form: str) -> None:
    """Writes its value into each cell of a heat map."""
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = picture.to_rgba(value)
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        color = "white" if dark else "black"
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
        axes.text(column, row, form.format(value), color=color, **style)
