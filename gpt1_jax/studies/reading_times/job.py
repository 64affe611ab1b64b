"""The reading-times job: does surprisal say how long people read a word?"""

import collections
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.markdown import counted
from gpt1_jax.report.studies import Study
from gpt1_jax.report.study_scores import draw_scores, scores_table
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.studies.engine import ScoredRun, runs_and_baselines, score_steps
from gpt1_jax.studies.reading_times.config import ReadingTimesConfig
from gpt1_jax.studies.reading_times.gain import (
    check_times,
    predictors,
    reading_gain,
    word_surprisals,
)
from gpt1_jax.studies.reading_times.words import (
    Frequency,
    TimedWords,
    count_words,
    load_timed_words,
)

_count_once = functools.cache(count_words)

TASK = "reading_times"
ALL_STORIES, GAINS = "all stories", "gain x 1000"
_LABEL = "gain ± standard error, nats per word x 1000"
_R2 = {"r2_without": "R² x 100, without", "r2_with": "R² x 100, with surprisal"}
_NOTE = (
    "The gain in log-likelihood, nats per word, of a model of reading times with "
    "surprisal over one without, on stories that neither was fitted to; the standard "
    "error is that over stories. R² is of models fitted to all words."
)


def run(config: ReadingTimesConfig, workdir: str) -> None:
    """Scores steps of a run, and of a baseline, by the reading times of words.

    Each score is kept; the same command goes on from there.

    Args:
      config: the runs, their steps, the table and the predictors of the times.
      workdir: the folder to make: results.json, results.md, scores, a plot, and for
        each step predictions/RUN/STEP/reading_times.csv with all predictors.

    Raises:
      FileExistsError: if the folder holds something else.
      FileNotFoundError, UserError: if there is no such run, step or file, the table or
        the corpus of frequencies cannot be used, or the folder holds scores of another
        configuration, of other checkpoints or of other words.
      Stopped: after a signal, once the scores at hand are saved.
    """
    score_steps(STUDY, config, workdir, runs_and_baselines(_load))


def _score(
    config: ReadingTimesConfig, words: TimedWords, score: Scorer, params: Params
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The gain, and all predictors of each word."""
    rows = predictors(words, word_surprisals(words, score, params))
    table = [{k: "" if v is None else v for k, v in row.items()} for row in rows]
    return reading_gain(rows, config.folds), table


def _rows(task: str, scores: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of the gain, of R² without and with surprisal, and of each story's gain."""
    row = {"measure": GAINS, "story": ALL_STORIES, "words": scores["n"]}
    gain, error = 1000 * scores["gain"], 1000 * scores["gain_error"]
    yield {**row, "score": gain, "error": error}
    for name, measure in _R2.items():
        value = {"score": 100 * scores[name], "error": math.nan}
        yield {**row, "measure": measure, **value}
    for story, gain in scores["by_story"].items():
        yield {**row, "story": story, "score": 1000 * gain, "error": math.nan}


def _table(scores: Any, config: ReadingTimesConfig) -> str:
    del config
    whole = scores[scores["story"] == ALL_STORIES]
    return f"{scores_table(whole, ['measure', 'words'], digits=2)}\n\n{_NOTE}\n"


def _figure(scores: Any) -> Any:
    """The gain over updates; at one step that of each story too."""
    gains = scores[scores["measure"] == GAINS]
    if gains["step"].nunique() > 1:
        gains = gains[gains["story"] == ALL_STORIES]
    return draw_scores(gains, "story", _LABEL, [0])


STUDY = Study(
    "reading-times",
    _score,
    _rows,
    _table,
    _figure,
    suffix=".csv",
    packages=("jax", "numpy", "scikit-learn"),
    heading="Reading times",
)


def _load(
    config: ReadingTimesConfig,
    run: TrainedRun,
    before: Sequence[ScoredRun[TimedWords]],
) -> dict[str, TimedWords]:
    """The words of the table, as a run reads them."""
    frequency = None
    if not config.data.log_frequency:  # a baseline's words have those of the run
        frequency = _frequency(config, before[0].opened if before else run)
    words = load_timed_words(config, frequency, run.tokenizer, run.model.max_seq_len)
    if not before:
        left_out = collections.Counter(r["left_out"] for r in words.rows)
        reasons = ", ".join(f"{n:,} {why}" for why, n in left_out.items() if why)
        stories = len({row["story"] for row in words.rows})
        say(
            f"{counted(len(words.rows), 'word')} in {stories} stories; left out: "
            f"{reasons or 'none'}."
        )
    check_times(words, config.folds)
    return {TASK: words}


def _frequency(config: ReadingTimesConfig, run: TrainedRun) -> Frequency:
    """The frequencies of words in a corpus, by default the run's own text."""
    if config.frequency_corpus:
        return _count_once(config.frequency_corpus, "config.frequency_corpus")
    data = run.config.data if isinstance(run.config, PretrainConfig) else None
    if data is None or data.source != "text":
        raise UserError(
            f"{run.folder} was not trained on text files, in which to count words; "
            "name some with --config.frequency_corpus=PATHS, or a column with "
            "--config.data.log_frequency=NAME."
        )
    say(f"Counting words in the text that {run.folder} was trained on, {data.train}.")
    try:
        key = "the run's config.data.train"
        return _count_once(data.train, key, data.text_field)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} Name text to count words in with --config.frequency_corpus=PATHS."
        ) from error
