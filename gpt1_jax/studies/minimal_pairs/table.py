"""Scores of minimal pairs as a long table, and the Markdown made from it.

pandas is imported where it is used: it takes a third of a second.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report.markdown import counted, escape, markdown_table
from gpt1_jax.report.scores import run_names, with_error
from gpt1_jax.studies.blimp import PARADIGMS, PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

WHOLE = "all paradigms"
_NOTE = (
    "Accuracy x 100, with its standard error over pairs: the share of pairs whose "
    "better sentence gets the highest log-probability; sentences that tie share the "
    "point. Chance is 50 for two sentences. A term, a field and the whole are means "
    "over paradigms."
)
_NOTE_ON_BLIMP = (
    "5-gram, LSTM, Transformer-XL, GPT-2 and people are Warstadt et al. 2020's; the "
    "models read complete sentences, people chose between them."
)


def describe_pairs(task: str, scores: Mapping[str, Any]) -> str:
    """The scores of a task in one line, for the console."""
    paradigms = scores["paradigms"].values()
    mean = sum(each["accuracy"] for each in paradigms) / len(paradigms)
    error = math.hypot(*(each["standard_error"] for each in paradigms))
    ties = sum(each["ties"] for each in paradigms)
    tied = f", {counted(ties, 'tie')}" if ties else ""
    return (
        f"{task:<26} {with_error(mean, error / len(paradigms))} "
        f"({counted(len(paradigms), 'paradigm')}, {counted(scores['n'], 'pair')}{tied})"
    )


def pair_scores(runs: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """The long table of the scores of paradigms, as fractions.

    Args:
      runs: the job's results: the run, then the baseline if there is one. Each is
        `{"init_from": .., "kind": .., "checkpoints": [{"step": .., "tasks": {task:
        scores, ..}}, ..]}`, with the scores of
        `gpt1_jax.studies.answer_scores.score_pairs`.

    Returns:
      Columns: "run" (a name that tells the two apart), "is_baseline", "step", "term"
      (the task), "field" ("" for pairs of one's own), "paradigm", "n", "accuracy",
      "standard_error" and "ties".
    """
    import pandas as pd

    rows = [
        {
            "run": name,
            "is_baseline": number > 0,
            "step": checkpoint["step"],
            "term": task,
            "field": PARADIGMS[paradigm].field if _is_blimp(task, paradigm) else "",
            "paradigm": paradigm,
            **values,
        }
        for number, (run, name) in enumerate(zip(runs, run_names(runs), strict=True))
        for checkpoint in run["checkpoints"]
        for task, scores in checkpoint["tasks"].items()
        for paradigm, values in scores["paradigms"].items()
    ]
    return pd.DataFrame(rows)


def _is_blimp(task: str, paradigm: str) -> bool:
    return paradigm in PARADIGMS and PARADIGMS[paradigm].term == task


def group_means(scores: "pd.DataFrame", group: str) -> "pd.DataFrame":
    """The mean over the paradigms of each group, with its standard error.

    Args:
      scores: as `pair_scores` returns them.
      group: a column, such as "term" or "field"; "" for all paradigms together.

    Returns:
      Columns: "run", "is_baseline", "step", "group" (the name of it), "paradigms"
      (their number), "n", "accuracy", "standard_error" and "ties".
    """
    named = scores.assign(
        group=scores[group] if group else WHOLE,
        square=scores["standard_error"] ** 2,
        paradigms=1,
    )
    keys = ["run", "is_baseline", "step", "group"]
    sums = {"paradigms": "sum", "n": "sum", "ties": "sum", "square": "sum"}
    means = named.groupby(keys, sort=False).agg({"accuracy": "mean", **sums})
    means["standard_error"] = means.pop("square") ** 0.5 / means["paradigms"]
    return means.reset_index()


def published_means(scores: "pd.DataFrame", group: str) -> dict[str, dict[str, float]]:
    """The published accuracies of each group of BLiMP's paradigms, as fractions.

    Args:
      scores: as `pair_scores` returns them.
      group: as for `group_means`.

    Returns:
      group -> name in `PUBLISHED` -> accuracy; without the groups that hold paradigms
      which are not BLiMP's.
    """
    found = {}
    named = scores.assign(group=scores[group] if group else WHOLE)
    for name, own in named.groupby("group", sort=False):
        if own["field"].all():
            paradigms = [PARADIGMS[each] for each in own["paradigm"].unique()]
            found[str(name)] = {
                model: sum(p.published[model] for p in paradigms) / len(paradigms) / 100
                for model in PUBLISHED
            }
    return found


def pairs_tables(scores: "pd.DataFrame") -> str:
    """The Markdown tables of the scores from `pair_scores`: terms, fields, paradigms.

    Args:
      scores: of runs whose texts are escaped.
    """
    parts = [_table(scores, ["", "term"], "term")]
    if scores["field"].any():
        parts.append(_table(scores, ["field"], "field"))
    last = scores[scores["step"] == scores.groupby("run")["step"].transform("max")]
    if set(scores["paradigm"]) != set(scores["term"]):
        parts.append(_table(_told_apart(last), ["line"], "paradigm"))
    parts.append(_NOTE)
    if scores["field"].any():
        parts.append(_NOTE_ON_BLIMP)
    return "\n\n".join(parts) + "\n"


def _told_apart(scores: "pd.DataFrame") -> "pd.DataFrame":
    """Adds a column "line": the paradigm, and its term if it is in several."""
    several = scores.groupby("paradigm")["term"].transform("nunique") > 1
    longer = scores["paradigm"] + " (" + scores["term"] + ")"
    return scores.assign(line=longer.where(several, scores["paradigm"]))


def _table(scores: "pd.DataFrame", groups: Sequence[str], title: str) -> str:
    """A line for each group, and columns for each step of each run."""
    import pandas as pd

    means = pd.concat([group_means(scores, group) for group in groups])
    published: dict[str, dict[str, float]] = {}
    for group in groups:
        published |= published_means(scores, group)
    runs = list(dict.fromkeys(zip(means["run"], means["step"], strict=True)))
    several = means["run"].nunique() > 1
    header = [title, "paradigms", "pairs"] if title != "paradigm" else [title, "pairs"]
    header += [f"{f'{run}, ' if several else ''}step {step:,}" for run, step in runs]
    header += PUBLISHED if published else []
    body = []
    for name, own in means.groupby("group", sort=False):
        first = own.iloc[0]
        counts = [f"{first['paradigms']:,}", f"{first['n']:,}"]
        by_run = {(each.run, each.step): each for each in own.itertuples()}
        others = published.get(str(name), {})
        body.append(
            [
                escape(str(name)),
                *(counts if title != "paradigm" else counts[1:]),
                *(
                    with_error(by_run[run].accuracy, by_run[run].standard_error)
                    for run in runs
                ),
                *(f"{100 * others[model]:.1f}" for model in others),
                *(
                    "-"
                    for _ in range(len(PUBLISHED) if published and not others else 0)
                ),
            ]
        )
    return markdown_table(header, body, text_columns=1)
