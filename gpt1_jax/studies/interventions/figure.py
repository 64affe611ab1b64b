"""The figure of effects: heat maps at the last step, and heads over training."""

from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_jax.report.plots import BARS, GUIDE, new_figure, scale_updates
from gpt1_jax.studies.interventions.table import (
    at_last_step,
    chosen_heads,
    of_head,
    spread_of_heads,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_CURVES = 4
_TITLES = {"head": "heads", "layer": "attention, MLP", "position": "positions back"}


def draw_effects(scores: "pd.DataFrame") -> "Figure":
    """A row for each run and task: three heat maps of effects, and curves.

    The curves are those of the heads that matter at the last step, over updates; at one
    step, D as each layer's state has it.
    """
    groups = list(scores.groupby(["run", "task"], sort=False))
    several = scores["run"].nunique() > 1
    figure = new_figure(13.5, 2.9 * len(groups) + 0.3)
    grid = figure.subplots(len(groups), 4, squeeze=False, width_ratios=[2, 0.8, 2, 3])
    for row, ((run, task), own) in zip(grid, groups, strict=True):
        name = f"{task}\n{run}" if several else str(task)
        last = at_last_step(own)
        maps = {kind: _grid(last, kind) for kind in _TITLES}
        others = max(_largest(maps["layer"]), _largest(maps["position"]))
        for axes, (kind, values) in zip(row[:3], maps.items(), strict=True):
            most = _largest(values) if kind == "head" else others
            _draw_map(axes, kind, values, most)
        figure.colorbar(row[0].images[0], ax=row[0], pad=0.02)
        bar = figure.colorbar(row[1].images[0], ax=row[1:3], pad=0.02)
        bar.set_label("effect on D, nats", fontsize=8)
        row[0].set_ylabel(f"{name}\nlayer", fontsize=8, parse_math=False)
        if own["step"].nunique() > 1:
            _draw_heads(row[3], own)
        else:
            _draw_lens(row[3], own)
    for axes in figure.axes:
        axes.tick_params(labelsize=7)
    return figure


def _largest(values: np.ndarray) -> float:
    return float(np.nanmax(np.abs(values), initial=0))


def _draw_map(axes: Any, kind: str, values: np.ndarray, most: float) -> None:
    """A heat map of effects [L, columns], from -`most` to `most`."""
    axes.set_title(_TITLES[kind], fontsize=9)
    if not values.size:
        axes.axis("off")
        return
    axes.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    axes.set_yticks(range(len(values)))
    columns = ["attn", "MLP"] if kind == "layer" else range(values.shape[1])
    axes.set_xticks(range(values.shape[1]), columns)


def _grid(scores: "pd.DataFrame", kind: str) -> np.ndarray:
    """Effects [L, columns] at one step."""
    if kind == "layer":
        parts = [scores[scores["kind"] == each] for each in ("attention", "mlp")]
        return np.stack([part["score"].to_numpy(float) for part in parts], axis=1)
    own = scores[scores["kind"] == kind]
    return own.pivot(index="layer", columns="number", values="score").to_numpy(float)


def _draw_heads(axes: Any, scores: "pd.DataFrame") -> None:
    """The effects of chosen heads over updates, and the spread of all."""
    spread = spread_of_heads(scores)
    steps = list(spread.index)
    low, high = spread.to_numpy().T
    axes.fill_between(steps, low, high, color=GUIDE, alpha=0.25, linewidth=0)
    axes.plot([], [], color=GUIDE, linewidth=6, alpha=0.25, label="half of all heads")
    for layer, head in chosen_heads(scores, _CURVES):
        own = of_head(scores, layer, head)
        style = {"marker": "o", "markersize": 3, "label": f"head {layer}.{head}"}
        axes.errorbar(
            own["step"], own["held_out"], own["held_out_error"], **style, **BARS
        )
    axes.axhline(0, color=GUIDE, linewidth=0.6)
    scale_updates(axes, steps)
    axes.set_xlabel("updates", fontsize=8)
    axes.set_ylabel("effect on D, nats", fontsize=8)
    axes.legend(fontsize=7)


def _draw_lens(axes: Any, scores: "pd.DataFrame") -> None:
    """D as each layer's state has it, at one step."""
    own = scores[scores["kind"] == "lens"]
    axes.errorbar(own["layer"], own["score"], own["error"], marker="o", **BARS)
    axes.axhline(0, color=GUIDE, linewidth=0.6)
    axes.set_xticks(range(len(own)))
    axes.set_title("lens", fontsize=9)
    axes.set_xlabel("layers computed", fontsize=8)
    axes.set_ylabel("D, nats", fontsize=8)
