"""Scores of fine-tuned runs: the long table of them, and Tables 2 to 4 as Markdown.

The long table is a pandas DataFrame with a row for each score, so that Markdown tables
and figures are groups of it. `score_table` makes it, in points as in the paper.

pandas is imported where it is used: it takes a third of a second, and training runs
import this module.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.config.report import KIND_NAMES
from gpt1_jax.finetuning.results import Finished
from gpt1_jax.report.markdown import escape, markdown_table
from gpt1_jax.report.paper import GLUE, GLUE_SCORES, PAPER, TABLES, PaperScore
from gpt1_jax.runs.resume import saved_digests
from gpt1_jax.tasks.metrics import METRICS, describe_metric
from gpt1_jax.tasks.paper_tasks import find_task

if TYPE_CHECKING:
    import pandas as pd

_LONGEST = 60  # letters of the name of a row
IN_COLUMNS = ("init_from", "step", "transfer_layers")  # keys that differ within a row
VARIANTS = {"pretrained": "pre-trained", "scratch": "from scratch"}
_PAPER_COLUMNS = {
    "gpt1": "GPT-1 paper (test)",
    "from_scratch": "paper, no pre-training (test)",
}
_OURS_ON_DEV = [f"ours, {name} (dev)" for name in VARIANTS.values()]
_OURS_ON_TEST = [f"ours, {name} (test)" for name in VARIANTS.values()]
_MAJORITY = "majority baseline (dev)"
_Points = Mapping[str, list[float]]  # of a line of `paper_table`, by column
_NOTE = (
    "Ours is measured on the dev splits, and on the test splits whose labels are at "
    "hand; the paper's on the test splits. {} No pre-training is Table 5's, which "
    "leaves tasks out and has only the mean of MNLI's m and mm. WNLI is from the GLUE "
    "leaderboard, COPA from the announcement of GPT-1. Average: the unweighted mean "
    "over the lines with a value of ours; their number is in brackets."
)
_NOTE_ON_PARTS = (
    " A task with several lines counts once: RACE as a whole, MNLI as the mean of its "
    "halves."
)
_NOTE_WITHOUT_PAPER = (
    "Measured on the dev split, and on the test split where its labels are at hand. {}"
)
_NOTE_ON_VARIANTS = (
    "Measured on the dev split, on training examples where they were scored, and on "
    "the test split where its labels are at hand. {}"
)


# --- the long table of fine-tuned runs ------------------------------------------


def score_table(
    runs: Sequence[Finished], variants: Sequence[str] | None = None
) -> "pd.DataFrame":
    """The long table of the scores of finished fine-tuned runs.

    Args:
      runs: the runs.
      variants: the name of each run's variant; by default "pretrained" or "scratch".

    Returns:
      Columns: "run" (its number), "task", "row" (as `row_numbers` gives it), "variant",
      "fold" (if there are any), "seed", "layers" (transferred), "aux_lm_weight",
      "train_examples", "split" ("dev", "train", "test", or "majority" for the baseline
      on the dev split), "subset" ("" for the whole split), "n" (examples), "metric" and
      "score", as `Metric.shown` gives it: in points if the metric is one of the
      paper's.
    """
    import pandas as pd

    if variants is None:
        variants = ["scratch" if run.is_from_scratch else "pretrained" for run in runs]
    columns = ["run", "task", "row", "variant", "fold", "seed", "layers"]
    columns += ["aux_lm_weight", "train_examples"]
    columns += ["split", "subset", "n", "metric", "score"]
    rows = []
    numbers = row_numbers(runs)
    for number, (run, variant) in enumerate(zip(runs, variants, strict=True)):
        of_run = (
            number,
            run.task,
            numbers[number],
            variant,
            run.config.data.fold,
            run.config.seeds[0],
            run.layers_transferred,
            run.config.head.aux_lm_weight,
            run.train_examples,
        )
        for split in ("dev", "train", "test", "majority"):
            whole = run.result.get(split, {})
            for subset, part in {"": whole, **whole.get("subsets", {})}.items():
                for name in filter(METRICS.__contains__, part):
                    value = math.nan if part[name] is None else part[name]
                    score = METRICS[name].shown(value)
                    n = part.get("n", 0)
                    rows.append((*of_run, split, subset, n, name, score))
    table = pd.DataFrame(rows, columns=columns)
    return table if table["fold"].any() else table.drop(columns="fold")


def how_to_read(metrics: Iterable[str]) -> str:
    """The notes on how to read the values in a table of these metrics."""
    names = list(dict.fromkeys(metrics))
    others = [name for name in names if not METRICS[name].in_points]
    lower = [name for name in names if not METRICS[name].highest_is_best]
    text = "For several runs, the median, then the lowest to highest."
    if not names or len(others) < len(names):
        left_out = f" but {', '.join(others)}" if others else ""
        text = f"All values{left_out} are x 100; f{text[1:]}"
    return f"{text} Lower is better: {', '.join(lower)}." if lower else text


def row_numbers(runs: Sequence[Finished]) -> list[int]:
    """For each run, the number of its row among the rows of its task.

    The runs of a row have the same data and settings, except those shown in columns:
    where they start from, how many layers were transferred, and the seed.
    """
    rows: dict[str, dict[str, int]] = {}
    numbers = []
    for run in runs:
        of_task = rows.setdefault(run.task, {})
        settings = run.settings(by_content=True).items()
        same = {k: v for k, v in settings if not k.startswith(IN_COLUMNS)}
        key = json.dumps(same, sort_keys=True)
        numbers.append(of_task.setdefault(key, len(of_task)))
    return numbers


def row_names(runs: Sequence[Finished]) -> list[str]:
    """For each run, its task and what tells its row from the task's other rows.

    That is "tickets" if there are no others, "tickets, 300 rows" if they differ in the
    number of training examples, or "tickets (2)" if a name cannot say it.
    """
    names = {}
    for task, rows in runs_by_row(runs).items():
        title, facts = rows[0].title, tell_apart([*map(_short_facts, rows)])
        own = [", ".join([title, *each.values()]) for each in facts]
        unclear = len(set(own)) < len(own) or max(map(len, own)) > _LONGEST
        if unclear and len(own) > 1:
            own = [f"{title} ({number})" for number in range(1, len(own) + 1)]
        names[task] = own
    return [
        names[run.task][number]
        for run, number in zip(runs, row_numbers(runs), strict=True)
    ]


def runs_by_row(runs: Sequence[Finished]) -> dict[str, list[Finished]]:
    """The first run of each row, by task, in the order of `row_numbers`."""
    tasks: dict[str, list[Finished]] = {}
    for run, number in zip(runs, row_numbers(runs), strict=True):
        rows = tasks.setdefault(run.task, [])
        if number == len(rows):
            rows.append(run)
    return tasks


def metric_name(run: Finished, metric: str) -> str:
    """A metric's name; on a task of one's own, F1's has the positive class."""
    return describe_metric(find_task(run.config), metric) if run.is_own else metric


