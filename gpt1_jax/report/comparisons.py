"""The paper's analyses from finished runs: Table 5, layers transferred, lambda.

What a run was is read from its configuration, so that runs of several suites may lie
side by side. Compared are those that differ in nothing but what an analysis varies; of
several such sets of a task's runs, the one that shows most of it. Scores are points.
"""

import json
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from gpt1_jax.config.sections import KIND_NAMES
from gpt1_jax.report.markdown import markdown_table
from gpt1_jax.report.paper import AUX_LM_WEIGHT, TABLE_5, TABLE_5_COLUMNS, Column
from gpt1_jax.report.tables import headline, spread, summarise
from gpt1_jax.runs.past_runs import Finished
from gpt1_jax.runs.resume import fixed_values

_NOTE = (
    "Table 5. Ours is measured on the dev splits, the paper's on GLUE's test sets. All "
    "values are x 100; for several seeds, the median, then the lowest to highest. MNLI "
    "is the mean of its matched and mismatched halves where both were scored. Average: "
    "the unweighted mean over the tasks that have both; their number is in brackets."
)

X = TypeVar("X", bound=Hashable)


class Spread(NamedTuple):
    """A score over seeds, in points."""

    median: float
    low: float
    high: float


class LayerCurve(NamedTuple):
    """A task's scores by the number of layers transferred (Figure 2, left)."""

    title: str
    metric: str
    dev: Mapping[int, Spread]
    train: Mapping[int, Spread]  # on training examples, if any were scored


class AuxWeightCurve(NamedTuple):
    """A task's dev scores by lambda, for one number of training examples."""

    title: str
    metric: str
    train_examples: int
    dev: Mapping[float, Spread]


def ablations_table(finished: Sequence[Finished]) -> str:
    """Table 5 as Markdown, a line a task, ours beside the paper's; "-" for missing.

    Args:
      finished: runs of any tasks and variants.
    """
    chosen = [run for runs in _by_task(finished).values() for run in _ablations(runs)]
    header = ["task", "metric"]
    columns: list[list[str]] = []
    for line, paper in TABLE_5.items():
        runs = [run for run in chosen if _line(run) == line]
        ours = [_column_scores(runs, column) for column in TABLE_5_COLUMNS]
        both = [i for i, scores in enumerate(ours) if scores]
        average = _mean([paper.scores[i] for i in both])
        if len(both) == len(TABLE_5_COLUMNS):
            average = f"{paper.average} ({len(both)})"
        header += [f"{paper.title}, ours (dev)", "paper (test)"]
        columns.append(
            [*map(spread, ours), _mean([statistics.median(ours[i]) for i in both])]
        )
        columns.append([*(f"{score:.1f}" for score in paper.scores), average])
    names = [[column.title, column.metric] for column in TABLE_5_COLUMNS]
    names.append(["**Average**", ""])
    body = [
        [*name, *row]
        for name, row in zip(names, zip(*columns, strict=True), strict=True)
    ]
    table = markdown_table(header, body, text_columns=2)
    return f"{table}\n\n{' '.join([_NOTE, *_starts(chosen)])}\n"


def layer_transfer_curves(finished: Sequence[Finished]) -> list[LayerCurve]:
    """A curve for each task with runs that differ in the layers transferred."""
    curves = []
    for task, runs in _by_task(finished).items():
        runs = [run for run in runs if run.config.transfer_layers != "none"]
        runs = _comparable(runs, ("transfer_layers",), _layers)
        if len({_layers(run) for run in runs}) < 2:
            continue
        row = headline(task, [run.result for run in runs])
        column = Column(task, row.title, row.metric, (row.subset,))
        dev, train = (_spreads(runs, _layers, column, key) for key in ("dev", "train"))
        curves.append(LayerCurve(row.title, row.metric, dev, train))
    return curves


def aux_weight_curves(finished: Sequence[Finished]) -> list[AuxWeightCurve]:
    """A curve for each task and number of training examples with several lambdas."""
    curves = []
    varied = ("head.aux_lm_weight", "data.max_train_examples")
    for task, runs in _by_task(finished).items():
        runs = _comparable(runs, varied, lambda run: (_weight(run), _size(run)))
        row = headline(task, [run.result for run in runs])
        column = Column(task, row.title, row.metric, (row.subset,))
        for size in sorted({_size(run) for run in runs}, reverse=True):
            sized = [run for run in runs if _size(run) == size]
            dev = _spreads(sized, _weight, column)
            if len(dev) > 1:
                curves.append(AuxWeightCurve(row.title, row.metric, size, dev))
    return curves


def _by_task(finished: Sequence[Finished]) -> dict[str, list[Finished]]:
    found: dict[str, list[Finished]] = {}
    for run in finished:
        found.setdefault(run.config.tasks[0], []).append(run)
    return found


