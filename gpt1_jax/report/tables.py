"""The paper's results and ours beside them, as a Markdown table.

`Results` are `{task: {variant: [one run's results.json, ..]}}`, where the variant is
"pretrained", "scratch" or one of `gpt1_jax.config.comparisons`. In a run, "dev" is what
`gpt1_jax.tasks.metrics.score_predictions` returns and "majority" what
`majority_baseline` returns. The paper's numbers are points, the results are fractions.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpt1_jax.report.markdown import markdown_table
from gpt1_jax.report.paper import PAPER, PAPER_GLUE, Row
from gpt1_jax.tasks.metrics import METRICS

Starts = Mapping[str, Sequence[Mapping[str, Any]]]
Results = Mapping[str, Starts]
STARTS = ("pretrained", "scratch")

_TABLES = {
    2: "Table 2: natural language inference",
    3: "Table 3: question answering and commonsense reasoning",
    4: "Table 4: classification and semantic similarity",
    None: "Not in the paper's tables",
}
_NOTE = (
    "Ours is measured on the dev splits, and on the test splits whose labels are at "
    "hand; the paper's on the test splits. All values are x 100; for several runs, the "
    "median, then the lowest to highest. No pre-training is Table 5's, which "
    "leaves tasks out and has only the mean of MNLI's m and mm. WNLI is from the GLUE "
    "leaderboard, COPA from the announcement of GPT-1. Average: the unweighted mean "
    "over the lines with a value of ours; their number is in brackets."
)
_NOTE_ON_VARIANTS = (
    "Measured on the dev split, on training examples where they were scored, and on "
    "the test split where its labels are at hand. All values are x 100; for several "
    "runs, the median, then the lowest to highest."
)
_NOTE_WITHOUT_PAPER = (
    "Measured on the dev split, and on the test split where its labels are at hand. "
    "All values are x 100; for several runs, the median, then the lowest to highest."
)

# What the leaderboard first averages within each task, as (metric, subset).
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
      results: as the module describes.
      start: which runs to use; of several, the median counts.

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
    Variants other than those of `STARTS` get a line each, and tasks are columns.

    Args:
      results: as the module describes.
      skipped: tasks that were asked for but not run, with the reasons.
    """
    if {variant for variants in results.values() for variant in variants} - {*STARTS}:
        return _variants_table(results, skipped or {})
    table, notes = table_and_notes(results, skipped)
    return "\n\n".join([table, *notes]) + "\n"


def table_and_notes(
    results: Results, skipped: Mapping[str, str] | None = None
) -> tuple[str, list[str]]:
    """The table of `results_table`, of `STARTS` alone, and what it says below."""
    rows = list(_rows(results))
    lines = [(row, _columns(results[task], row)) for task, row in rows]
    in_paper = not rows or any(task in PAPER for task, _ in rows)
    shown = _ALWAYS | (_IN_PAPER if in_paper else set())
    titles = [
        title
        for title in _columns({}, Row("", None, None, None))
        if title in shown or any(columns[title] for _, columns in lines)
    ]
    groups: dict[int | None, list[list[str]]] = {table: [] for table in _TABLES}
    for (task, row), (_, columns) in zip(rows, lines, strict=True):
        count = _count(results[task], row)
        cells = [_shown(title, columns[title]) for title in titles]
        groups[row.table].append([row.title, row.metric, count, *cells])
    body = []
    for table, group in groups.items():
        if group and in_paper:
            body.append([f"**{_TABLES[table]}**", *[""] * (len(titles) + 2)])
        body.extend(group)
    body.append(["**Average**", "", "", *(_average(lines, title) for title in titles)])
    header = ["task", "metric", "n (dev)", *titles]
    text = markdown_table(header, body, text_columns=2)
    note = _NOTE if in_paper else _NOTE_WITHOUT_PAPER
    return text, [note, *_glue_notes(results), *_skipped_notes(skipped or {})]


_IN_PAPER = {"GPT-1 paper (test)", "paper, no pre-training (test)"}
_MAJORITY = "majority baseline (dev)"
_ALWAYS = {"ours, pre-trained (dev)", "ours, from scratch (dev)", _MAJORITY}


