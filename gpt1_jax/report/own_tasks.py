"""Results of tasks of one's own: scores, what they have to beat, and mistakes."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt1_jax.finetuning.results import Finished
from gpt1_jax.report.figures import DevScores
from gpt1_jax.report.markdown import escape, markdown_table
from gpt1_jax.report.scores import VARIANTS, how_to_read, row_numbers, spread
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.tasks.metrics import METRICS

_MOST_LABELS = 20  # of a confusion matrix that is shown

_NOTES = (
    "{} After the score of one run: its 95 % confidence interval over examples. "
    "Checkpoints are chosen on the dev split, so scores there flatter; on a test split "
    "they do not. The baselines answer the dev split: the most frequent label or mean "
    "score of the training examples, and a linear model of words and pairs of words."
)

_RIGHT_IN_BOLD = "examples by true label (lines) and predicted, right ones bold."


def own_results(runs: Sequence[Finished]) -> str:
    """The scores of runs on tasks of one's own, and confusion matrices, as Markdown.

    Args:
      runs: finished runs; those that differ only in their seed share a line.
    """
    lines = _by_line(runs)
    rows = [row for line, own in lines.items() for row in _rows(*line, own)]
    header = ["task", "start", "metric", "dev", "majority (dev)", "bag of words (dev)"]
    header += ["n (dev)", "test", "n (test)"]
    table = markdown_table(header, rows, text_columns=3)
    matrices = [_confusion(own[0]) for own in lines.values()]
    notes = _NOTES.format(how_to_read(row[2] for row in rows))
    return "\n\n".join([table, notes, *filter(None, matrices)]) + "\n"


def dev_curves(runs: Sequence[Finished]) -> list[DevScores]:
    """The first metric on the dev split over updates, for each line of the table."""
    curves = []
    for (name, start), own in _by_line(runs).items():
        metric = next(filter(METRICS.__contains__, own[0].result["dev"]))
        found = {
            f"seed {run.config.seeds[0]}": _curve(run, f"valid_{metric}") for run in own
        }
        named = {"most frequent label": "majority", "bag of words": "bag_of_words"}
        scores = {k: (own[0].result.get(v) or {}).get(metric) for k, v in named.items()}
        beaten = {k: score for k, score in scores.items() if score is not None}
        title = name if start == VARIANTS["pretrained"] else f"{name}, {start}"
        if known := {name: curve for name, curve in found.items() if curve[0]}:
            curves.append(DevScores(title, metric, known, beaten))
    return curves


def _curve(run: Finished, metric: str) -> tuple[list[int], list[float]]:
    """The steps of a metric's records, and its values."""
    file = run.folder / METRICS_FILE
    records = read_metrics(file) if file.exists() else []
    known = [(r["step"], r[metric]) for r in records if r.get(metric) is not None]
    return [step for step, _ in known], [value for _, value in known]


def _by_line(runs: Sequence[Finished]) -> dict[tuple[str, str], list[Finished]]:
    """Runs that differ in their seed alone, by name and by where they start."""
    numbers = row_numbers(runs)
    several = {run.task for run, number in zip(runs, numbers, strict=True) if number}
    lines: dict[tuple[str, str], list[Finished]] = {}
    for run, number in zip(runs, numbers, strict=True):
        name = f"{run.title} ({number + 1})" if run.task in several else run.title
        lines.setdefault((name, _start(run)), []).append(run)
    return dict(sorted(lines.items()))


def _start(run: Finished) -> str:
    """What a run took over: nothing, all layers, or some of them."""
    if run.is_from_scratch or run.is_whole:
        return VARIANTS["scratch" if run.is_from_scratch else "pretrained"]
    return f"{run.layers_transferred} of {run.model.depth} layers"


def _rows(name: str, start: str, runs: Sequence[Finished]) -> Iterable[list[str]]:
    """A line for each metric of runs that differ in seed alone."""
    first = runs[0]
    for metric in filter(METRICS.__contains__, first.result["dev"]):
        found = {
            part: [run.result.get(part) or {} for run in runs]
            for part in ("dev", "majority", "bag_of_words", "test")
        }
        beaten = []
        for part in ("majority", "bag_of_words"):
            values = _values(found[part], metric)
            beaten.append(spread(values[: None if len(set(values)) > 1 else 1], metric))
        dev, test = (
            [_score(found[split], metric), _number(found[split])]
            for split in ("dev", "test")
        )
        yield [escape(name), start, metric, dev[0], *beaten, dev[1], *test]


def _values(scores: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    known = (each.get(metric) for each in scores)
    return [METRICS[metric].shown(value) for value in known if value is not None]


def _score(scores: Sequence[Mapping[str, Any]], metric: str) -> str:
    """The score of one run with its interval, or the spread over several."""
    values = _values(scores, metric)
    text = spread(values, metric)
    ends = (scores[0].get("intervals") or {}).get(metric)
    if len(values) != 1 or not ends:
        return text
    low, high = (spread([METRICS[metric].shown(end)], metric) for end in ends)
    return f"{text} ({low} to {high})"


def _number(scores: Iterable[Mapping[str, Any]]) -> str:
    counts = [each["n"] for each in scores if each]
    return f"{statistics.median_low(counts):,}" if counts else "-"


def _confusion(run: Finished) -> str:
    """How often each label was taken for each other; "" of scores or many labels."""
    for split in ("test", "dev"):  # the fairer one, if its labels are known
        counts = run.result.get(split, {}).get("confusion")
        labels = [escape(label) for label in run.config.custom.labels]
        if counts and len(counts) == len(labels) <= _MOST_LABELS:
            break
    else:
        return ""
    seed = run.config.seeds[0]
    title = f"{escape(run.task)}, {split} split, seed {seed}: {_RIGHT_IN_BOLD}"
    rows = [
        [
            labels[true],
            *(f"**{n:,}**" if k == true else f"{n:,}" for k, n in enumerate(row)),
            f"{sum(row):,}",
        ]
        for true, row in enumerate(counts)
    ]
    header = ["true label", *(f"as {label}" for label in labels), "all"]
    return f"{title}\n\n{markdown_table(header, rows, text_columns=1)}"
