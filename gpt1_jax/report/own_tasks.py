"""Results of tasks of one's own: scores, what they have to beat, and mistakes."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt1_jax.finetuning.results import (
    ERROR_BEFORE,
    TEST_BASELINES,
    Finished,
    predictions_file,
    read_errors,
)
from gpt1_jax.report.figures import DevScores
from gpt1_jax.report.markdown import counted, escape, markdown_table
from gpt1_jax.report.tables import VARIANTS, how_to_read, row_names, spread
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.tasks.metrics import METRICS, describe_metric
from gpt1_jax.tasks.paper_tasks import find_task

_MOST_LABELS = 20  # of a confusion matrix that is shown

_MOST_RARE = 10  # labels that are hardly predicted
_MOST_ERRORS = 20
_LONGEST_TEXT = 200  # letters of an error's text

_NOTES = (
    "{} After the score of one run: its 95 % confidence interval over examples. "
    "Checkpoints are chosen on the dev split, so scores there flatter; on a test split "
    "they do not. The baselines are the most frequent label or mean score of the "
    "training examples, and a linear model of words and pairs of words."
)


def own_results(runs: Sequence[Finished]) -> str:
    """The scores of runs on tasks of one's own, by label too, and errors, as Markdown.

    Args:
      runs: finished runs; those that differ only in seed and fold share a line. Of
        the best run on each task by its dev score, labels and errors are shown, on the
        test split if its labels are known.
    """
    lines = _by_line(runs)
    found = [row for line, own in lines.items() for row in _rows(*line, own)]
    header = ["task", "start", "metric", "split", "score", "majority", "bag of words"]
    table = markdown_table([*header, "n"], [row for _, row in found], text_columns=4)
    notes = _NOTES.format(how_to_read(metric for metric, _ in found))
    if any(run.config.custom.head == "multilabel" for run in runs):
        notes += (
            " Of several labels, accuracy counts examples whose labels are all right."
        )
    folds = [_describe_folds(_title(*line), own) for line, own in lines.items()]
    parts = [table, notes, *filter(None, folds)]
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task]
        best = _best(own)
        title = next(_title(*line) for line, known in lines.items() if best in known)
        parts += _of_one_run(title, best, is_alone=len(own) == 1)
    return "\n\n".join(parts) + "\n"


def _title(name: str, start: str) -> str:
    """The name of a line, as plain text."""
    return name if start == VARIANTS["pretrained"] else f"{name}, {start}"


def _describe_folds(title: str, runs: Sequence[Finished]) -> str:
    """Says which runs share a line if they have folds; "" if not."""
    folds = {run.config.data.fold for run in runs}
    if folds == {0}:
        return ""
    seeds = counted(len({run.config.seeds[0] for run in runs}), "seed")
    of_all = f"{len(folds)} of {runs[0].config.data.folds} folds"
    return (
        f"{escape(title)}: {counted(len(runs), 'run')}, of {of_all} and {seeds}. "
        "The dev split of each fold is another part of the training file."
    )


def _best(runs: Sequence[Finished]) -> Finished:
    """The run with the best dev score; of equal ones, the first."""
    metric = next(filter(METRICS.__contains__, runs[0].result["dev"]))
    sign = 1 if METRICS[metric].highest_is_best else -1
    scores = [run.result["dev"][metric] for run in runs]
    signed = [-math.inf if score is None else sign * score for score in scores]
    return runs[signed.index(max(signed))]


def _scored_split(run: Finished) -> str:
    """The split on which labels and errors are shown: test, if its labels are known."""
    return "test" if METRICS.keys() & run.result.get("test", {}).keys() else "dev"


def _of_one_run(title: str, run: Finished, is_alone: bool) -> list[str]:
    """What is right and wrong in the predictions of a run, label by label."""
    split = _scored_split(run)
    scores = run.result[split]
    parts = []
    if 0 < len(labels := scores.get("labels", {})) <= _MOST_LABELS:
        parts.append(_by_label(labels))
    parts += _rarely_predicted(run, labels)
    parts += _confusion(run, scores)
    if (error := scores.get("calibration_error")) is not None:
        before = run.result.get(ERROR_BEFORE, {}).get(split)
        change = "" if before is None else f" ({before:.3f} before calibration)"
        parts.append(
            f"Expected calibration error: {error:.3f}{change}, the mean difference "
            "between the probability of an answer and how often it is right."
        )
    parts += _errors(run, split)
    where = f"{escape(title)}, {split} split, {run.repetition}"
    where += "" if is_alone else ", the best run on dev"
    return [f"**{where}**", *parts] if parts else []


def _by_label(labels: Mapping[str, Any]) -> str:
    rows = []
    for name, scores in labels.items():
        row = [escape(name), f"{scores['n']:,}", f"{scores['predicted']:,}"]
        for score in ("precision", "recall", "f1"):
            row.append(_with_ends(scores[score], scores["intervals"][score], "f1"))
        rows.append(row)
    header = ["label", "n", "predicted", "precision", "recall", "f1"]
    return markdown_table(header, rows, text_columns=1)


def _rarely_predicted(run: Finished, labels: Mapping[str, Any]) -> list[str]:
    """A line on labels that at least four examples have, and hardly any gets."""
    rare = [
        f"{escape(name)} ({counted(scores['predicted'], 'prediction')}, "
        f"{scores['n']:,} have it)"
        for name, scores in labels.items()
        if scores["n"] >= 4 and 4 * scores["predicted"] < scores["n"]
    ]
    if not rare:
        return []
    if len(rare) > _MOST_RARE:
        rare[_MOST_RARE:] = [f"and {len(rare) - _MOST_RARE} more"]
    custom, hint = run.config.custom, ""
    if not custom.class_weights and custom.head in ("classification", "similarity"):
        hint = " With --config.custom.class_weights=balanced, rare labels weigh more."
    return [f"**Almost never predicted:** {'; '.join(rare)}.{hint}"]


def _errors(run: Finished, split: str) -> list[str]:
    """The most confident errors of a run on a task of one's own, with their texts."""
    if not (run.is_own and predictions_file(run.folder, split).exists()):
        return []
    task = find_task(run.config)
    errors, rows = read_errors(run.folder, split, task), []
    for error in errors[:_MOST_ERRORS]:
        text = " / ".join(filter(None, error.get("text", {}).values()))
        if len(text) > _LONGEST_TEXT:
            text = f"{text[:_LONGEST_TEXT]} .."
        answers = [escape(_answer(error[key])) for key in ("label", "prediction")]
        confidence = f"{error['confidence']:.3f}"
        rows.append([escape(error["id"]), *answers, escape(text), confidence])
    if not rows:
        return []
    what, sure = ("most confident", "confidence")
    if not task.target.labels:
        what, sure = "farthest off", "off by"
    header = ["id", "true", "predicted", "text", sure]
    table = markdown_table(header, rows, text_columns=4)
    return [f"The {what} of {counted(len(errors), 'error')}:\n\n{table}"]


