"""Results of tasks of one's own: scores, what they have to beat, and mistakes."""

import functools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpt1_jax.finetuning.results import (
    ERROR_BEFORE,
    TEST_BASELINES,
    Finished,
    dev_rank,
    first_metric,
    labelled_split,
    read_errors,
)
from gpt1_jax.report.figures import DevScores, confusion_matrices, reliability_curves
from gpt1_jax.report.markdown import counted, escape, markdown_table
from gpt1_jax.report.plots import Picture
from gpt1_jax.report.tables import (
    VARIANTS,
    how_to_read,
    metric_name,
    row_names,
    spread,
    title_with_metric,
)
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.tasks.metrics import METRICS
from gpt1_jax.tasks.paper_tasks import find_task

_MOST_LABELS = 20  # of a table by label
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
    lines = _lines(runs)
    found = [row for line in lines for row in _rows(line)]
    header = ["task", "start", "metric", "split", "score", "majority", "bag of words"]
    table = markdown_table([*header, "n"], [row for _, row in found], text_columns=4)
    notes = _NOTES.format(how_to_read(metric for metric, _ in found))
    if any(run.config.custom.head == "multilabel" for run in runs):
        notes += (
            " Of several labels, accuracy counts examples whose labels are all right."
        )
    parts = [table, notes, *map(_describe_folds, lines)]
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task]
        best = _best(own)
        title = next(line.title for line in lines if best in line.runs)
        parts += _of_one_run(title, best, is_alone=len(own) == 1)
    return "\n\n".join(filter(None, parts)) + "\n"


class _Line(NamedTuple):
    """Runs that differ in seed and fold alone."""

    name: str  # of the task, and what tells the line from others of it
    start: str  # where the runs start, as the table has it
    runs: list[Finished]

    @property
    def title(self) -> str:
        """Its name in pictures and headings, as plain text."""
        is_usual = self.start == VARIANTS["pretrained"]
        return self.name if is_usual else f"{self.name}, {self.start}"


def _lines(runs: Sequence[Finished]) -> list[_Line]:
    """The lines of the table, by name and by where they start."""
    lines: dict[tuple[str, str], _Line] = {}
    for run, name in zip(runs, row_names(runs), strict=True):
        start = f"{run.layers_transferred} of {run.model.depth} layers"
        if run.is_from_scratch or run.is_whole:
            start = VARIANTS["scratch" if run.is_from_scratch else "pretrained"]
        lines.setdefault((name, start), _Line(name, start, [])).runs.append(run)
    return sorted(lines.values(), key=_natural)


def _natural(line: _Line) -> list[tuple[int, str]]:
    """The place of a line: numbers in names are in the order of their values."""
    parts = re.split(r"(\d+)", f"{line.name} {line.start}".replace(",", ""))
    return [(int(part) if part.isdigit() else -1, part) for part in parts]


def _describe_folds(line: _Line) -> str:
    """Says which runs share a line if they have folds; "" if not."""
    runs = line.runs
    number, folds = runs[0].config.data.folds, {run.config.data.fold for run in runs}
    if not number:
        return ""
    of_all = f"{len(folds)} of " if len(folds) < number else ""
    seeds = counted(len({run.config.seeds[0] for run in runs}), "seed")
    return (
        f"{escape(line.title)}: {counted(len(runs), 'run')} ({of_all}{number} folds, "
        f"{seeds}); each fold is scored on the part of the training file that it "
        "holds out."
    )


def _best(runs: Sequence[Finished]) -> Finished:
    """The run with the best dev score; of equal ones, the first."""
    return max(runs, key=lambda run: dev_rank(run.result))


def _of_one_run(title: str, run: Finished, is_alone: bool) -> list[str]:
    """What is right and wrong in the predictions of a run, label by label."""
    split = labelled_split(run.result)
    scores = run.result[split]
    labels = scores.get("labels", {})
    parts = [
        _by_label(labels),
        _rarely_predicted(run, labels),
        _confusion(run, scores),
        _calibration_error(run, split),
        _errors(run, split),
    ]
    where = f"{escape(title)}, {split} split, {run.repetition}"
    where += "" if is_alone else ", the best run on dev"
    return [f"**{where}**", *parts] if any(parts) else []


