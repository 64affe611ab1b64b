"""Zero-shot scores as a long table, and the Markdown made from it.

pandas is imported where it is used: it takes a third of a second.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.markdown import markdown_table
from gpt1_jax.report.scores import run_names, with_error
from gpt1_jax.studies.zero_shot.tasks import BEST_BEFORE, CHANCE, ZERO_SHOT

if TYPE_CHECKING:
    import pandas as pd

_NOTE = (
    "All values are x 100. A score stands with its standard error: binomial for an "
    "accuracy, bootstrapped for others, and without the uncertainty of a threshold "
    "chosen on other examples. The relative score of Figure 2 (right) is (score - "
    "chance) / (best before - chance), where the best before is what was published "
    "before GPT-1, on other splits for some tasks and with training on the task."
)


def zero_shot_metric(task: str) -> str:
    """The name of the metric that Figure 2 (right) has for a task."""
    return ZERO_SHOT[task].task.metrics[0]


def relative_score(task: str, scores: Mapping[str, Any]) -> dict[str, float]:
    """A zero-shot score relative to chance and to the best published before.

    Args:
      task: its name.
      scores: as `gpt1_jax.studies.zero_shot.scores.score_answers` returns them.

    Returns:
      Fractions: "chance" (that of these examples, if the scores have it),
      "best_before", "relative" and "relative_standard_error".
    """
    chance, best = CHANCE[task] / 100, BEST_BEFORE[task] / 100
    chance = scores.get("chance", chance)
    return {
        "chance": chance,
        "best_before": best,
        "relative": (scores[zero_shot_metric(task)] - chance) / (best - chance),
        "relative_standard_error": scores["standard_error"] / (best - chance),
    }


def describe_zero_shot(task: str, scores: Mapping[str, Any]) -> str:
    """One score in one line, for the console."""
    metric, chance = zero_shot_metric(task), relative_score(task, scores)["chance"]
    value = with_error(scores[metric], scores["standard_error"])
    return (
        f"{ZERO_SHOT[task].task.title:<11} {metric} {value}, chance "
        f"{100 * chance:.0f} ({scores['n']:,} of {scores['split']})"
    )


def zero_shot_scores(runs: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """The long table of the scores of a zero-shot evaluation, as fractions.

    Args:
      runs: the job's results: the run, then the baseline if there is one. Each is
        `{"init_from": .., "kind": .., "checkpoints": [{"step": .., "tasks": {task:
        scores, ..}}, ..]}`. Scores include those of `relative_score`.

    Returns:
      Columns: "run" (a name that tells the two apart), "is_baseline", "step", "task"
      (its title), "split", "n", "metric", "score", "standard_error", "chance",
      "best_before", "relative" and "relative_standard_error". Rows of the metric "auc",
      which says how well the scores tell labels apart, lack the last three.
    """
    import pandas as pd

    rows = []
    for number, (run, name) in enumerate(zip(runs, run_names(runs), strict=True)):
        tasks = run["checkpoints"][0]["tasks"]
        last = run["checkpoints"][-1]["tasks"]
        for checkpoint in run["checkpoints"]:
            for task in tasks:
                scores = checkpoint["tasks"][task]
                row = {
                    "run": name,
                    "is_baseline": number > 0,
                    "step": checkpoint["step"],
                    "task": ZERO_SHOT[task].task.title,
                    "split": scores["split"],
                    "n": scores["n"],
                    "metric": zero_shot_metric(task),
                    "score": scores[zero_shot_metric(task)],
                    "standard_error": scores["standard_error"],
                    "chance": scores["chance"],
                    "best_before": scores["best_before"],
                    "relative": scores["relative"],
                    "relative_standard_error": scores["relative_standard_error"],
                }
                rows.append(row)
                if "auc" in last[task]:
                    none = ("best_before", "relative", "relative_standard_error")
                    auc = {"metric": "auc", "score": scores["auc"], "chance": 0.5}
                    error = {"standard_error": scores["auc_standard_error"]}
                    rows.append({**row, **auc, **error, **dict.fromkeys(none)})
    return pd.DataFrame(rows)


def zero_shot_table(scores: "pd.DataFrame") -> str:
    """The Markdown tables of the scores from `zero_shot_scores`, one for each run.

    Args:
      scores: of runs whose texts are escaped.
    """
    parts = []
    for _, of_run in scores.groupby("is_baseline"):
        table = _zero_shot_table(of_run)
        if scores["is_baseline"].any():
            line = "dashed" if of_run["is_baseline"].all() else "solid"
            table = f"**{of_run['run'].iloc[0]}** ({line})\n\n{table}"
        parts.append(table)
    return "\n\n".join([*parts, _NOTE]) + "\n"


def _zero_shot_table(scores: "pd.DataFrame") -> str:
    """The scores of a run at each step; the last columns are the last step's."""
    body = []
    for (task, metric), own in scores.groupby(["task", "metric"], sort=False):
        last = own.iloc[-1]
        error, has_relative = last["standard_error"], metric != "auc"
        above = last["score"] - last["chance"]
        body.append(
            [
                task,
                metric,
                last["split"],
                f"{last['n']:,}",
                f"{100 * last['chance']:.1f}",
                f"{100 * last['best_before']:.1f}" if has_relative else "-",
                *map(with_error, own["score"], own["standard_error"]),
                f"{above / error:.1f}" if error else "-",
                f"{100 * last['relative']:.1f}" if has_relative else "-",
            ]
        )
    header = ["task", "metric", "split", "n", "chance", "best before"]
    header += [f"step {step:,}" for step in scores["step"].unique()]
    header += ["standard errors above chance", "relative score"]
    return markdown_table(header, body, text_columns=3)
