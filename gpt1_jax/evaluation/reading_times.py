"""How much surprisal says about reading times, beyond what else predicts them.

The measure is the gain in log-likelihood per word of a linear model of the times with
surprisal over the one without (Wilcox et al. 2020), on stories that neither was fitted
to. Both have length and log frequency of the word and of the two before it, and the
position of the word; the second also their surprisal.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_jax.errors import MissingPackage, UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.tasks.reading_times import BEFORE, TimedWords

_OWN = ("length", "log_frequency", "surprisal")


def check_statsmodels() -> None:
    """Raises a MissingPackage error if statsmodels is not installed."""
    if importlib.util.find_spec("statsmodels") is None:
        raise MissingPackage(
            "Reading times need statsmodels; install it with pip install -e "
            "'.[reading]'."
        )


def word_surprisals(words: TimedWords, score: Scorer, params: Params) -> np.ndarray:
    """The surprisal of each word, [N] nats, exact at word ends."""
    scores = score(params, words.windows)
    nats = [
        -scores[window].log_probs[first:stop].sum(dtype=np.float64)
        for window, first, stop in words.tokens
    ]
    return np.abs(np.asarray(nats))


def predictors(words: TimedWords, surprisals: np.ndarray) -> list[dict[str, Any]]:
    """The rows of words with their surprisal, and what is known of the two before.

    Args:
      words: the words.
      surprisals: [N] nats.

    Returns:
      A row for each word: its own, "surprisal", and "length_1", "log_frequency_1",
      "surprisal_1" of the word before, ".._2" of the one before that; None at the
      beginning of a story.
    """
    rows = [
        {**row, "surprisal": float(nats)}
        for row, nats in zip(words.rows, surprisals, strict=True)
    ]
    at = {(row["story"], row["position"]): row for row in rows}
    for row in rows:
        for back in range(1, BEFORE + 1):
            other = at.get((row["story"], row["position"] - back), {})
            row |= {f"{name}_{back}": other.get(name) for name in _OWN}
    return rows


def reading_gain(rows: Sequence[Mapping[str, Any]], folds: int) -> dict[str, Any]:
    """Fits the times without and with surprisal, and compares the two.

    Args:
      rows: as `predictors` returns them; those left out are ignored.
      folds: of stories; at most one for each.

    Returns:
      "n" words; "gain", in nats per word, and "gain_error", its standard error over
      stories; "r2_without" and "r2_with", fitted to all; and "by_story", the gain of
      each.

    Raises:
      UserError: if there are too few words or stories.
    """
    from sklearn.model_selection import GroupKFold
    from statsmodels.regression.linear_model import OLS

    names = ["length", "log_frequency", "position"]
    names += [f"{name}_{b}" for name in _OWN[:2] for b in range(1, BEFORE + 1)]
    surprisal = ["surprisal", *(f"surprisal_{b}" for b in range(1, BEFORE + 1))]
    used = [row for row in rows if not row["left_out"]]
    stories = np.asarray([row["story"] for row in used])
    num_stories, num_columns = len(set(stories)), len(names) + len(surprisal) + 1
    if num_stories < 2 or len(used) <= 2 * num_columns:
        raise UserError(
            f"{len(used)} words of {num_stories} stories are left with a time and all "
            f"predictors; models of {num_columns} columns need two stories and "
            f"{2 * num_columns + 1} words at least."
        )
    times = np.asarray([row["time"] for row in used])
    columns = {n: np.asarray([row[n] for row in used]) for n in names + surprisal}

    def design(chosen: Sequence[str]) -> np.ndarray:
        return np.column_stack([np.ones(len(used)), *(columns[n] for n in chosen)])

    designs = [design(names), design(names + surprisal)]
    gains = np.zeros(len(used))
    splits = GroupKFold(min(folds, num_stories)).split(times, groups=stories)
    for fitted, judged in splits:
        models = [OLS(times[fitted], each[fitted]).fit() for each in designs]
        without, with_surprisal = (
            _log_likelihoods(model, each[judged], times[judged])
            for model, each in zip(models, designs, strict=True)
        )
        gains[judged] = with_surprisal - without
    by_story = {
        str(s): float(gains[stories == s].mean()) for s in dict.fromkeys(stories)
    }
    spread = np.std(list(by_story.values()), ddof=1) / np.sqrt(num_stories)
    r2 = [float(OLS(times, each).fit().rsquared) for each in designs]
    return {
        "n": len(used),
        "gain": float(gains.mean()),
        "gain_error": float(spread),
        "r2_without": r2[0],
        "r2_with": r2[1],
        "by_story": by_story,
    }


def _log_likelihoods(fit: Any, design: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Log-densities of times under a fitted model, a normal distribution."""
    variance = fit.ssr / fit.nobs
    errors = times - fit.predict(design)
    return -0.5 * (np.log(2 * np.pi * variance) + errors**2 / variance)
