"""The paper's results and ours beside them, as a Markdown table.

`Results` are `{task: {"pretrained" or "scratch": [one run's results.json, ..]}}`. Of
a run, "dev" is what `gpt1_jax.tasks.metrics.evaluate` returns and "majority" what
`majority_baseline` returns. The paper's numbers are points, the results' fractions.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpt1_jax.tasks.metrics import METRICS

Results = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
STARTS = ("pretrained", "scratch")


class Row(NamedTuple):
    """A column of the paper's tables, a line of ours. Values are points."""

    title: str
    gpt1: float | None
    scratch: float | None  # Table 5, "Transformer w/o pre-training"
    table: int | None  # None: not in the paper
    subset: str = ""  # of the task's split, "" for all of it
    metric: str = "accuracy"
    split: str = "test"  # that the paper's values were measured on


# Tables 2 to 5. Without pre-training, MNLI is the mean of m and mm. WNLI is from the
# GLUE leaderboard, COPA from the announcement.
PAPER: Mapping[str, Sequence[Row]] = {
    "mnli": [
        Row("MNLI-m", 82.1, 75.7, 2, "matched"),
        Row("MNLI-mm", 81.4, 75.7, 2, "mismatched"),
    ],
    "snli": [Row("SNLI", 89.9, None, 2)],
    "sci_tail": [Row("SciTail", 88.3, None, 2)],
    "qnli": [Row("QNLI", 88.1, 71.2, 2)],
    "rte": [Row("RTE", 56.0, 53.8, 2)],
    "story_cloze": [Row("Story Cloze", 86.5, None, 3)],
    "race": [
        Row("RACE-m", 62.9, None, 3, "middle"),
        Row("RACE-h", 57.4, None, 3, "high"),
        Row("RACE", 59.0, None, 3),
    ],
    "cola": [Row("CoLA", 45.4, 18.9, 4, metric="matthews")],
    "sst2": [Row("SST-2", 91.3, 84.0, 4)],
    "mrpc": [Row("MRPC", 82.3, 79.4, 4, metric="f1")],
    "stsb": [Row("STS-B", 82.0, 30.9, 4, metric="pearson")],
    "qqp": [Row("QQP", 70.3, 65.5, 4, metric="f1")],
    "wnli": [Row("WNLI", 53.4, None, None)],
    "copa": [Row("COPA", 78.6, None, None)],
}
PAPER_GLUE = 72.8  # Table 4

_TABLES = {
    2: "Table 2: natural language inference",
    3: "Table 3: question answering and commonsense reasoning",
    4: "Table 4: classification and semantic similarity",
    None: "Not in the paper's tables",
}
_COLUMNS = (
    "task",
    "metric",
    "n (dev)",
    "ours, pre-trained (dev)",
    "ours, from scratch (dev)",
    "majority baseline (dev)",
    "GPT-1 paper (test)",
    "paper, no pre-training (test)",
)
_NOTE = (
    "Ours is measured on the dev splits, the paper's on the test splits, so the two "
    "are not on the same examples. All values are x 100; of several runs, the median, "
    "then the lowest to the highest. No pre-training is Table 5's, which leaves tasks "
    "out and has only the mean of MNLI's m and mm. WNLI is from the GLUE leaderboard, "
    "COPA from the announcement of GPT-1. Average: the unweighted mean over the lines "
    "of ours that have a value, whose number is in brackets."
)

# What the leaderboard averages first, as (metric, subset), for each of its tasks.
_GLUE = {
    **{task: [("accuracy", "")] for task in ("sst2", "qnli", "rte", "wnli")},
    **{task: [("f1", ""), ("accuracy", "")] for task in ("mrpc", "qqp")},
    "cola": [("matthews", "")],
    "stsb": [("pearson", ""), ("spearman", "")],
    "mnli": [("accuracy", "matched"), ("accuracy", "mismatched")],
}


def summarise(values: Sequence[float]) -> dict[str, Any]:
    """Median, mean, min, max, sample std (None for one value) and n of some values.

    Raises:
      ValueError: if there are none.
    """
    if not values:
        raise ValueError("There are no values to summarise.")
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "min": min(values),
        "max": max(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
    }


def glue_score(results: Results, start: str = "pretrained") -> float | None:
    """The GLUE score as the leaderboard computes it, but on the dev splits.

    Args:
      results: see the module.
      start: which runs; of several, the median counts.

    Returns:
      The mean over the nine tasks, in points, where a task of two metrics, or of two
      subsets, counts as the mean of both. None unless all nine are there.
    """
    scores = []
    for task, parts in _GLUE.items():
        runs = results.get(task, {}).get(start, ())
        columns = [_values(runs, metric, subset) for metric, subset in parts]
        if not runs or any(len(column) < len(runs) for column in columns):
            return None
        means = [statistics.fmean(run) for run in zip(*columns, strict=True)]
        scores.append(statistics.median(means))
    return statistics.fmean(scores)


