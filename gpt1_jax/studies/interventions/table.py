"""The Markdown tables of effects, made from the long table."""

from typing import TYPE_CHECKING

from gpt1_jax.report.markdown import escape, markdown_table

if TYPE_CHECKING:
    import pandas as pd

_NUM_HEADS_SHOWN = 6
_REPLACED = {
    "zero": "zeros replace what the component gives",
    "mean": "its mean over all tokens replaces what the component gives",
    "patch": "what the component gives after the clean prompt replaces it",
}
_NOTE = (
    "D is the difference between the log-probabilities of the better and the worse "
    "answer, nats; an effect is the change of D if {replaced}, at all tokens. {sign} "
    "Heads are those with the largest effects on every other pair, at the last step; "
    "their effects are those on the other pairs, ± standard error over pairs. Half of "
    "all heads lie between the numbers of the last row. The lens is D as the layer's "
    "state has it: the model's output if the layers behind it were left out. Layers "
    "and heads count from 0: 3.1 is the second head of h_3."
)


def at_last_step(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of the last step."""
    return scores[scores["step"] == scores["step"].max()]


def chosen_heads(scores: "pd.DataFrame", number: int) -> list[tuple[int, int]]:
    """(layer, head) of the heads with the largest effects, of one run and task.

    They are chosen at the last step, on every other pair.
    """
    heads = at_last_step(scores[scores["kind"] == "head"])
    order = heads["chosen"].abs().sort_values(ascending=False).index[:number]
    chosen = heads.loc[order, ["layer", "number"]].astype(int)
    return [(layer, head) for layer, head in chosen.to_numpy().tolist()]


def of_head(scores: "pd.DataFrame", layer: int, head: int) -> "pd.DataFrame":
    """The rows of a head."""
    own = (scores["layer"] == layer) & (scores["number"] == head)
    return scores[own & (scores["kind"] == "head")]


def spread_of_heads(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The quartiles of all heads' effects, by step: columns 0.25 and 0.75."""
    heads = scores[scores["kind"] == "head"]
    return heads.groupby("step")["held_out"].quantile([0.25, 0.75]).unstack()


def effects_tables(scores: "pd.DataFrame", method: str) -> str:
    """The Markdown tables of effects: for each run and task of heads and of layers.

    `method` is what replaced components: "zero", "mean" or "patch".
    """
    several = scores["run"].nunique() > 1
    parts = []
    for (run, task), own in scores.groupby(["run", "task"], sort=False):
        name = f"{task}, {run}" if several else str(task)
        parts += [f"### {escape(name)}", _heads_table(own), _layers_table(own)]
    sign = "Below 0, the component speaks for the better answer."
    if method == "patch":
        sign = "All components together would change D to that of the clean prompt."
    note = _NOTE.format(replaced=_REPLACED[method], sign=sign)
    return "\n\n".join([*parts, note]) + "\n"


def _heads_table(scores: "pd.DataFrame") -> str:
    """Effects over steps: D itself, the chosen heads, and the spread of all."""
    steps = sorted(scores["step"].unique())  # `loc` refuses rows that lack one
    header = ["effect", *(f"step {step:,}" for step in steps)]
    rows = []
    for kind, name in (("base", "D"), ("clean", "D, clean")):
        own = scores[scores["kind"] == kind].set_index("step").loc[steps]
        rows.append([name, *map(_signed, own["score"], own["error"])])
    if rows[0][1:] == rows[1][1:]:
        rows.pop()
    for layer, head in chosen_heads(scores, _NUM_HEADS_SHOWN):
        own = of_head(scores, layer, head).set_index("step").loc[steps]
        effects = map(_signed, own["held_out"], own["held_out_error"])
        rows.append([f"head {layer}.{head}", *effects])
    spread = spread_of_heads(scores).to_numpy()
    middle = (f"{low:+.3f} to {high:+.3f}" for low, high in spread)
    rows.append(["half of all heads", *middle])
    return markdown_table(header, rows, text_columns=1)


def _layers_table(scores: "pd.DataFrame") -> str:
    """Effects at the last step, a line for each layer."""
    last = at_last_step(scores)
    by_kind = {kind: own.set_index("layer") for kind, own in last.groupby("kind")}
    rows = []
    for layer in by_kind["attention"].index:
        cells = [by_kind[kind].loc[layer] for kind in ("attention", "mlp")]
        cells.append(by_kind["lens"].loc[layer + 1])
        rows.append([f"h_{layer}", *(_signed(e["score"], e["error"]) for e in cells)])
    header = ["layer", "attention", "MLP", "lens"]
    return markdown_table(header, rows, text_columns=1)


def _signed(value: float, error: float) -> str:
    return f"{value:+.3f} ± {error:.3f}"
