"""The sections of a report on the paper's tables and figures."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt1_jax.report import (
    commands,
    comparisons,
    figures,
    tables,
    zero_shot,
)
from gpt1_jax.report.comparisons import AuxWeightCurve, LayerCurve, Spread
from gpt1_jax.report.gather import Material
from gpt1_jax.report.groups import (
    as_in_paper,
    by_source,
    for_table_5,
    not_ablated,
    shown,
)
from gpt1_jax.report.markdown import markdown_table
from gpt1_jax.report.page import Block, Picture, Text, missing
from gpt1_jax.report.paper import PAPER
from gpt1_jax.runs.past_runs import Finished
from gpt1_jax.tasks.paper_tasks import TASKS

_PAPER_LAYERS = Text(
    "The paper's curves, as others have read them off its figure to about a point: "
    "from the embeddings alone to all 12 layers, RACE (dev) rises from about 40 to 60 "
    "and MultiNLI (dev, matched) from about 72 to 82."
)
_PAPER_ZERO_SHOT = Text(
    "The paper's curves end, as others have read them off its figure, at relative "
    "scores of about 0.68 in sentiment (SST-2), 0.55 in Winograd schemas (DPR), 0.43 "
    "in acceptability (CoLA) and 0.25 in questions (RACE); the LSTM's lie lower and "
    "vary more."
)
_PAPER_WEIGHTS = Text(
    "The paper compares the weights 0.5 and 0 (Table 5, test): on average over eight "
    "tasks 74.7 with the auxiliary objective and 75.0 without. With it, large data "
    "sets gain (MNLI 81.8 against 81.1, QQP 70.3 against 69.8, QNLI 88.1 against 86.9) "
    "and small ones lose (CoLA 45.4 against 47.9, MRPC 82.3 against 84.9, STS-B 82.0 "
    "against 83.2)."
)
_SEEDS = "Over several seeds: the median, then the lowest to highest."


def tables_2_to_4(material: Material) -> list[Block]:
    """Scores on the paper's tasks, from each source."""
    blocks: list[Block] = []
    notes: dict[str, None] = {}  # each once, below the last table
    done: set[str] = set()
    command = commands.finetune(material.models)
    for source, runs in by_source(material.finished).items():
        if results := as_in_paper(runs):
            table, below = tables.table_and_notes(results)
            blocks.append(Text(f"### {source.describe()}\n\n{table}"))
            notes |= dict.fromkeys(below)
            done |= results.keys()
    if not blocks:
        return [missing("fine-tuned runs", command)]
    blocks += map(Text, notes)
    blocks.append(
        Text(
            "Runs with the paper's weight of the auxiliary objective and all layers "
            "or none transferred; where a task was trained on several numbers of "
            "examples, those with the most."
        )
    )
    if left := [TASKS[task].title for task in PAPER if task not in done]:
        blocks.append(missing(", ".join(left), command))
    return blocks


def table_5(material: Material) -> list[Block]:
    """The ablations, from each source."""
    groups = for_table_5(material.finished)
    command = commands.ablations(material.models)
    if not groups:
        return [missing("fine-tuned runs on Table 5's tasks", command)]
    blocks: list[Block] = []
    for title, runs in groups:
        table = comparisons.ablations_table(shown(runs))
        blocks.append(Text(f"### {title}\n\n{table}"))
        if lacking := not_ablated(runs):
            columns = f"in the table above, columns {', '.join(lacking)}"
            blocks.append(missing(columns, command))
    if groups[1:]:
        blocks.append(
            Text("Models are not mixed: a table holds one Transformer and one LSTM.")
        )
    return blocks


def layer_transfer(material: Material) -> list[Block]:
    """Figure 2 (left), from each source."""
    command = commands.layer_transfer(material.models)
    return [
        *_curves(
            material,
            comparisons.layer_transfer_curves,
            figures.layer_transfer,
            _layers_table,
            "Scores over the number of layers transferred from the pre-trained model",
            missing("runs that transfer some layers", command),
        ),
        _PAPER_LAYERS,
    ]


def aux_lm_weight(material: Material) -> list[Block]:
    """Scores over lambda, from each source."""
    command = commands.aux_lm_weight(material.models)
    return [
        *_curves(
            material,
            comparisons.aux_weight_curves,
            figures.aux_lm_weight,
            _weights_table,
            "Scores over the weight of the auxiliary objective",
            missing("runs with several weights", command),
        ),
        _PAPER_WEIGHTS,
    ]


def _curves(
    material: Material,
    find: Callable[[Sequence[Finished]], Any],
    draw: Callable[[Any], Any],
    table: Callable[[Any], str],
    alt: str,
    none: Block,
) -> list[Block]:
    """The picture of an analysis and its numbers, from each source."""
    blocks: list[Block] = []
    name = draw.__name__
    for source, runs in by_source(material.finished).items():
        if curves := find(shown(runs)):
            picture = Picture(
                _file(name, blocks),
                f"{alt}; the numbers are in the table.",
                functools.partial(draw, curves),
            )
            heading = Text(f"### {source.describe()}")
            blocks += [heading, picture, Text(table(curves))]
    return blocks or [none]


def over_updates(material: Material) -> list[Block]:
    """Figure 2 (right), of each evaluation."""
    blocks: list[Block] = []
    for each in material.zero_shot:
        named = " and ".join(run["init_from"] for run in each.runs)
        curves = zero_shot.curves(each.runs)
        picture = Picture(
            _file("zero_shot", blocks),
            "Relative zero-shot scores over updates, 0 at chance and 1 at the best "
            "published before; the numbers are in the table.",
            functools.partial(figures.relative_scores, curves),
        )
        table = Text(zero_shot.results_table(each.runs))
        blocks += [Text(f"### Of {named}"), picture, table]
    none = missing("zero-shot evaluations", commands.zero_shot(material.models))
    return [*(blocks or [none]), _PAPER_ZERO_SHOT]


def _file(name: str, blocks: Sequence[Block]) -> str:
    """The name of the next picture's file; the first has no number."""
    number = 1 + sum(isinstance(block, Picture) for block in blocks)
    return f"{name}_{number}" if number > 1 else name


def _layers_table(curves: Sequence[LayerCurve]) -> str:
    layers = sorted({k for curve in curves for k in (*curve.dev, *curve.train)})
    body = [
        [f"{curve.title}, {curve.metric}", split, *_cells(points, layers)]
        for curve in curves
        for split, points in (("dev", curve.dev), ("training", curve.train))
        if points
    ]
    header = ["layers transferred", "split", *map(str, layers)]
    return f"{markdown_table(header, body, text_columns=2)}\n\n{_SEEDS}"


def _weights_table(curves: Sequence[AuxWeightCurve]) -> str:
    weights = sorted({weight for curve in curves for weight in curve.dev})
    body = [
        [
            f"{curve.title}, {curve.metric}",
            f"{curve.train_examples:,}",
            *_cells(curve.dev, weights),
        ]
        for curve in curves
    ]
    header = ["weight (lambda)", "training examples", *(f"{w:g}" for w in weights)]
    return f"{markdown_table(header, body, text_columns=1)}\n\n{_SEEDS}"


def _cells(points: Mapping[Any, Spread], places: Sequence[float]) -> list[str]:
    return [_cell(points[place]) if place in points else "-" for place in places]


def _cell(score: Spread) -> str:
    if score.low == score.high:
        return f"{score.median:.1f}"
    return f"{score.median:.1f} ({score.low:.1f} to {score.high:.1f})"