def _comparable(
    runs: Sequence[Finished],
    varied: tuple[str, ...],
    by: Callable[[Finished], Hashable],
) -> list[Finished]:
    """The runs of the set that shows most values of `by`.

    Args:
      runs: of one task.
      varied: what runs of a set may differ in, beside seeds: keys, or how they begin.
      by: what is looked at; None does not count. Where sets show as many values, the
        one with more training examples counts, then the one with more runs.
    """
    sets: dict[str, list[Finished]] = {}
    for run in runs:
        values = fixed_values(run.config.to_dict())
        kept = {k: v for k, v in values.items() if not k.startswith(("seeds", *varied))}
        sets.setdefault(json.dumps(kept, sort_keys=True), []).append(run)

    def shows(found: list[Finished]) -> tuple[int, float, int]:
        values = {by(run) for run in found} - {None}
        size = max(run.config.data.max_train_examples or math.inf for run in found)
        return len(values), size, len(found)

    return max(sets.values(), key=shows, default=[])


def _ablations(runs: Sequence[Finished]) -> list[Finished]:
    """The runs of one task that stand in Table 5 together."""
    starts = ("init_from", "step", "model.")
    varied = ("transfer_layers", "head.aux_lm_weight")
    pool = _comparable(runs, (*starts, *varied), _line)
    kinds = [
        _comparable([run for run in pool if run.kind == kind], varied, _line)
        for kind in ("transformer", "lstm")
    ]
    lines = [run for each in kinds for run in each if _line(run)]
    weights = [_weight(run) for run in lines if _weight(run)]
    if not weights:
        return lines
    # lambda, if runs differ in it too: that of most, or else the nearest to the paper's
    usual = max(weights, key=lambda w: (weights.count(w), -abs(w - AUX_LM_WEIGHT)))
    return [run for run in lines if _weight(run) in (0, usual)]


def _line(run: Finished) -> str | None:
    """The line of Table 5 that a run belongs to."""
    with_aux_lm = _weight(run) > 0
    if run.kind == "lstm":
        return "lstm" if run.is_whole and with_aux_lm else None
    if run.is_whole:
        return "full" if with_aux_lm else "no_aux_lm"
    scratch = run.config.transfer_layers == "none"
    return "no_pretraining" if scratch and with_aux_lm else None


def _layers(run: Finished) -> int:
    return run.layers_transferred


def _weight(run: Finished) -> float:
    return run.config.head.aux_lm_weight


def _size(run: Finished) -> int:
    """Training examples, which may be fewer than were asked for."""
    return run.result["train_examples"]


def _score(scores: Mapping[str, Any], column: Column) -> float | None:
    """The score of a column, in points; of the whole split if it has no such parts."""
    subsets = scores.get("subsets", {})
    parts = [subsets[name] for name in column.subsets if name in subsets] or [scores]
    if any(column.metric not in part for part in parts):
        return None
    return 100 * statistics.fmean(part[column.metric] for part in parts)


def _scores(
    runs: Iterable[Finished],
    by: Callable[[Finished], X],
    column: Column,
    key: str = "dev",
) -> dict[X, list[float]]:
    """Scores by `by`; a seed that was run twice counts once."""
    found: dict[X, dict[int, float]] = {}
    for run in runs:
        score = _score(run.result.get(key, {}), column)
        if score is not None:
            found.setdefault(by(run), {}).setdefault(run.config.seeds[0], score)
    return {x: list(found[x].values()) for x in found}


def _spreads(
    runs: Iterable[Finished],
    by: Callable[[Finished], Any],
    column: Column,
    key: str = "dev",
) -> dict[Any, Spread]:
    """The spread of the scores over seeds by `by`, which rises."""
    spreads = {}
    for x, scores in sorted(_scores(runs, by, column, key).items()):
        summary = summarise(scores)
        spreads[x] = Spread(summary["median"], summary["min"], summary["max"])
    return spreads


def _column_scores(runs: Iterable[Finished], column: Column) -> list[float]:
    own = [run for run in runs if run.config.tasks[0] == column.task]
    return _scores(own, lambda run: column.task, column).get(column.task, [])


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1f} ({len(values)})" if values else "-"


def _starts(runs: Iterable[Finished]) -> list[str]:
    """A sentence on what ours started from."""
    folders: dict[str, set[str]] = {}
    for run in runs:
        if not run.is_from_scratch:
            folders.setdefault(run.kind, set()).add(run.config.init_from)
    listed = [
        f"the {KIND_NAMES[kind]} of {', '.join(sorted(found))}"
        for kind, found in sorted(folders.items(), reverse=True)
    ]
    return [f"Ours start from {' and '.join(listed)}."] if listed else []
