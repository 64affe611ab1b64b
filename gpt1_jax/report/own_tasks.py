"""Results of tasks of one's own: scores, what they have to beat, and mistakes."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt1_jax.finetuning.results import Finished
from gpt1_jax.report.figures import DevScores
from gpt1_jax.report.markdown import escape, markdown_table
from gpt1_jax.report.tables import VARIANTS, how_to_read, row_numbers, spread
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.tasks.metrics import METRICS

_MOST_LABELS = 20  # of a confusion matrix that is shown

_NOTES = (
    "{} After the score of one run: its 95 % confidence interval over examples. "
    "Checkpoints are chosen on the dev split, so scores there flatter; on a test split "
    "they do not. The baselines answer the dev split: the most frequent label or mean "
    "score of the training examples, and a linear model of words and pairs of words."
)


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
        found = {}
        for run in own:
            records = read_metrics(run.folder / METRICS_FILE)
            points = [(r["step"], r.get(f"valid_{metric}")) for r in records]
            if known := [(step, value) for step, value in points if value is not None]:
                steps, values = zip(*known, strict=True)
                found[f"seed {run.config.seeds[0]}"] = steps, values
        named = {"most frequent label": "majority", "bag of words": "bag_of_words"}
        scores = {k: (own[0].result.get(v) or {}).get(metric) for k, v in named.items()}
        beaten = {k: score for k, score in scores.items() if score is not None}
        title = name if start == VARIANTS["pretrained"] else f"{name}, {start}"
        if found:
            curves.append(DevScores(title, metric, found, beaten))
    return curves


def _by_line(runs: Sequence[Finished]) -> dict[tuple[str, str], list[Finished]]:
    """Runs that differ in their seed alone, by name and by where they start."""
    numbers = row_numbers(runs)
    several = {run.task for run, number in zip(runs, numbers, strict=True) if number}
    lines: dict[tuple[str, str], list[Finished]] = {}
    for run, number in zip(runs, numbers, strict=True):
        name = f"{run.title} ({number + 1})" if run.task in several else run.title
        start = f"{run.layers_transferred} of {run.model.depth} layers"
        if run.is_from_scratch or run.is_whole:
            start = VARIANTS["scratch" if run.is_from_scratch else "pretrained"]
        lines.setdefault((name, start), []).append(run)
    return dict(sorted(lines.items()))


def _rows(name: str, start: str, runs: Sequence[Finished]) -> Iterable[list[str]]:
    """A line for each metric of runs that differ in seed alone."""
    for metric in filter(METRICS.__contains__, runs[0].result["dev"]):
        dev, majority, bag_of_words, test = (
            [run.result.get(part) or {} for run in runs]
            for part in ("dev", "majority", "bag_of_words", "test")
        )
        yield [
            escape(name),
            start,
            metric,
            _score(dev, metric),
            _baseline(majority, metric),
            _baseline(bag_of_words, metric),
            _number(dev),
            _score(test, metric),
            _number(test),
        ]


def _values(scores: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    known = (each.get(metric) for each in scores)
    return [METRICS[metric].shown(value) for value in known if value is not None]


def _baseline(scores: Iterable[Mapping[str, Any]], metric: str) -> str:
    """The score of a baseline; it has a spread if it is not the same for all runs."""
    values = _values(scores, metric)
    return spread(values if len(set(values)) > 1 else values[:1], metric)


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
    title = (
        f"{escape(run.task)}, {split} split, seed {seed}: examples by true label "
        "(lines) and predicted, right ones bold."
    )
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