def _calibration_error(run: Finished, split: str) -> str:
    """The calibration error on a split, and that before calibration; "" if unknown."""
    error = run.result[split].get("calibration_error")
    if error is None:
        return ""
    before = run.result.get(ERROR_BEFORE, {}).get(split)
    change = "" if before is None else f" ({before:.3f} before calibration)"
    return (
        f"Expected calibration error: {error:.3f}{change}, the mean difference "
        "between the probability of an answer and how often it is right."
    )


def _by_label(labels: Mapping[str, Any]) -> str:
    """The scores of each label; "" for none, or many."""
    if not 0 < len(labels) <= _MOST_LABELS:
        return ""
    rows = []
    for name, scores in labels.items():
        row = [escape(name), f"{scores['n']:,}", f"{scores['predicted']:,}"]
        for score in ("precision", "recall", "f1"):
            row.append(_with_ends(scores[score], scores["intervals"][score], "f1"))
        rows.append(row)
    header = ["label", "n", "predicted", "precision", "recall", "f1"]
    return markdown_table(header, rows, text_columns=1)


def _rarely_predicted(run: Finished, labels: Mapping[str, Any]) -> str:
    """A line on labels that at least four examples have, and hardly any gets."""
    rare = [
        f"{escape(name)} ({counted(scores['predicted'], 'prediction')}, "
        f"{scores['n']:,} have it)"
        for name, scores in labels.items()
        if scores["n"] >= 4 and 4 * scores["predicted"] < scores["n"]
    ]
    if not rare:
        return ""
    if len(rare) > _MOST_RARE:
        rare[_MOST_RARE:] = [f"and {len(rare) - _MOST_RARE} more"]
    custom, hint = run.config.custom, ""
    if not custom.class_weights and custom.head in ("classification", "similarity"):
        hint = " With --config.custom.class_weights=balanced, rare labels weigh more."
    return f"**Almost never predicted:** {'; '.join(rare)}.{hint}"


def _errors(run: Finished, split: str) -> str:
    """The most confident errors of a run on a task of one's own, with their texts."""
    task = find_task(run.config)
    errors = read_errors(run.folder, split, task) if run.is_own else []
    if not errors:
        return ""
    rows = []
    for error in errors[:_MOST_ERRORS]:
        text = " / ".join(filter(None, error.get("text", {}).values()))
        if len(text) > _LONGEST_TEXT:
            text = f"{text[:_LONGEST_TEXT]} .."
        answers = [escape(_answer(error[key])) for key in ("label", "prediction")]
        confidence = f"{error['confidence']:.3f}"
        rows.append([escape(error["id"]), *answers, escape(text), confidence])
    what, sure = "most confident", "confidence"
    if not task.target.labels:
        what, sure = "farthest off", "off by"
    header = ["id", "true", "predicted", "text", sure]
    table = markdown_table(header, rows, text_columns=4)
    return f"The {what} of {counted(len(errors), 'error')}:\n\n{table}"


def _answer(value: Any) -> str:
    """A label, several, or a score, as text."""
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return value if isinstance(value, str) else f"{value:.3g}"


def dev_curves(runs: Sequence[Finished]) -> list[DevScores]:
    """The first metric on the dev split over updates, for each line of the table."""
    curves = []
    for line in _lines(runs):
        first = line.runs[0]
        metric = first_metric(first.result["dev"])
        key = f"valid_{metric}"
        found = {}
        for run in line.runs:
            records = read_metrics(run.folder / METRICS_FILE)
            points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
            if points:
                steps, values = zip(*points, strict=True)
                found[run.repetition] = steps, values
        named = {"most frequent label": "majority", "bag of words": "bag_of_words"}
        levels = {k: _baseline_scores(first, "dev", v) for k, v in named.items()}
        beaten = {k: v[metric] for k, v in levels.items() if v.get(metric) is not None}
        title = title_with_metric(line.title, first, metric)
        if found:
            curves.append(DevScores(title, metric, found, beaten))
    return curves


