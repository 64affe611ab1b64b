"""How well surprisal predicts reading times, beyond the other predictors.

The measure is the gain in log-likelihood per word of a linear model of the times with
surprisal over the one without (Wilcox et al. 2020), on stories that neither was fitted
to. Both have length and log frequency of the word and of the two before it, and the
position of the word; the second also their surprisal.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.errors import UserError, from_extra
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.studies.reading_times.words import BEFORE, TimedWords

_OWN = ("length", "log_frequency", "surprisal")
_BACK = [f"_{back}" for back in range(1, BEFORE + 1)]
_OTHERS = (  # the predictors except surprisal
    *("length", "log_frequency", "position"),
    *(name + back for name in _OWN[:2] for back in _BACK),
)
_SURPRISAL = ("surprisal", *("surprisal" + back for back in _BACK))
_EXACT = 1e-10  # residual of an exact fit, by rounding, as a share of the times


def check_statsmodels() -> None:
    """Raises a MissingPackage error if statsmodels is not installed."""
    with from_extra("reading", "The job reading_times"):
        import statsmodels  # noqa: F401


def word_surprisals(words: TimedWords, score: Scorer, params: Params) -> np.ndarray:
    """The surprisal of each word, [N] nats, exact at word ends."""
    scores = score(params, words.windows)
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
    _fit_others(_compared(rows, folds))


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
    words = _compared(rows, folds)
    without, r2_without = _fit_others(words)
    with_surprisal, r2_with = _fits(words, _OTHERS + _SURPRISAL)
    gains = with_surprisal - without
    order = np.argsort(words.numbers, kind="stable")
    ends = np.cumsum(np.bincount(words.numbers))
    own = dict(
        zip(sorted(words.stories), np.split(gains[order], ends[:-1]), strict=True)
    )
    by_story = {story: float(own[story].mean()) for story in words.stories}
    spread = np.std(list(by_story.values()), ddof=1) / np.sqrt(len(by_story))
    return {
        "n": len(gains),
        "gain": float(gains.mean()),
        "gain_error": float(spread),
        "r2_without": r2_without,
        "r2_with": r2_with,
        "by_story": by_story,
    }


class _Compared(NamedTuple):
    """The N words that are compared."""

    times: np.ndarray  # [N] milliseconds
    columns: Mapping[str, np.ndarray]  # [N] each
    stories: Sequence[str]  # in the order of the words
    numbers: np.ndarray  # [N] of each word's story, once they are sorted
    splits: Sequence[tuple[np.ndarray, np.ndarray]]  # words fitted to, words judged

    def names(self, words: np.ndarray) -> str:
        """The stories of some words, for a message."""
        found = sorted(self.stories)
        numbers = np.unique(self.numbers[words])
        more = f" and {len(numbers) - 3:,} more" if len(numbers) > 3 else ""
        return ", ".join(repr(found[number]) for number in numbers[:3]) + more


def _compared(rows: Sequence[Mapping[str, Any]], folds: int) -> _Compared:
    """The words that are not left out; refuses too few."""
    from sklearn.model_selection import GroupKFold

    used = [row for row in rows if not row["left_out"]]
    stories = list(dict.fromkeys(row["story"] for row in used))
    names = _OTHERS + _SURPRISAL
    if len(stories) < 2 or len(used) <= 2 * (len(names) + 1):
        raise UserError(
            f"{len(used)} words of {len(stories)} stories are left with a time and all "
            f"predictors; models of {len(names) + 1} columns need two stories and "
            f"{2 * len(names) + 3} words at least."
        )
    places = {story: number for number, story in enumerate(sorted(stories))}
    times = np.asarray([row["time"] for row in used])
    numbers = np.asarray([places[row["story"]] for row in used])
    return _Compared(
        times,
        {name: np.asarray([row[name] for row in used]) for name in names},
        stories,
        numbers,
        list(GroupKFold(min(folds, len(stories))).split(times, groups=numbers)),
    )


def _fits(
    words: _Compared, names: Sequence[str], least_left: float = 0.0
) -> tuple[np.ndarray, float]:
    """Log-likelihoods [N] of the times, each by a model of other stories; and R².

    Args:
      words: the words.
      names: the predictors.
      least_left: the smallest residuals to accept, as a share of the times' size.
    """
    from statsmodels.regression.linear_model import OLS

    design = np.column_stack(
        [np.ones(len(words.times)), *(words.columns[name] for name in names)]
    )
    found = np.zeros(len(words.times))
    for fitted, judged in words.splits:
        times = words.times[fitted]
        fit = OLS(times, design[fitted]).fit()
        variance = fit.ssr / fit.nobs
        if not variance > least_left**2 * np.mean(times**2):
            raise UserError(
                f"In the stories other than {words.names(judged)}, all times are the "
                f"same or follow exactly from {', '.join(names)}: nothing is left to "
                "compare. Look at the column of times."
            )
        errors = words.times[judged] - fit.predict(design[judged])
        found[judged] = -0.5 * (np.log(2 * np.pi * variance) + errors**2 / variance)
    return found, float(OLS(words.times, design).fit().rsquared)


def _fit_others(words: _Compared) -> tuple[np.ndarray, float]:
    """The fits without surprisal, once they can predict other stories."""
    num_columns = 1 + len(_OTHERS) + len(_SURPRISAL)
    for fitted, judged in words.splits:
        if len(fitted) <= num_columns:
            raise UserError(
                f"The stories other than {words.names(judged)} have {len(fitted)} "
                f"words, and a model of {num_columns} columns is to be fitted to them; "
                "it needs more words than columns."
            )
        for name in _OTHERS:
            column = words.columns[name]
            if np.ptp(column) > 0 and not np.ptp(column[fitted]) > 0:
                raise UserError(
                    f"In the stories other than {words.names(judged)}, {name} is "
                    f"{column[fitted][0]:g} for all words, so a model that is fitted "
                    "to them can say nothing of words for which it is not."
                )
    return _fits(words, _OTHERS, _EXACT)