def results_table(results: Results, skipped: Mapping[str, str] | None = None) -> str:
    """Our results beside the paper's (Tables 2 to 5), as Markdown.

    A task that the paper does not have gets a line with its first metric in "dev".

    Args:
      results: see the module.
      skipped: tasks that were asked for and not run, and the reasons.

    Raises:
      ValueError: if results are under another key than those of `STARTS`.
    """
    groups: dict[int | None, list[list[str]]] = {table: [] for table in _TABLES}
    columns: list[list[float]] = [[] for _ in _COLUMNS[3:]]
    for task, row in _rows(results):
        cells, values = _line(results[task], row)
        groups[row.table].append(cells)
        for column, value in zip(columns, values, strict=True):
            column.extend(() if value is None else (value,))
    body = []
    for table, group in groups.items():
        if group:
            body.append([f"**{_TABLES[table]}**", *[""] * (len(_COLUMNS) - 1)])
            body.extend(group)
    means = [f"{statistics.fmean(c):.1f} ({len(c)})" if c else "-" for c in columns]
    body.append(["**Average**", "", "", *means])
    rule = ["---"] * 2 + ["---:"] * (len(_COLUMNS) - 2)
    lines = [f"| {' | '.join(cells)} |" for cells in [list(_COLUMNS), rule, *body]]
    notes = [_NOTE, *_glue_notes(results), *_skipped_notes(skipped or {})]
    return "\n\n".join(["\n".join(lines), *notes]) + "\n"


def _rows(results: Results) -> Iterator[tuple[str, Row]]:
    """The lines, the paper's in its order, then the others."""
    for task, starts in results.items():
        unknown = sorted(starts.keys() - set(STARTS))
        if unknown:
            raise ValueError(
                f"The results of {task} are under {unknown}, not {list(STARTS)}."
            )
    done = {task for task, starts in results.items() if any(starts.values())}
    for task, rows in PAPER.items():
        yield from ((task, row) for row in rows if task in done)
    for task in results:
        if task in done and task not in PAPER:
            first = next(run for runs in results[task].values() for run in runs)
            metric = next(name for name in first["dev"] if name in METRICS)
            yield task, Row(task, None, None, None, metric=metric)


def _line(
    starts: Mapping[str, Sequence[Mapping[str, Any]]], row: Row
) -> tuple[list[str], list[float | None]]:
    """A line's cells, and what it adds to the averages of its last columns."""
    pretrained, scratch = (
        _values(starts.get(start, ()), row.metric, row.subset) for start in STARTS
    )
    runs = [run for start in STARTS for run in starts.get(start, ())]
    counts = sorted({p["n"] for p in _parts(runs, "dev", row.subset)})
    majority = _values(runs, row.metric, row.subset, "majority")
    columns = (pretrained, scratch, majority)
    values = [statistics.median(c) if c else None for c in columns]
    values += [row.gpt1, row.scratch]
    shown = [_spread(pretrained), _spread(scratch)]
    shown += ["-" if value is None else f"{value:.1f}" for value in values[2:]]
    count = " to ".join(f"{n:,}" for n in dict.fromkeys(counts[:1] + counts[-1:]))
    if not pretrained and not scratch:
        values = [None] * len(values)  # no line of ours: out of the averages
    return [row.title, row.metric, count or "-", *shown], values


def _parts(
    runs: Iterable[Mapping[str, Any]], key: str, subset: str
) -> Iterator[Mapping[str, Any]]:
    """The scores of a subset in each of the runs that have them."""
    for run in runs:
        scores = run.get(key, {})
        part = scores.get("subsets", {}).get(subset) if subset else scores
        if part:
            yield part


def _values(
    runs: Iterable[Mapping[str, Any]], metric: str, subset: str, key: str = "dev"
) -> list[float]:
    """A metric in points, of each of the runs that have it."""
    return [100 * p[metric] for p in _parts(runs, key, subset) if metric in p]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    summary = summarise(values)
    text = f"{summary['median']:.1f}"
    if summary["n"] > 1:
        text += f" ({summary['min']:.1f} to {summary['max']:.1f})"
    return text


def _glue_notes(results: Results) -> list[str]:
    scores = [(start, glue_score(results, start)) for start in STARTS]
    return [
        f"GLUE score: {score:.1f} ({start}, dev); the paper's {PAPER_GLUE} (test)."
        for start, score in scores
        if score is not None
    ]


def _skipped_notes(skipped: Mapping[str, str]) -> list[str]:
    lines = []
    for task, reason in skipped.items():
        titles = [row.title for row in PAPER.get(task, ())] or [task]
        lines.append(f"- {', '.join(titles)}: {reason}")
    return ["Skipped:", "\n".join(lines)] if lines else []
