"""Zero-shot scores beside chance and the best published before, as table and curves.

`Runs` are what the job writes, first the run itself, then the baseline if there is one:
`[{"init_from": .., "kind": .., "checkpoints": [{"step": .., "tasks": ..}, ..]}, ..]`.
Tasks are `{task: scores}`; scores are what `gpt1_jax.evaluation.zero_shot.evaluate`
returns, with what `against` adds. All are fractions; the table multiplies by 100.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from gpt1_jax.config.sections import KIND_NAMES
from gpt1_jax.report.markdown import markdown_table
from gpt1_jax.report.paper import ZERO_SHOT as REFERENCES
from gpt1_jax.tasks.zero_shot import ZERO_SHOT

Scores = Mapping[str, Any]
Checkpoints = Sequence[Mapping[str, Any]]
Runs = Sequence[Mapping[str, Any]]

_NOTE = (
    "All values are x 100. A score stands with its standard error: binomial for an "
    "accuracy, bootstrapped for others, and without the uncertainty of a threshold "
    "chosen on other examples. The relative score of Figure 2 (right) is (score - "
    "chance) / (best before - chance), where the best before is what was published "
    "before GPT-1, on other splits for some tasks and with training on the task."
)


class Curve(NamedTuple):
    """A line of Figure 2 (right); fractions, 0 at chance and 1 at the best before."""

    title: str  # of the task
    run: str  # such as "Transformer"
    is_baseline: bool
    steps: list[int]
    scores: list[float]
    standard_errors: list[float]


def against(task: str, scores: Scores) -> dict[str, float]:
    """A score beside chance and the best before.

    Returns:
      Fractions: "chance" (that of these examples, if the scores have it),
      "best_before", "relative" and "relative_standard_error".
    """
    chance, best = (value / 100 for value in REFERENCES[task])
    chance = scores.get("chance", chance)
    return {
        "chance": chance,
        "best_before": best,
        "relative": (scores[metric_of(task)] - chance) / (best - chance),
        "relative_standard_error": scores["standard_error"] / (best - chance),
    }


def metric_of(task: str) -> str:
    """The name of the metric that Figure 2 (right) shows for a task."""
    return ZERO_SHOT[task].task.metrics[0]


def describe(task: str, scores: Scores) -> str:
    """A line on one score."""
    metric, chance = metric_of(task), against(task, scores)["chance"]
    value = _with_error(scores[metric], scores["standard_error"])
    return (
        f"{ZERO_SHOT[task].task.title:<11} {metric} {value}, chance "
        f"{100 * chance:.0f} ({scores['n']:,} of {scores['split']})"
    )


def curves(runs: Runs) -> list[Curve]:
    """The relative scores of each task over the steps of each run."""
    found = []
    for number, (run, name) in enumerate(zip(runs, _names(runs), strict=True)):
        checkpoints = run["checkpoints"]
        for task in checkpoints[0]["tasks"]:
            scores = [checkpoint["tasks"][task] for checkpoint in checkpoints]
            found.append(
                Curve(
                    ZERO_SHOT[task].task.title,
                    name,
                    number > 0,
                    [checkpoint["step"] for checkpoint in checkpoints],
                    [each["relative"] for each in scores],
                    [each["relative_standard_error"] for each in scores],
                )
            )
    return found


def _names(runs: Runs) -> list[str]:
    """What tells the runs apart: their kinds or, of one kind, their folders."""
    kinds = [KIND_NAMES.get(run["kind"], str(run["kind"])) for run in runs]
    paths = [str(run["init_from"]) for run in runs]
    folders = [PurePosixPath(path).name for path in paths]
    for told in (kinds, folders):
        if len(set(told)) == len(runs):
            return told
    return paths


def results_table(runs: Runs) -> str:
    """The scores of each step of each run, as Markdown: a table for each run."""
    tables = [_table(run["checkpoints"]) for run in runs]
    if runs[1:]:
        ways = ("solid", "dashed")
        headed = zip(_names(runs), ways, tables, strict=True)
        tables = [f"**{name}** ({way})\n\n{table}" for name, way, table in headed]
    return "\n\n".join([*tables, _NOTE]) + "\n"


def _table(checkpoints: Checkpoints) -> str:
    """The scores of each step; the last columns are the last step's."""
    steps = [f"step {checkpoint['step']:,}" for checkpoint in checkpoints]
    header = ["task", "metric", "split", "n", "chance", "best before", *steps]
    header += ["standard errors above chance", "relative score"]
    body = [row for task in checkpoints[0]["tasks"] for row in _rows(task, checkpoints)]
    return markdown_table(header, body, text_columns=3)


def _rows(task: str, checkpoints: Checkpoints) -> Iterator[list[str]]:
    """The lines of a task: its metric, and how well its scores tell labels apart."""
    scores = [checkpoint["tasks"][task] for checkpoint in checkpoints]
    last, title = scores[-1], ZERO_SHOT[task].task.title
    best, relative = f"{100 * last['best_before']:.1f}", f"{100 * last['relative']:.1f}"
    lines = [(metric_of(task), "standard_error", last["chance"], best, relative)]
    if "auc" in last:
        lines.append(("auc", "auc_standard_error", 0.5, "-", "-"))
    for metric, error, chance, best, relative in lines:
        above = last[metric] - chance
        yield [
            title,
            metric,
            last["split"],
            f"{last['n']:,}",
            f"{100 * chance:.1f}",
            best,
            *(_with_error(each[metric], each[error]) for each in scores),
            f"{above / last[error]:.1f}" if last[error] else "-",
            relative,
        ]


def _with_error(value: float, error: float) -> str:
    return f"{100 * value:.1f} ± {100 * error:.1f}"
