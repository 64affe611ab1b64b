"""The surprisal job: how surprising each word of a text is."""

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.config.checks import is_device
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import locate
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.tables import ATTRIBUTES, Row, TableWriter, format_table, open_table
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import (
    POSITION,
    SURPRISAL,
    Word,
    check_words_source,
    encode_whole,
    lines_of,
    read_column,
    read_lines,
    words_in_sentences,
)
from gpt1_jax.errors import UserError
from gpt1_jax.inference.surprisal import score_words, word_windows
from gpt1_jax.parallel import devices
from gpt1_jax.report.plots import save_figure
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.outputs import check_figure, check_output_file, say_wrote
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.runs.steps import each_step, open_steps
from gpt1_jax.studies.made_once import MadeOnce
from gpt1_jax.studies.surprisal.config import SurprisalConfig
from gpt1_jax.studies.surprisal.figure import surprisal_by_step, surprisal_of_words

_STEP = "step"  # the column that is added in front
_TOGETHER = 1000  # rows written at a time
_DRAWN = 30  # words in the picture


def run(config: SurprisalConfig, workdir: str) -> None:
    """Prints or writes the surprisal of each word, at one or several saved steps.

    Args:
      config: the model, the text and how to read it.
      workdir: must be empty; the table goes to standard output or to `config.output`.

    Raises:
      FileNotFoundError, UserError: if there is no such run or file, or the text cannot
        be read or holds no word.
    """
    config.check_workdir(workdir)
    if config.output:
        check_output_file(locate(config.output), "--config.output=FILE", config.input)
    if config.figure:
        check_figure(config.figure, config.input)
    _check_text(config)
    origin, steps = open_steps(config.init_from, config.step)
    devices.configure("default", compilation_cache(config.compilation_cache_dir))
    summaries = []
    with MadeOnce(lambda: _words(config, origin.tokenizer)) as words:
        newline = origin.tokenizer.newline_id
        windows = word_windows(words, config, origin.model, newline)
        total = len(steps) * sum(len(window.words) for window in windows)
        with _table(config) as table, Bar("score", total, "word") as bar:
            for opened in each_step(origin, steps):
                summaries.append(summary := _Summary(opened.step))
                rows = _rows(config, opened, words, summary)
                while part := list(itertools.islice(rows, _TOGETHER)):
                    table.append(part)
                    bar.update(len(part))
    if config.output:
        unit = "word" if config.punctuation == "with_word" else "row"
        for summary in summaries:
            say(summary.sentence(unit), beside_output=is_device(config.output))
        say_wrote(config.output)
    if config.figure and _draw(config, summaries):
        say_wrote(config.figure)


# --- reading --------------------------------------------------------------------


def _check_text(config: SurprisalConfig) -> None:
    """Reads the text once, to name a bad line before the model is loaded."""
    if config.input:
        check_words_source(config.input, config.words_column)
    own = {_STEP, *SURPRISAL}
    if config.output.endswith(".npz"):
        own.add(ATTRIBUTES)
    for number, word in enumerate(_unencoded(config)):
        added = (name for name in word.cells if name in own)
        if number == 0 and (name := next(added, "")):
            raise UserError(
                f"{config.input} has a column {name!r} already, the name of one that "
                "would be added; rename it."
            )


def _unencoded(config: SurprisalConfig) -> Iterator[Word]:
    """The lines of the text, or the words of the table."""
    if config.words_column:
        return read_column(config.input, config.words_column, config.text_column)
    if config.input:
        return read_lines(config.input)
    return lines_of(config.text, "config.text")


def _words(config: SurprisalConfig, tokenizer: Tokenizer) -> Iterator[Word]:
    """The words to score, in order, with their tokens."""
    if config.words_column:
        return encode_whole(tokenizer, _unencoded(config))
    apart = config.punctuation == "apart"
    return words_in_sentences(tokenizer, _unencoded(config), apart=apart)


# --- computing ------------------------------------------------------------------


def _rows(
    config: SurprisalConfig,
    origin: TrainedRun,
    words: Iterable[Word],
    summary: "_Summary",
) -> Iterator[Row]:
    """The rows of one step."""
    model = scoring_model(origin.model_in(config.dtype))
    params = jax.tree.map(jnp.asarray, origin.language_model)
    columns = _columns(config)
    for word in score_words(model, params, origin.tokenizer, [words], config):
        summary.add(word)
        values = {name: getattr(word, name) for name in columns}
        cells = {name: _as_it_was(each) for name, each in word.cells.items()}
        yield {_STEP: origin.step, **cells, **values}


def _as_it_was(value: Any) -> str:
    """A cell of the user's own table as text; JSON's null is an empty cell."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _columns(config: SurprisalConfig) -> tuple[str, ...]:
    """The columns that are added to a row, behind those that it has already."""
    return SURPRISAL if config.words_column else POSITION + SURPRISAL


class _Summary:
    """The totals of one step, and its first words, which are drawn."""

    def __init__(self, step: int):
        self.step = step
        self.words: list[Word] = []  # the first of them
        self._count = self._tokens = 0
        self._sum = 0.0

    def add(self, word: Word) -> None:
        """Counts a word, unless it has no surprisal."""
        if math.isnan(word.bits):
            return
        self._count += 1
        self._tokens += word.num_tokens
        self._sum += word.bits
        if len(self.words) < _DRAWN:
            self.words.append(word)

    @property
    def mean(self) -> float:
        """Bits per row."""
        return self._sum / self._count if self._count else math.nan

    def sentence(self, unit: str) -> str:
        """The step in one line, in which a row is called a `unit`."""
        return (
            f"step {self.step:,}: {self._count:,} {unit}s of {self._tokens:,} tokens, "
            f"{self.mean:.3f} bits per {unit}"
        )


# --- writing --------------------------------------------------------------------


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
    """Saves a picture of the first words, with the means of several steps, if it can.

    Raises:
      UserError: if there is no word to draw.
    """
    first, *more = summaries
    if not first.words:
        raise UserError("No word has a surprisal that could be drawn.")
    words = [word.word for word in first.words]
    items = [word.line for word in first.words]
    bits = [[word.bits for word in step.words] for step in summaries]
    steps, means = zip(*((each.step, each.mean) for each in summaries), strict=True)

    def draw() -> Any:
        if more:
            return surprisal_by_step(words, bits, steps, means, items)
        return surprisal_of_words(words, bits[0], items)

    path, numbers = locate(config.figure), None
    # The table of all words may have the name that the figure's numbers would have.
    if not config.output or locate(config.output) != path.with_suffix(".csv"):
        numbers = [
            {"step": step, "item": item, "word": word, "bits": of_word, "mean": mean}
            for step, mean, of_step in zip(steps, means, bits, strict=True)
            for item, word, of_word in zip(items, words, of_step, strict=True)
        ]
    return save_figure(draw, path, numbers) is not None
