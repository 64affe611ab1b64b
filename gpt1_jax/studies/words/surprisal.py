"""Writes the surprisal of words as a table, and draws it."""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.config.checks import is_device
from gpt1_jax.data.files import locate
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.tables import ATTRIBUTES, Row, TableWriter, format_table, open_table
from gpt1_jax.data.words import POSITION, SURPRISAL, Word
from gpt1_jax.errors import UserError
from gpt1_jax.inference.surprisal import score_words, word_windows
from gpt1_jax.report.plots import save_figure
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.outputs import check_figure, check_output_file, say_wrote
from gpt1_jax.runs.saved_steps import each_step
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.studies.words.config import SurprisalConfig
from gpt1_jax.studies.words.figure import surprisal_by_step, surprisal_of_words

_STEP = "step"  # the column that is added in front
_TOGETHER = 1000  # rows written at a time
_DRAWN = 30  # words in the picture


def check_output(config: SurprisalConfig) -> None:
    """Refuses files that cannot be written, or would replace the input."""
    if config.output:
        check_output_file(locate(config.output), "--config.output=FILE", config.input)
    if config.figure:
        check_figure(config.figure, config.input)


def check_columns(config: SurprisalConfig, word: Word) -> None:
    """Refuses a table with a column that would be added to its rows.

    Raises:
      UserError: naming the column.
    """
    added = {_STEP, *SURPRISAL}
    if config.output.endswith(".npz"):
        added.add(ATTRIBUTES)
    if name := next((name for name in word.cells if name in added), ""):
        raise UserError(
            f"{config.input} has a column {name!r} already, and the results add one of "
            "this name; rename it."
        )


def write(
    config: SurprisalConfig,
    origin: TrainedRun,
    steps: Sequence[int],
    words: Iterable[Word],
) -> None:
    """Writes a row for each word at each step, and the picture if it is asked for.

    Args:
      config: which table and picture to write.
      origin: the run at the first step.
      steps: the saved steps.
      words: the words, with their tokens.
    """
    words = list(words)
    windows = word_windows(words, config, origin.model, origin.tokenizer.newline_id)
    total = len(steps) * sum(len(window.words) for window in windows)
    summaries = []
    with _table(config) as table, Bar("score", total, "word") as bar:
        for opened in each_step(origin, steps):
            summaries.append(summary := _Summary(opened.step))
            model = scoring_model(opened.model_in(config.dtype))
            params = jax.tree.map(jnp.asarray, opened.language_model)
            scored = score_words(model, params, opened.tokenizer, [words], config)
            while part := list(itertools.islice(scored, _TOGETHER)):
                summary.add(part)
                table.append([_row(config, opened.step, word) for word in part])
                bar.update(len(part))
    if config.output:
        unit = "word" if config.punctuation == "with_word" else "row"
        for summary in summaries:
            say(
                f"step {summary.step:,}: {summary.count:,} {unit}s of "
                f"{summary.tokens:,} tokens, {summary.mean:.3f} bits per {unit}",
                beside_output=is_device(config.output),
            )
        say_wrote(config.output)
    if config.figure and _draw(config, summaries):
        say_wrote(config.figure)


def _row(config: SurprisalConfig, step: int, word: Word) -> Row:
    """A word's row: the step, the columns of the user's own table, those added."""
    own = {name: _as_it_was(each) for name, each in word.cells.items()}
    added = {name: getattr(word, name) for name in _columns(config)}
    return {_STEP: step, **own, **added}


def _as_it_was(value: Any) -> str:
    """A cell of the user's own table as text; JSON's null is an empty cell."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _columns(config: SurprisalConfig) -> tuple[str, ...]:
    """The columns that are added to a row, behind those that it has already."""
    return SURPRISAL if config.words_column else POSITION + SURPRISAL


@dataclasses.dataclass
class _Summary:
    """The totals of one step, and its first words, which are drawn."""

    step: int
    count: int = 0  # words that have a surprisal
    tokens: int = 0
    total: float = 0.0  # bits
    first: list[Word] = dataclasses.field(default_factory=list)

    def add(self, words: Sequence[Word]) -> None:
        """Counts words, but not those without a surprisal."""
        scored = [word for word in words if not math.isnan(word.bits)]
        self.count += len(scored)
        self.tokens += sum(word.num_tokens for word in scored)
        self.total += sum(word.bits for word in scored)
        self.first += scored[: _DRAWN - len(self.first)]

    @property
    def mean(self) -> float:
        """Bits per row."""
        return self.total / self.count if self.count else math.nan


@contextlib.contextmanager
def _table(config: SurprisalConfig) -> Iterator[TableWriter]:
    """The table in a file, or on standard output."""
    if not config.output:
        yield _Printed()
        return
    kinds = {name: Word.__annotations__[name] for name in _columns(config)}
    path = Path(locate(config.output, local=True))
    with open_table(path, {_STEP: int, **kinds}, config.to_dict()) as table:
        yield table


class _Printed(TableWriter):
    """Prints rows, columns separated by tabs."""

    def __init__(self):
        self._begun = False

    def append(self, rows: Sequence[Row]) -> None:
        header, *lines = format_table(rows, ".tsv").rstrip("\n").split("\n")
        say("\n".join(lines if self._begun else [header, *lines]))
        self._begun = True


def _draw(config: SurprisalConfig, summaries: Sequence[_Summary]) -> bool:
    """Draws the first words, with the means of several steps; whether it could."""
    first = summaries[0].first
    if not first:
        raise UserError("No word has a surprisal that could be drawn.")
    words, items = [word.word for word in first], [word.line for word in first]
    bits = [[word.bits for word in step.first] for step in summaries]

    def draw() -> Any:
        if len(summaries) == 1:
            return surprisal_of_words(words, bits[0], items)
        steps = [each.step for each in summaries]
        means = [each.mean for each in summaries]
        return surprisal_by_step(words, bits, steps, means, items)

    numbers = [
        {
            "step": each.step,
            "item": word.line,
            "word": word.word,
            "bits": word.bits,
            "mean": each.mean,
        }
        for each in summaries
        for word in each.first
    ]
    path = locate(config.figure)
    # The table of all words may have the name that the figure's numbers would have.
    taken = config.output and locate(config.output) == path.with_suffix(".csv")
    return save_figure(draw, path, None if taken else numbers) is not None
