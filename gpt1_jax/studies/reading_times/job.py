"""The reading-times job: does surprisal say how long people read a word?"""

import functools
from collections.abc import Sequence

from etils import epath

from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.data.files import write_whole
from gpt1_jax.data.tables import format_table
from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.markdown import counted
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.studies.engine import (
    Scored,
    ScoredRun,
    run_and_baseline,
    score_steps,
)
from gpt1_jax.studies.reading_times.config import ReadingTimesConfig
from gpt1_jax.studies.reading_times.figure import draw_gains
from gpt1_jax.studies.reading_times.gain import (
    check_times,
    predictors,
    reading_gain,
    word_surprisals,
)
from gpt1_jax.studies.reading_times.table import TASK, describe_gain, gains_table
from gpt1_jax.studies.reading_times.words import (
    Frequency,
    TimedWords,
    count_words,
    load_timed_words,
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

    def score(words: TimedWords, score: Scorer, params: Params) -> Scored:
        rows = predictors(words, word_surprisals(words, score, params))

        def write(path: epath.Path) -> None:
            table = ({k: "" if v is None else v for k, v in r.items()} for r in rows)
            write_whole(path.with_suffix(".csv"), format_table(table, ".csv"))

        return reading_gain(rows, config.folds), write

    score_steps(
        config,
        workdir,
        title="reading times",
        load=run_and_baseline(_load),
        score=score,
        describe=lambda name, scores: describe_gain(scores),
        table=gains_table,
        figure=draw_gains,
        packages=("jax", "numpy", "scikit-learn"),
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
        reasons = ", ".join(f"{n:,} {why}" for why, n in words.left_out().items())
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
        return _counted(config.frequency_corpus, "config.frequency_corpus")
    data = run.config.data if isinstance(run.config, PretrainConfig) else None
    if data is None or data.source != "text":
        raise UserError(
            f"{run.folder} was not trained on text files, in which to count words; "
            "name some with --config.frequency_corpus=PATHS, or a column with "
            "--config.data.log_frequency=NAME."
        )
    say(f"Counting words in the text that {run.folder} was trained on, {data.train}.")
    try:
        return _counted(data.train, "the run's config.data.train", data.text_field)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} Name text to count words in with --config.frequency_corpus=PATHS."
        ) from error


@functools.cache
def _counted(paths: str, key: str, text_field: str = "text") -> Frequency:
    return count_words(paths, key, text_field)