def _answer(value: Any) -> str:
    """A label, several, or a score, as text."""
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return value if isinstance(value, str) else f"{value:.3g}"


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
                found[run.repetition] = steps, values
        named = {"most frequent label": "majority", "bag of words": "bag_of_words"}
        scores = {k: (own[0].result.get(v) or {}).get(metric) for k, v in named.items()}
        beaten = {k: score for k, score in scores.items() if score is not None}
        title = _title(name, start)
        shown = describe_metric(find_task(own[0].config), metric)
        title = title if shown == metric else f"{title}: {shown}"
        if found:
            curves.append(DevScores(title, metric, found, beaten))
    return curves


def confusion_rows(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """How often labels were taken for others, by the best run of each line."""
    rows = []
    for line, own in _by_line(runs).items():
        run = _best(own)
        split = _scored_split(run)
        counts = run.result[split].get("confusion", ())
        labels = run.config.custom.labels
        if len(counts) == len(labels):
            of_run = {"task": _title(*line), "split": split}
            for true, row in zip(labels, counts, strict=True):
                for predicted, n in zip(labels, row, strict=True):
                    cell = {"true": true, "predicted": predicted, "n": n}
                    rows.append({**of_run, **cell})
    return rows


def reliability_rows(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """How often answers were right by their probability, of the best run of a line."""
    rows = []
    for line, own in _by_line(runs).items():
        run = _best(own)
        split = _scored_split(run)
        of_run = {"task": _title(*line), "split": split}
        rows += [{**of_run, **bin} for bin in run.result[split].get("reliability", ())]
    return rows


def _by_line(runs: Sequence[Finished]) -> dict[tuple[str, str], list[Finished]]:
    """Runs that differ in seed and fold alone, by name and by where they start."""
    lines: dict[tuple[str, str], list[Finished]] = {}
    for run, name in zip(runs, row_names(runs), strict=True):
        start = f"{run.layers_transferred} of {run.model.depth} layers"
        if run.is_from_scratch or run.is_whole:
            start = VARIANTS["scratch" if run.is_from_scratch else "pretrained"]
        lines.setdefault((name, start), []).append(run)
    return dict(sorted(lines.items(), key=lambda line: _natural(line[0])))


def _natural(line: tuple[str, str]) -> list[tuple[int, str]]:
    """The place of a line: numbers in names are in the order of their values."""
    parts = re.split(r"(\d+)", " ".join(line).replace(",", ""))
    return [(int(part) if part.isdigit() else -1, part) for part in parts]


def _rows(
    name: str, start: str, runs: Sequence[Finished]
) -> Iterable[tuple[str, list[str]]]:
    """The metrics and lines of runs that differ in seed alone, by split."""
    for split in ("dev", "test"):
        scores, majority, bag_of_words = (
            [run.result.get(split) or {} for run in runs],
            [_baseline_scores(run, split, "majority") for run in runs],
            [_baseline_scores(run, split, "bag_of_words") for run in runs],
        )
        for metric in filter(METRICS.__contains__, scores[0]):
            yield (
                metric,
                [
                    escape(name),
                    start,
                    escape(describe_metric(find_task(runs[0].config), metric)),
                    split,
                    _score(scores, metric),
                    _baseline(majority, metric),
                    _baseline(bag_of_words, metric),
                    _number(scores),
                ],
            )


def _baseline_scores(run: Finished, split: str, name: str) -> Mapping[str, Any]:
    """The scores of a baseline on a split; up to 1.0 there are only those on dev."""
    found = run.result if split == "dev" else run.result.get(TEST_BASELINES, {})
    return found.get(name) or {}


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
    ends = (scores[0].get("intervals") or {}).get(metric)
    if len(values) != 1 or not ends:
        return spread(values, metric)
    return _with_ends(scores[0][metric], ends, metric)


def _with_ends(value: float | None, ends: Sequence[float] | None, metric: str) -> str:
    """A score with the ends of its interval; "-" if it is not defined."""
    if value is None:
        return "-"
    shown = METRICS[metric].shown
    text, *between = (spread([shown(each)], metric) for each in (value, *(ends or ())))
    return f"{text} ({' to '.join(between)})" if between else text


def _number(scores: Iterable[Mapping[str, Any]]) -> str:
    counts = [each["n"] for each in scores if each]
    return f"{statistics.median_low(counts):,}" if counts else "-"


def _confusion(run: Finished, scores: Mapping[str, Any]) -> list[str]:
    """How often each label was taken for each other; none of scores or many labels."""
    counts = scores.get("confusion", ())
    labels = [escape(label) for label in run.config.custom.labels]
    if not 0 < len(counts) == len(labels) <= _MOST_LABELS:
        return []
    rows = [
        [
            labels[true],
            *(f"**{n:,}**" if k == true else f"{n:,}" for k, n in enumerate(row)),
            f"{sum(row):,}",
        ]
        for true, row in enumerate(counts)
    ]
    header = ["true label", *(f"as {label}" for label in labels), "all"]
    table = markdown_table(header, rows, text_columns=1)
    return [
        f"Examples by true label (lines) and predicted, right ones bold:\n\n{table}"
    ]
