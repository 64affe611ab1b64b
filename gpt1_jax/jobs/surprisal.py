"""The surprisal job: how surprising each word of a text is."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tqdm
from etils import epath

from gpt1_jax.config import SurprisalConfig
from gpt1_jax.config.checks import is_device
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import check_output, locate
from gpt1_jax.data.progress import without_bars
from gpt1_jax.data.tables import Row, TableWriter, cell, open_table
from gpt1_jax.data.text import split_lines
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import check_fits, joined, whole_words
from gpt1_jax.errors import UserError
from gpt1_jax.inference.surprisal import (
    Surprisal,
    WordScorer,
    WordSurprisal,
    place_words,
)
from gpt1_jax.parallel import devices
from gpt1_jax.report import figures, notebook_figures
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.console import say, say_wrote
from gpt1_jax.runs.milestones import find_steps
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.tasks import word_files
from gpt1_jax.tasks.word_files import GivenWord

_STEP = "step"  # the column that is added in front
_TOGETHER = 1000  # rows that are written together
_DRAWN = 30  # words of the picture


def run(config: SurprisalConfig, workdir: str) -> None:
    """Prints or writes the surprisal of each word, at one or several saved steps.

    Args:
      config: the model, the text and how to read it.
      workdir: must be empty; the table goes to standard output or to `config.output`.

    Raises:
      FileNotFoundError, ValueError: if there is no such run or file, or the text cannot
        be read or holds no word.
    """
    config.check_workdir(workdir)
    for name in ("output", "plot"):
        if path := getattr(config, name):
            check_output(locate(path), f"--config.{name}=FILE")
    _check_text(config)
    steps = find_steps(run_folder.locate(config.init_from), config.step)
    trained = open_run(config.init_from, steps[0])
    say_what_is_read(trained, config.step, steps)
    devices.configure("default", compilation_cache(config.compilation_cache_dir))
    total = _check_words(config, trained) * len(steps)
    summaries = []
    with _table(config) as table, _progress(total) as bar:
        for step in steps:
            if step != steps[0]:
                trained = open_run(config.init_from, step)
            summaries.append(summary := _Summary(trained.step))
            rows = _rows(config, trained, summary)
            while some := list(itertools.islice(rows, _TOGETHER)):
                table.append(some)
                bar.update(len(some))
    if config.output:
        unit = "word" if config.punctuation == "with_word" else "row"
        for summary in summaries:
            say(summary.sentence(unit), beside_output=is_device(config.output))
        say_wrote(config.output)
    if config.plot:
        _draw(locate(config.plot), summaries)
        say_wrote(config.plot)


# --- what is read ---------------------------------------------------------------


def _check_text(config: SurprisalConfig) -> None:
    """Reads the text once, so that a bad line is named before the model is loaded."""
    if config.input:
        word_files.check_source(config.input, config.words_column)
    if not config.words_column:
        for _ in _lines(config):
            pass
        return
    for number, row in enumerate(_table_rows(config)):
        added = (name for name in (_STEP, *Surprisal._fields) if name in row.cells)
        if number == 0 and (name := next(added, "")):
            raise UserError(
                f"{config.input} has a column {name!r} already, the name of one that "
                "would be added; rename it."
            )


def _check_words(config: SurprisalConfig, trained: TrainedRun) -> int:
    """Encodes the text once; returns how many rows it has.

    Raises:
      ValueError: naming the line of a word that is longer than the context.
    """
    count = 0
    items, same = itertools.tee(_items(config, trained.tokenizer))
    for parts in whole_words(item.word for item in same):
        first, *_ = itertools.islice(items, len(parts))
        check_fits(joined(parts), trained.model.max_seq_len, first.where)
        count += len(parts)
    return count


def _items(config: SurprisalConfig, tokenizer: Tokenizer) -> Iterator[GivenWord]:
    """The words of the text, in order, with the columns that they have already."""
    if config.words_column:
        columns = config.words_column, config.text_column
        yield from word_files.encode_words(tokenizer, config.input, *columns)
        return
    apart = config.punctuation == "apart"
    lines = ((line.number, line.start, line.text) for line in _lines(config))
    for place, word in place_words(tokenizer, lines, apart):
        yield GivenWord(f"{_name(config)}:{place.line}", word, place._asdict())


def _lines(config: SurprisalConfig) -> Iterator[word_files.Line]:
    if config.input:
        return word_files.read_lines(config.input)
    return word_files.lines_of(split_lines(config.text), _name(config))


def _table_rows(config: SurprisalConfig) -> Iterator[word_files.Row]:
    return word_files.read_words(config.input, config.words_column, config.text_column)


def _name(config: SurprisalConfig) -> str:
    return config.input or "config.text"


# --- what is computed -----------------------------------------------------------


def _rows(
    config: SurprisalConfig, trained: TrainedRun, summary: "_Summary"
) -> Iterator[Row]:
    """The rows of one step."""
    dtype = config.dtype or trained.model.dtype
    model = dataclasses.replace(trained.model, dtype=dtype)
    score = WordScorer(model, trained.tokenizer, config)
    params = jax.tree.map(jnp.asarray, trained.language_model)
    items, same = itertools.tee(_items(config, trained.tokenizer))
    found = score(params, (item.word for item in same))
    for item, surprisal in zip(items, found, strict=True):
        summary.add(item.word.text, surprisal)
        yield {_STEP: trained.step, **item.cells, **surprisal._asdict()}


class _Summary:
    """What is said and drawn of one step."""

    def __init__(self, step: int):
        self.step = step
        self.words: list[str] = []  # the first of them
        self.bits: list[float] = []
        self._count = self._tokens = 0
        self._sum = 0.0

    def add(self, word: str, surprisal: Surprisal) -> None:
        """Counts a word, unless it has no surprisal."""
        if math.isnan(surprisal.bits):
            return
        self._count += 1
        self._tokens += surprisal.num_tokens
        self._sum += surprisal.bits
        if len(self.words) < _DRAWN:
            self.words.append(word)
            self.bits.append(surprisal.bits)

    @property
    def mean(self) -> float:
        """Bits per row."""
        return self._sum / self._count if self._count else math.nan

    def sentence(self, unit: str) -> str:
        """The step in one line; `unit` is what a row is."""
        return (
            f"step {self.step:,}: {self._count:,} {unit}s of {self._tokens:,} tokens, "
            f"{self.mean:.3f} bits per {unit}"
        )


# --- what is written ------------------------------------------------------------


def _progress(total: int) -> Any:
    return tqdm.tqdm(total=total, unit=" words", disable=without_bars())


@contextlib.contextmanager
def _table(config: SurprisalConfig) -> Iterator[TableWriter]:
    """The table in a file, or on standard output."""
    if not config.output:
        yield _Printed()
        return
    kinds = {_STEP: int, **Surprisal.__annotations__}
    if not config.words_column:
        kinds |= WordSurprisal.__annotations__
    path = Path(locate(config.output, local=True))
    with open_table(path, kinds, config.to_dict()) as table:
        yield table


class _Printed(TableWriter):
    """Prints rows, columns separated by tabs."""

    def __init__(self):
        self._begun = False

    def append(self, rows: Sequence[Row]) -> None:
        if not self._begun:
            self._begun = True
            say("\t".join(rows[0]))
        say("\n".join("\t".join(map(cell, row.values())) for row in rows))


def _draw(path: epath.Path, summaries: Sequence[_Summary]) -> None:
    """Saves a picture of the first words, with the means of several steps."""
    first, *more = summaries
    if not first.words:
        raise UserError("No word has a surprisal that could be drawn.")
    if more:
        figure = notebook_figures.surprisal_by_step(
            first.words,
            [summary.bits for summary in summaries],
            [summary.step for summary in summaries],
            [summary.mean for summary in summaries],
        )
    else:
        figure = notebook_figures.surprisal_of_words(first.words, first.bits)
    figures.save(figure, path)
