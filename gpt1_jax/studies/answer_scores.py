"""Scores of minimal pairs: how often the better sentence is the likelier one."""

import math
from typing import Any

import numpy as np

from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.studies.answers import Answers


def score_pairs(
    answers: Answers, score: Scorer, params: Params
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Scores the sentences of minimal pairs, and how often the better one wins.

    Args:
      answers: the sentences of N pairs; the label says which is better.
      score: the model.
      params: its parameters.

    Returns:
      predictions: [N] the number of the likeliest sentence, the first of equals.
      log_probs: [N, A] of the sentences, nats.
      scores: "n"; "num_long", the pairs read in several windows; and "paradigms", for
        each "n", "accuracy", its "standard_error", and "ties". A tie counts as one
        divided by the sentences that are tied: half a point for two.
    """
    log_probs = [each.log_probs for each in score(params, answers.windows)]
    values, labels = answers.compare(log_probs), answers.labels
    best = values == values.max(axis=1, keepdims=True)
    points = best[np.arange(len(labels)), labels] / best.sum(axis=1)
    subsets = np.asarray([example.subset for example in answers.examples])
    paradigms = {}
    for name in dict.fromkeys(subsets.tolist()):
        own = subsets == name
        count = int(own.sum())
        paradigms[name] = {
            "n": count,
            "accuracy": float(points[own].mean()),
            "standard_error": float(points[own].std() / math.sqrt(count)),
            "ties": int((best[own].sum(axis=1) > 1).sum()),
        }
    scores = {
        "n": len(labels),
        "num_long": answers.num_long,
        "paradigms": paradigms,
    }
    return values.argmax(axis=1), values, scores