# --- pictures of the best run of each line ------------------------------------------

_CONFUSION = (
    "Confusion matrices: examples by true and predicted label. Colours are shares of "
    "the examples of a true label."
)
_RELIABILITY = (
    "Reliability: how often answers are right, by tenths of their probability. On the "
    "dashed line both are equal; larger points are of more answers."
)


def own_pictures(runs: Sequence[Finished]) -> list[Picture]:
    """The confusion matrices and the reliability of runs, those that there are."""
    pictures = []
    for name, alt, draw, rows in (
        ("confusion", _CONFUSION, confusion_matrices, confusion_rows(runs)),
        ("reliability", _RELIABILITY, reliability_curves, reliability_rows(runs)),
    ):
        if rows:
            pictures.append(Picture(name, alt, functools.partial(draw, rows), rows))
    return pictures


def confusion_rows(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """How often labels were taken for others, by the best run of each line."""
    rows = []
    for run, scores, names in _of_best_runs(runs):
        labels, counts = run.config.custom.labels, scores.get("confusion", ())
        if len(counts) == len(labels):
            for true, row in zip(labels, counts, strict=True):
                for predicted, n in zip(labels, row, strict=True):
                    rows.append({**names, "true": true, "predicted": predicted, "n": n})
    return rows


def reliability_rows(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """How often answers were right by their probability, of the best run of a line."""
    return [
        {**names, **tenth}
        for _, scores, names in _of_best_runs(runs)
        for tenth in scores.get("reliability", ())
    ]


def _of_best_runs(
    runs: Sequence[Finished],
) -> Iterable[tuple[Finished, Mapping[str, Any], dict[str, str]]]:
    """The best run of each line, its scores, and the columns that name both."""
    for line in _lines(runs):
        best = _best(line.runs)
        split = labelled_split(best.result)
        yield best, best.result[split], {"task": line.title, "split": split}


# --- cells ----------------------------------------------------------------------


def _rows(line: _Line) -> Iterable[tuple[str, list[str]]]:
    """The metrics and rows of a line, by split."""
    runs = line.runs
    for split in ("dev", "test"):
        scores = [run.result.get(split, {}) for run in runs]
        numbers = [each["n"] for each in scores if each]
        for metric in filter(METRICS.__contains__, scores[0]):
            cells = [
                escape(line.name),
                line.start,
                escape(metric_name(runs[0], metric)),
                split,
                _score(scores, metric),
                _baseline(runs, split, "majority", metric),
                _baseline(runs, split, "bag_of_words", metric),
                f"{statistics.median_low(numbers):,}",
            ]
            yield metric, cells


def _baseline_scores(run: Finished, split: str, name: str) -> Mapping[str, Any]:
    """The scores of a baseline on a split; up to 1.0 there are only those on dev."""
    found = run.result if split == "dev" else run.result.get(TEST_BASELINES, {})
    return found.get(name) or {}


def _values(scores: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    known = (each.get(metric) for each in scores)
    return [METRICS[metric].shown(value) for value in known if value is not None]


def _baseline(runs: Sequence[Finished], split: str, name: str, metric: str) -> str:
    """The score of a baseline; it has a spread if it is not the same for all runs."""
    values = _values([_baseline_scores(run, split, name) for run in runs], metric)
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


def _confusion(run: Finished, scores: Mapping[str, Any]) -> str:
    """How often each label was taken for each other; none of scores or many labels."""
    counts = scores.get("confusion", ())
    labels = [escape(label) for label in run.config.custom.labels]
    if not 0 < len(counts) == len(labels) <= _MOST_LABELS:
        return ""
    rows = []
    for true, row in enumerate(counts):
        cells = [f"{n:,}" for n in (*row, sum(row))]
        cells[true] = f"**{cells[true]}**"
        rows.append([labels[true], *cells])
    header = ["true label", *(f"as {label}" for label in labels), "all"]
    table = markdown_table(header, rows, text_columns=1)
    return f"Examples by true label (lines) and predicted, right ones bold:\n\n{table}"