def title_with_metric(title: str, run: Finished, metric: str) -> str:
    """A title that names the positive class, if the metric has one."""
    named = metric_name(run, metric)
    return title if named == metric else f"{title}: {named}"


def _short_facts(run: Finished) -> dict[str, str]:
    """The settings that may tell a run apart, as they stand in a name."""
    facts = {"rows": f"{run.train_examples:,} rows"}
    contents = saved_digests(run.result)
    for key, value in run.settings(by_content=True).items():
        if key not in contents and not key.startswith((*IN_COLUMNS, "data.max_")):
            values = value if isinstance(value, tuple | list) else [value]
            facts[key] = f"{key.rpartition('.')[2]} {','.join(map(str, values))}"
    return facts


def tell_apart(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The values that are not the same in all rows."""
    keys = dict.fromkeys(key for row in rows for key in row)
    values = [{key: row.get(key, "-") for key in keys} for row in rows]
    apart = [k for k in keys if any(row[k] != values[0][k] for row in values)]
    return [{key: row[key] for key in apart} for row in values]


def paper_lines(scores: "pd.DataFrame") -> list[PaperScore]:
    """The paper's scores on the tasks in a table, and a line for every other task.

    The line of a task that the paper does not have names its first metric.
    """
    tasks = list(scores["task"].unique())
    lines = [line for line in PAPER if line.task in tasks]
    for task in tasks:
        if not any(line.task == task for line in lines):
            metric = _where(scores, task=task, split="dev")["metric"].iloc[0]
            lines.append(PaperScore(task, task, metric, None, None, table=0))
    return lines


def headline(lines: Iterable[PaperScore], task: str) -> PaperScore:
    """The line of a task that represents it in a figure.

    It is about the whole split, or MNLI's matched half, as in Figure 2 (left).
    """
    own = [line for line in lines if line.task == task]
    return next((line for line in own if not line.subset), own[0])


def spread(values: Iterable[float], metric: str) -> str:
    """The median of values, and their range if there are several; "-" if none.

    Args:
      values: of a metric, as `Metric.shown` gives them; unknown ones are NaN.
      metric: its name. Points have one decimal, small values of others more.
    """
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return "-"

    def text(value: float) -> str:
        in_points = METRICS[metric].in_points or abs(value) >= 9.995
        return f"{value:.1f}" if in_points else f"{value:#.3g}"

    middle = text(statistics.median(known))
    ends = f" ({text(known[0])} to {text(known[-1])})"
    return middle + ends if len(known) > 1 else middle


def _where(scores: "pd.DataFrame", **values: Any) -> "pd.DataFrame":
    """The rows that have these values in these columns."""
    for column, value in values.items():
        scores = scores[scores[column] == value]
    return scores


def _known(scores: "pd.DataFrame") -> list[float]:
    """The scores that are known."""
    return [*scores["score"].dropna()]


def _where_line(scores: "pd.DataFrame", line: PaperScore) -> "pd.DataFrame":
    return _where(scores, task=line.task, metric=line.metric, subset=line.subset)


def mean_of(points: Sequence[float]) -> str:
    """The mean of points, and their number in brackets; "-" if there are none."""
    return f"{statistics.fmean(points):.1f} ({len(points)})" if points else "-"


def one_for_each_run(
    scores: "pd.DataFrame", lines: Sequence[PaperScore]
) -> "pd.DataFrame":
    """One score of a task for each run and split.

    It is the mean over the subsets that the lines name, or the score of the whole split
    if it has none of them. If a seed was run twice, the first run counts.

    Args:
      scores: as `score_table` returns them.
      lines: of one task, with one metric.
    """
    scores = _where(scores, task=lines[0].task, metric=lines[0].metric)
    scores = scores[scores["subset"].isin([*(line.subset for line in lines), ""])]
    whole = scores["subset"] == ""
    has_subsets = (~whole).groupby([scores["run"], scores["split"]]).transform("any")
    scores = scores[~(whole & has_subsets)].drop(columns=["row", "subset", "n"])
    others = [column for column in scores if column != "score"]
    scores = scores.groupby(others, sort=False, as_index=False)["score"].mean()
    return scores.drop_duplicates([name for name in others if name != "run"])


# --- Tables 2 to 4, and any variants --------------------------------------------


def results_table(
    scores: "pd.DataFrame", skipped: Mapping[str, str] | None = None
) -> str:
    """Our scores beside the paper's (Tables 2 to 5), or those of variants, as Markdown.

    If there are variants other than `VARIANTS`, each has a line, and tasks are columns.

    Args:
      scores: as `score_table` returns them.
      skipped: the reasons why tasks were not run, by task.
    """
    if set(scores["variant"]) <= set(VARIANTS):
        parts = [paper_table(scores), *paper_table_notes(scores)]
    else:
        values = how_to_read(line.metric for line in paper_lines(scores))
        parts = [_variants_table(scores), _NOTE_ON_VARIANTS.format(values)]
    if skipped:
        lines = []
        for task, reason in skipped.items():
            titles = [line.title for line in PAPER if line.task == task] or [task]
            lines.append(f"- {', '.join(titles)}: {reason}")
        parts += ["Skipped:", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def paper_table(scores: "pd.DataFrame") -> str:
    """Our scores beside the paper's (Tables 2 to 5), without notes.

    Args:
      scores: as `score_table` returns them, only of the variants in `VARIANTS`.
    """
    rows = [(line, own, _points(own, line)) for line, own in _rows(scores)]
    in_paper = _is_in_paper(scores)
    always = {*_OURS_ON_DEV, _MAJORITY, *(_PAPER_COLUMNS.values() if in_paper else ())}
    order = [*_OURS_ON_DEV, *_OURS_ON_TEST, _MAJORITY, *_PAPER_COLUMNS.values()]
    titles = [t for t in order if t in always or any(points[t] for *_, points in rows)]
    body = []
    for table, heading in TABLES.items():
        in_table = [row for row in rows if row[0].table == table]
        if in_table and in_paper:
            body.append([f"**{heading}**", *[""] * (len(titles) + 2)])
        for line, own, points in in_table:
            texts = [spread(points[title], line.metric) for title in titles]
            names = [escape(line.title), line.metric, _count_examples(own, line)]
            body.append([*names, *texts])
    in_points = [METRICS[line.metric].in_points for line, *_ in rows]
    # A task with several lines has no average, nor have metrics that are no points.
    if (any(in_points) or not rows) and not scores["row"].any():
        averages = _averages([(line, points) for line, _, points in rows], titles)
        body.append(["**Average**", "", "", *averages])
    return markdown_table(["task", "metric", "n (dev)", *titles], body, text_columns=2)


def _averages(
    rows: Iterable[tuple[PaperScore, _Points]], titles: Iterable[str]
) -> list[str]:
    """The means over tasks in points, by column, and how many tasks they are over.

    RACE counts as a whole, MNLI as the mean of its halves.
    """
    tasks: dict[str, dict[str, _Points]] = {}  # then by subset
    for line, points in rows:
        has_ours = any(points[title] for title in _OURS_ON_DEV)
        if has_ours and METRICS[line.metric].in_points:
            tasks.setdefault(line.task, {})[line.subset] = points
    parts = [[own[""]] if "" in own else [*own.values()] for own in tasks.values()]
    means = []
    for title in titles:
        medians = [
            [statistics.median(points[title]) for points in own if points[title]]
            for own in parts
        ]
        means.append(mean_of([statistics.fmean(own) for own in medians if own]))
    return means


def _rows(scores: "pd.DataFrame") -> list[tuple[PaperScore, "pd.DataFrame"]]:
    """The lines of `paper_table` in order, each with the scores that belong to it."""
    rows = []
    for (task, row), own in scores.groupby(["task", "row"], sort=False):
        several = _where(scores, task=task)["row"].any()
        for line in paper_lines(own):
            place = PAPER.index(line) if line in PAPER else len(PAPER)
            title = f"{line.title} ({row + 1})" if several else line.title
            rows.append((place, line._replace(title=title), own))
    return [(line, own) for _, line, own in sorted(rows, key=lambda each: each[0])]


def _points(scores: "pd.DataFrame", line: PaperScore) -> _Points:
    own = _where_line(scores, line)
    return {
        **{
            f"ours, {name} ({split})": _known(_where(own, split=split, variant=key))
            for split in ("dev", "test")
            for key, name in VARIANTS.items()
        },
        _MAJORITY: _majority(own),
        **{
            title: [] if getattr(line, name) is None else [getattr(line, name)]
            for name, title in _PAPER_COLUMNS.items()
        },
    }


def _majority(scores: "pd.DataFrame") -> list[float]:
    """The score of the majority baseline, the median over runs, if there is one."""
    known = _known(_where(scores, split="majority"))
    return [statistics.median(known)] if known else []


def _count_examples(scores: "pd.DataFrame", line: PaperScore) -> str:
    """The number of dev examples of a line, or its range over runs."""
    counts = sorted(_where(_where_line(scores, line), split="dev")["n"].unique())
    ends = dict.fromkeys(counts[:1] + counts[-1:])
    return " to ".join(f"{count:,}" for count in ends) or "-"


def paper_table_notes(scores: "pd.DataFrame") -> list[str]:
    """Notes on `paper_table`, and the GLUE scores if all tasks of GLUE are there."""
    note = _NOTE if _is_in_paper(scores) else _NOTE_WITHOUT_PAPER
    if {"race", "mnli"} & set(scores["task"]):
        note += _NOTE_ON_PARTS
    notes = [note.format(how_to_read(line.metric for line, _ in _rows(scores)))]
    for variant in VARIANTS:
        if (score := glue_score(scores, variant)) is not None:
            ours = f"GLUE score: {score:.1f} ({variant}, dev)"
            notes.append(f"{ours}; the paper's {GLUE} (test).")
    return notes


def _is_in_paper(scores: "pd.DataFrame") -> bool:
    tasks = {line.task for line in PAPER}
    return scores.empty or not tasks.isdisjoint(scores["task"])


def glue_score(scores: "pd.DataFrame", variant: str) -> float | None:
    """The GLUE score as the leaderboard computes it, but on the dev splits.

    Args:
      scores: as `score_table` returns them.
      variant: that of the runs to use. Of several seeds, the median counts.

    Returns:
      The mean over the nine tasks, in points, where a task with two metrics, or two
      subsets, counts as the mean of both. None unless all nine are there, each with
      runs of one row.
    """
    scores = _where(scores, variant=variant, split="dev")
    if scores["row"].any() or not GLUE_SCORES.keys() <= set(scores["task"]):
        return None
    by_run = scores.pivot(
        index=["task", "run"], columns=["metric", "subset"], values="score"
    )
    medians = []
    for task, parts in GLUE_SCORES.items():
        own = by_run.loc[task].reindex(columns=parts)
        if own.isna().any(axis=None):
            return None
        medians.append(own.mean(axis=1).median())
    return statistics.fmean(medians)


def _variants_table(scores: "pd.DataFrame") -> str:
    """A table with a line for each variant and columns for the scores of each task."""
    variants = list(scores["variant"].unique())
    lines = paper_lines(scores)
    header, columns = ["variant"], [[*variants, "majority baseline"]]
    for line in lines:
        # Training examples are scored as a whole, beside the headline of the task.
        splits = {"dev": line.subset, "train": "", "test": line.subset}
        if line != headline(lines, line.task):
            del splits["train"]
        for split, subset in splits.items():
            own = _where_line(scores, line._replace(subset=subset))
            of_variants = _where(own, split=split).groupby("variant")["score"]
            texts = of_variants.agg(spread, metric=line.metric)
            if not texts.empty:
                majority = _majority(own) if split == "dev" else []
                baseline = spread(majority, line.metric)
                header.append(f"{escape(line.title)}, {line.metric} ({split})")
                columns.append([*texts.reindex(variants, fill_value="-"), baseline])
    return markdown_table(header, zip(*columns, strict=True), text_columns=1)


# --- names and numbers -----------------------------------------------------------


def run_names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of runs in legends and tables.

    They are the ends of the folders' paths, long enough to tell them apart, with the
    kinds of the models in brackets if these differ.

    Args:
      runs: each with "init_from", its folder, and "kind".
    """
    paths = [str(run["init_from"]).strip("/").split("/") for run in runs]
    different = {*map(tuple, paths)}
    length = 1
    while len({path[-length:] for path in different}) < len(different):
        length += 1
    names = ["/".join(path[-length:]) for path in paths]
    kinds = [KIND_NAMES.get(run["kind"], str(run["kind"])) for run in runs]
    if len(set(kinds)) > 1:
        names = [f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True)]
    return names