def _columns(starts: Starts, row: Row) -> dict[str, list[float]]:
    """The values of a line, in points, by column title."""
    runs = {start: starts.get(start, ()) for start in STARTS}
    names = {"pretrained": "pre-trained", "scratch": "from scratch"}
    ours = {
        f"ours, {names[start]} ({split})": _values(
            runs[start], row.metric, row.subset, split
        )
        for split in ("dev", "test")
        for start in STARTS
    }
    every = [run for start in STARTS for run in runs[start]]
    majority = _values(every, row.metric, row.subset, "majority")
    paper = {
        "GPT-1 paper (test)": row.gpt1,
        "paper, no pre-training (test)": row.scratch,
    }
    return {
        **ours,
        _MAJORITY: majority,
        **{title: [] if v is None else [v] for title, v in paper.items()},
    }


def _shown(title: str, values: Sequence[float]) -> str:
    if title == _MAJORITY and values:
        return f"{statistics.median(values):.1f}"
    return spread(values)


def _average(lines: Sequence[tuple[Row, dict[str, list[float]]]], title: str) -> str:
    """The mean of a column over the lines that have a value of ours."""
    medians = [
        statistics.median(columns[title])
        for _, columns in lines
        if columns[title] and any(columns[ours] for ours in _ALWAYS - {_MAJORITY})
    ]
    return f"{statistics.fmean(medians):.1f} ({len(medians)})" if medians else "-"


def _count(starts: Starts, row: Row) -> str:
    """The number of dev examples of a line, or its range over runs."""
    runs = [run for start in STARTS for run in starts.get(start, ())]
    counts = sorted({part["n"] for part in _parts(runs, "dev", row.subset)})
    return " to ".join(f"{n:,}" for n in dict.fromkeys(counts[:1] + counts[-1:])) or "-"


def _variants_table(results: Results, skipped: Mapping[str, str]) -> str:
    """A line for each variant, a column for each score of each task."""
    variants = dict.fromkeys(name for found in results.values() for name in found)
    columns = list(_variant_columns(results))
    body = [
        [variant, *(spread(column.values.get(variant, ())) for column in columns)]
        for variant in variants
    ]
    body.append(["majority baseline", *(column.majority for column in columns)])
    header = ["variant", *(column.title for column in columns)]
    text = markdown_table(header, body, text_columns=1)
    return "\n\n".join([text, _NOTE_ON_VARIANTS, *_skipped_notes(skipped)]) + "\n"


class _Scores(NamedTuple):
    """A column of the table of variants."""

    title: str
    values: Mapping[str, Sequence[float]]  # by variant
    majority: str


def _variant_columns(results: Results) -> Iterator[_Scores]:
    """The columns that have any value."""
    for task, row in _rows(results):
        variants = results[task]
        every = [run for runs in variants.values() for run in runs]
        # Training examples are scored as a whole, beside the line that stands for all.
        splits = {"dev": row.subset, "train": "", "test": row.subset}
        if row != headline(task, every):
            del splits["train"]
        for split, subset in splits.items():
            values = {
                variant: _values(runs, row.metric, subset, split)
                for variant, runs in variants.items()
            }
            if any(values.values()):
                majority = _values(every, row.metric, subset, "majority")
                yield _Scores(
                    f"{row.title}, {row.metric} ({split})",
                    values,
                    _shown(_MAJORITY, majority if split == "dev" else ()),
                )


def headline(task: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    """The one line of a task that stands for it in a figure.

    That is the whole of its split, and MNLI's matched half, as in Figure 2 (left).

    Args:
      task: its name; one that the paper does not have is shown by its first metric.
      runs: one or more of its results.
    """
    rows = [row for name, row in _rows({task: {"": runs}}) if name == task]
    return next((row for row in rows if not row.subset), rows[0])


def _rows(results: Results) -> Iterator[tuple[str, Row]]:
    """The lines: the paper's in its order, then the others."""
    done = {task for task, starts in results.items() if any(starts.values())}
    for task, rows in PAPER.items():
        yield from ((task, row) for row in rows if task in done)
    for task in results:
        if task in done and task not in PAPER:
            first = next(run for runs in results[task].values() for run in runs)
            metric = next(name for name in first["dev"] if name in METRICS)
            yield task, Row(task, None, None, None, metric=metric)


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
    """A metric, in points, from each of the runs that have it."""
    return [100 * p[metric] for p in _parts(runs, key, subset) if metric in p]


def spread(values: Sequence[float]) -> str:
    """The median of some points and, of several, the lowest and highest; or "-"."""
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
