"""How well surprisal predicts reading times, beyond the other predictors.

The measure is the gain in log-likelihood per word of a linear model of the times with
surprisal over the one without (Wilcox et al. 2020), on stories that neither was fitted
to. Both have length and log frequency of the word and of the two before it, and the
position of the word; the second also their surprisal.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.studies.reading_times.words import BEFORE, TimedWords

if TYPE_CHECKING:
    import pandas as pd

_OWN = ("length", "log_frequency", "surprisal")
_BACK = [f"_{back}" for back in range(1, BEFORE + 1)]
_OTHERS = (  # the predictors except surprisal
    *("length", "log_frequency", "position"),
    *(name + back for name in _OWN[:2] for back in _BACK),
)
_SURPRISAL = ("surprisal", *("surprisal" + back for back in _BACK))
_EXACT = 1e-10  # residual of an exact fit, by rounding, as a share of the times


def word_surprisals(words: TimedWords, score: Scorer, params: Params) -> np.ndarray:
    """The surprisal of each word, [N] nats, exact at word ends."""
    scores = score(params, words.all_windows)
    nats = [
        -scores[window].log_probs[first:stop].sum(dtype=np.float64)
        for window, first, stop in words.tokens
    ]
    return np.abs(np.asarray(nats))


def predictors(words: TimedWords, surprisals: np.ndarray) -> list[dict[str, Any]]:
    """Rows of words with their surprisal and the predictors of the two words before.

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
    at: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        at.setdefault(row["story"], {})[row["position"]] = row
    for row in rows:
        story = at[row["story"]]
        for back in range(1, BEFORE + 1):
            other = story.get(row["position"] - back, {})
            row |= {f"{name}_{back}": other.get(name) for name in _OWN}
    return rows


def check_times(words: TimedWords, folds: int) -> None:
    """Refuses words whose times can give no result, whatever their surprisal.

    Raises:
      UserError: as `reading_gain` does.
    """
    rows = predictors(words, np.zeros(len(words.rows)))
    used, splits = _compared(rows, folds)
    _log_densities(used, _OTHERS, splits)


def reading_gain(rows: Sequence[Mapping[str, Any]], folds: int) -> dict[str, Any]:
    """Fits the times without and with surprisal, and compares the two.

    Args:
      rows: as `predictors` returns them; those left out are ignored.
      folds: how many folds of stories; at most one for each.

    Returns:
      "n" words; "gain", in nats per word, and "gain_error", its standard error over
      stories; "r2_without" and "r2_with", fitted to all; and "by_story", the gain of
      each.

    Raises:
      UserError: if there are too few words or stories, if a predictor is the same for
        all words that a model is fitted to and another for those that it judges, or if
        the models leave nothing of the times over.
    """
    used, splits = _compared(rows, folds)
    both = _OTHERS, _OTHERS + _SURPRISAL
    without, with_surprisal = (_log_densities(used, names, splits) for names in both)
    gains = used.assign(gain=with_surprisal - without)
    by_story = gains.groupby("story", sort=False)["gain"].mean()
    r2_without, r2_with = (_r_squared(used, names) for names in both)
    return {
        "n": len(gains),
        "gain": float(gains["gain"].mean()),
        "gain_error": float(by_story.sem()),
        "r2_without": r2_without,
        "r2_with": r2_with,
        "by_story": by_story.to_dict(),
    }


def _compared(
    rows: Sequence[Mapping[str, Any]], folds: int
) -> tuple["pd.DataFrame", list[tuple[np.ndarray, np.ndarray]]]:
    """The words that are not left out, and those fitted to and judged in each fold.

    Refuses too few words, or a predictor that says nothing of those judged.
    """
    import pandas as pd
    from sklearn.model_selection import GroupKFold

    table = pd.DataFrame(list(rows))
    used = table[table["left_out"] == ""]
    num_stories, num_columns = used["story"].nunique(), 1 + len(_OTHERS + _SURPRISAL)
    if num_stories < 2 or len(used) <= 2 * num_columns:
        raise UserError(
            f"{len(used)} words of {num_stories} stories are left with a time and all "
            f"predictors; models of {num_columns} columns need two stories and "
            f"{2 * num_columns + 1} words at least."
        )
    folded = GroupKFold(min(folds, num_stories))
    splits = list(folded.split(used, groups=used["story"].to_numpy()))
    for fitted, judged in splits:
        if len(fitted) <= num_columns:
            raise UserError(
                f"The {_others(used, judged)} have {len(fitted)} words, and a model of "
                f"{num_columns} columns is to be fitted to them; it needs more words "
                "than columns."
            )
        for name in _OTHERS:
            column = used[name].to_numpy()
            if np.ptp(column) > 0 and not np.ptp(column[fitted]) > 0:
                raise UserError(
                    f"In the {_others(used, judged)}, {name} is "
                    f"{column[fitted][0]:g} for all words, so a model that is fitted "
                    "to them cannot judge words for which it differs."
                )
    return used, splits


def _others(used: "pd.DataFrame", judged: np.ndarray) -> str:
    """The stories that a model is fitted to, for a message: all but some."""
    found = used["story"].iloc[judged].unique()
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    return f"stories other than {', '.join(map(repr, found[:3]))}{more}"


def _log_densities(
    used: "pd.DataFrame",
    names: Sequence[str],
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Log-likelihoods of the times, [N] nats, each by a model of other stories."""
    from sklearn.linear_model import LinearRegression

    design, times = used[[*names]].to_numpy(), used["time"].to_numpy()
    found = np.zeros(len(used))
    for fitted, judged in splits:
        model = LinearRegression().fit(design[fitted], times[fitted])
        variance = np.mean((times[fitted] - model.predict(design[fitted])) ** 2)
        least = _EXACT if names == _OTHERS else 0.0
        if not variance > least**2 * np.mean(times[fitted] ** 2):
            raise UserError(
                f"In the {_others(used, judged)}, all times are the same or follow "
                f"exactly from {', '.join(names)}: nothing is left to compare. Look at "
                "the column of times."
            )
        errors = times[judged] - model.predict(design[judged])
        found[judged] = -0.5 * (np.log(2 * np.pi * variance) + errors**2 / variance)
    return found


def _r_squared(used: "pd.DataFrame", names: Sequence[str]) -> float:
    """R² of the times by a model that is fitted to all of them."""
    from sklearn.linear_model import LinearRegression

    design, times = used[[*names]].to_numpy(), used["time"].to_numpy()
    return float(LinearRegression().fit(design, times).score(design, times))
