"""Scores on BabyLM's tasks that need no training, as its evaluation defines them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.studies.answers import Answers, score_pairs
from gpt1_jax.studies.babylm.parts import (
    AOA,
    EYE_TRACKING,
    READING,
    READING_PREDICTORS,
    SELF_PACED,
    Items,
    Part,
    WordItems,
    chosen_text,
)
from gpt1_jax.tasks.metrics import METRICS

Prediction = dict[str, Any]


def score_part(
    items: Items, score: Scorer, params: Params
) -> tuple[dict[str, Any], list[Prediction]]:
    """Scores the items of one part of the evaluation.

    Returns:
      scores: "score", in points; "n", the items; "ties", items whose best answers are
        equally likely; and its components: "subsets" (accuracies as fractions;
        answers that tie share the point), or "spearman", or "eye_tracking" and
        "self_paced".
      predictions: a JSON object for each item, in order: "subset", "id" and "pred" as
        the pipeline has them, and "log_probs" of the answers, nats.
    """
    if isinstance(items, WordItems):
        return _score_words(items, score, params)
    return _score_sentences(items, score, params)


# --- sentences ----------------------------------------------------------------------


def _score_sentences(
    answers: Answers, score: Scorer, params: Params
) -> tuple[dict[str, Any], list[Prediction]]:
    choices, log_probs, found = score_pairs(answers, score, params)
    is_wug = answers.task.task.name.startswith("wug")
    counts: dict[str, int] = {}
    predictions = []
    for number, (example, choice) in enumerate(
        zip(answers.examples, choices.tolist(), strict=True)
    ):
        count = counts[example.subset] = counts.get(example.subset, -1) + 1
        values = log_probs[number][np.isfinite(log_probs[number])]
        prediction: Prediction = {
            "subset": example.subset,
            "id": f"{example.subset}_{count}",
            "pred": chosen_text(answers, number, choice),
        }
        if is_wug:
            prediction["prob"] = 1 / float(np.exp(values - values[0]).sum())
        predictions.append({**prediction, "log_probs": values.tolist()})
    paradigms = found["paradigms"]
    scores: dict[str, Any] = {
        "n": found["n"],
        "ties": sum(each["ties"] for each in paradigms.values()),
        "num_long": found["num_long"],
    }
    if is_wug:
        model = np.asarray([each["prob"] for each in predictions])
        people = np.asarray([float(each.text[1]) for each in answers.examples])
        scores["spearman"] = METRICS["spearman"](model, people)
        return {"score": 100 * scores["spearman"], **scores}, predictions
    subsets = {name: each["accuracy"] for name, each in paradigms.items()}
    return {"score": 100 * _mean(subsets), **scores, "subsets": subsets}, predictions


def _mean(subsets: Mapping[str, float]) -> float:
    """The mean over subsets; of entity tracking, first over the numbers of moves."""
    groups: dict[str, list[float]] = {}
    for name, accuracy in subsets.items():
        group = name.rsplit("_", 2)[0] if name.endswith("_ops") else name
        groups.setdefault(group, []).append(accuracy)
    return float(np.mean([np.mean(each) for each in groups.values()]))


# --- words --------------------------------------------------------------------------


def _score_words(
    items: WordItems, score: Scorer, params: Params
) -> tuple[dict[str, Any], list[Prediction]]:
    nats = [
        -float(each.log_probs.sum(dtype=np.float64))
        for each in score(params, items.all_windows)
    ]
    scores: dict[str, Any] = {"n": len(items.rows), "ties": 0}
    if items.part == AOA:
        predictions = [
            {"subset": AOA, **row, "surprisal": nats[own]}
            for row, (own,) in zip(items.rows, items.numbers, strict=True)
        ]
        mean = float(np.mean(nats))
        return {"score": mean, **scores, "nats_per_word": mean}, predictions
    predictions = [
        {
            "subset": READING,
            "id": number,
            "pred": nats[own],
            "prev_pred": nats[before[0]] if before else None,
        }
        for number, (own, *before) in enumerate(items.numbers)
    ]
    variance = reading_scores(items.rows, predictions)
    return {"score": 100 * variance["eye_tracking"], **scores, **variance}, predictions


def reading_scores(
    rows: Sequence[Mapping[str, float | None]], predictions: Sequence[Prediction]
) -> dict[str, float]:
    """How well surprisal explains reading times beyond other predictors.

    Of the variance left by a linear model of length, log frequency and position with
    their products, the share that the surprisal of the word explains. For self-paced
    reading the model also has length and surprisal of the word before.

    Args:
      rows: reading times and predictors of each word; None where there is none.
      predictions: "pred" and "prev_pred" of each word: surprisal in nats, or None.

    Returns:
      Fractions: "eye_tracking", the mean over four measures, and "self_paced".

    Raises:
      UserError: if the times of a measure are all missing or all the same.
    """
    import pandas as pd  # these take a second to import
    from sklearn.linear_model import LinearRegression
    from sklearn.preprocessing import PolynomialFeatures

    products = PolynomialFeatures(degree=2, interaction_only=True, include_bias=False)
    columns = pd.DataFrame(rows, dtype=float)
    for name in ("pred", "prev_pred"):
        columns[name] = np.asarray([each[name] for each in predictions], float)

    def explained(measure: str, predictors: Sequence[str]) -> float:
        names = [measure, *predictors, "pred"]
        known = columns[names].dropna()
        times = known[measure]
        if times.nunique() < 2:
            raise UserError(
                f"BabyLM's reading data: {measure} of the {len(known)} words with all "
                f"of {', '.join(names)} is missing or always the same, so there is "
                "nothing to explain. Take the file as it is published."
            )
        base = products.fit_transform(known[[*predictors]].to_numpy())
        before, after = (
            LinearRegression().fit(design, times).score(design, times)
            for design in (base, np.column_stack([base, known["pred"]]))
        )
        return float((after - before) / (1 - before))

    alone = READING_PREDICTORS[:3]
    return {
        "eye_tracking": float(
            np.mean([explained(name, alone) for name in EYE_TRACKING])
        ),
        "self_paced": explained(SELF_PACED, (*READING_PREDICTORS, "prev_pred")),
    }


# --- as the pipeline writes them ------------------------------------------------------


def pipeline_predictions(predictions: Sequence[Prediction]) -> Prediction:
    """Predictions in the form of the pipeline's `predictions.json`.

    Args:
      predictions: as `score_part` returns them; not those of `AOA`, whose form is
        `aoa_rows`.

    Returns:
      `{subset: {"predictions": [{"id": .., "pred": .., ..}, ..]}, ..}`
    """
    found: dict[str, Any] = {}
    for each in predictions:
        line = {
            key: math.nan if value is None else value
            for key, value in each.items()
            if key not in ("subset", "log_probs")
        }
        of_subset = found.setdefault(each["subset"], {"predictions": []})
        of_subset["predictions"].append(line)
    return found


def aoa_rows(predictions: Sequence[Prediction], revision: str) -> list[Prediction]:
    """Surprisal of words at a milestone, as in the pipeline's `surprisal.json`.

    Args:
      predictions: as `score_part` returns them for `AOA`.
      revision: the milestone's name, `chck_NM` after N million words.
    """
    amount = revision.removeprefix("chck_").removesuffix("M")
    count = int(amount) * 10**6 if amount.isdigit() else None
    rows = [{"step": revision, "word_count": count, **each} for each in predictions]
    for row in rows:
        del row["subset"]
    return rows


def fast_scores(
    items: Items, scores: Mapping[str, Any], predictions: Sequence[Prediction]
) -> dict[str, float]:
    """The scores on items of a fast set as the pipeline computes them, in fractions.

    Of sentences these are the shares of items whose prediction is the right one, so a
    tie, which predicts the first, counts as right. Scores and predictions are as
    `score_part` returns them.
    """
    if isinstance(items, WordItems):
        return {"spr": scores["self_paced"], "rt": scores["eye_tracking"]}
    if "spearman" in scores:
        return {items.task.task.name: scores["spearman"]}
    right: dict[str, list[bool]] = {}
    for number, each in enumerate(predictions):
        is_right = each["pred"] == chosen_text(items, number, 0)
        right.setdefault(each["subset"], []).append(is_right)
    return {subset: float(np.mean(own)) for subset, own in right.items()}


def missing_items(part: Part, is_fast: bool, sizes: Mapping[str, int]) -> str:
    """What a submission lacks of a part, in words; "" if nothing.

    `sizes` says how many items of each subset have been predicted.
    """
    wanted = part.fast_sizes if is_fast else part.sizes
    found = {name.lower(): size for name, size in sizes.items()}
    if not found:
        return "there are no predictions"
    names = dict.fromkeys((*wanted, *found))
    wrong = [name for name in names if found.get(name, 0) != wanted.get(name, 0)]
    if not wrong:
        return ""
    first = f"{found.get(wrong[0], 0):,} instead of {wanted.get(wrong[0], 0):,} items"
    return f"{len(wrong)} of {len(names)} subsets, such as {wrong[0]} with {first}"
