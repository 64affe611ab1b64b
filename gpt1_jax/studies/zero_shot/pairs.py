"""Scores of minimal pairs: how often a model finds the better sentence likelier."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpt1_jax.finetuning.prediction_files import prediction_rows
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.studies import Study
from gpt1_jax.report.study_scores import draw_scores, scores_table, with_published
from gpt1_jax.studies.answers import Answers, score_pairs
from gpt1_jax.studies.blimp import PARADIGMS, PUBLISHED
from gpt1_jax.studies.zero_shot.config import MinimalPairsConfig

ALL = "all paradigms"
_DRAWN = ("5-gram", "GPT-2", "people")  # of the published scores, over steps
_MOST_PANELS = 24
_LABEL = "accuracy x 100\n± standard error"
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


def _score(
    _: MinimalPairsConfig, answers: Answers, score: Scorer, params: Params
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of a task, and its predictions."""
    choices, log_probs, scores = score_pairs(answers, score, params)
    task, examples = answers.task.task, answers.examples
    rows = prediction_rows(task, examples, choices, with_text=True, log_probs=log_probs)
    return {**scores, "equal": answers.equal()}, rows


def _rows(task: str, scores: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for the mean over a task's paradigms, then one for each."""
    paradigms = scores["paradigms"].values()
    whole = {
        "n": scores["n"],
        "accuracy": sum(each["accuracy"] for each in paradigms) / len(paradigms),
        "standard_error": _error(each["standard_error"] for each in paradigms),
    }
    for name, values in {"": whole, **scores["paradigms"]}.items():
        known = PARADIGMS.get(name)
        yield {
            "term": task,
            "field": known.field if known and known.term == task else "",
            "paradigm": name,
            "pairs": values["n"],
            "score": 100 * values["accuracy"],
            "error": 100 * values["standard_error"],
        }


def _error(errors: Iterable[float]) -> float:
    """The standard error of the mean of independent scores."""
    errors = list(errors)
    return math.hypot(*errors) / len(errors)


def of_paradigms(scores: Any) -> Any:
    """The rows of paradigms; those of one name in several terms are told apart."""
    scores = scores[scores["paradigm"] != ""]
    several = scores.groupby("paradigm")["term"].transform("nunique") > 1
    longer = scores["paradigm"] + " (" + scores["term"] + ")"
    line = longer.where(several, scores["paradigm"])
    return scores.assign(all=ALL, line=line)


def group_means(scores: Any, *levels: str) -> Any:
    """The means over the paradigms of groups, beside the published ones of BLiMP.

    Args:
      scores: as `of_paradigms` returns them.
      levels: columns of groups: "all", "field", "term" or "line" (paradigms).

    Returns:
      Columns "run", "set", "is_baseline", "step", "at", "group", "paradigms" and
      "pairs" (their numbers), "score" and "error" (x 100).
    """
    import pandas as pd

    named = pd.concat([scores.assign(group=scores[level]) for level in levels])
    keys = ["run", "set", "is_baseline", "step", "at", "group"]
    means = named.groupby(keys, sort=False, as_index=False).agg(
        paradigms=("score", "size"),
        pairs=("pairs", "sum"),
        score=("score", "mean"),
        error=("error", _error),
    )
    published = []
    for group, own in named.groupby("group", sort=False):
        if own["field"].all():
            known = [PARADIGMS[name] for name in own["paradigm"].unique()]
            line = means[means["group"] == group].iloc[0]
            counts = line[["group", "paradigms", "pairs"]].to_dict()
            for who in PUBLISHED:
                score = sum(each.published[who] for each in known) / len(known)
                published.append({**counts, "run": who, "score": score})
    return with_published(means, published)


def _table(scores: Any, _: MinimalPairsConfig) -> str:
    """Tables of terms, of BLiMP's fields and of paradigms, these at the last step."""
    scores = of_paradigms(scores)
    is_blimp = scores["field"].any()
    terms = ["all", "term"] if scores["term"].nunique() > 1 else ["term"]
    means = group_means(scores, *terms).rename(columns={"group": "term"})
    parts = [scores_table(means, ["term", "paradigms", "pairs"])]
    if is_blimp:
        means = group_means(scores, "field").rename(columns={"group": "field"})
        parts.append(scores_table(means, ["field", "paradigms", "pairs"]))
    if set(scores["paradigm"]) != set(scores["term"]):
        last = scores.groupby("run")["step"].transform("max")
        shown = scores[scores["step"] == last] if is_blimp else scores
        means = group_means(shown, "line").rename(columns={"group": "paradigm"})
        parts.append(scores_table(means, ["paradigm", "pairs"]))
    notes = [_NOTE, _NOTE_ON_BLIMP] if is_blimp else [_NOTE]
    return "\n\n".join([*parts, *notes]) + "\n"


def _figure(scores: Any) -> Any:
    """Terms of BLiMP, or else paradigms, after the mean over all if there are several.

    Many paradigms of one's own, or a single one, are shown by their files.
    """
    scores = of_paradigms(scores)
    several = scores["term"].nunique() > 1
    is_blimp = scores["field"].any()
    few = 1 < scores["line"].nunique() <= _MOST_PANELS
    level = "term" if (is_blimp and several) or not few else "line"
    levels = ["all", level] if scores[level].nunique() > 1 else [level]
    means = group_means(scores, *levels)
    if scores["step"].nunique() > 1:  # all of them would hide the curves
        known = means["step"] != -1
        means = means[known | means["run"].isin(_DRAWN)]
    return draw_scores(means, "group", _LABEL, [50], panels=True)


STUDY = Study("minimal-pairs", _score, _rows, _table, _figure, heading="Minimal pairs")
