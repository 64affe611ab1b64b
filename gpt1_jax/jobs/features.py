"""The features job: hidden states of words and lines, and attention maps."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from gpt1_jax import __version__
from gpt1_jax.config import FeaturesConfig, FinetuneConfig
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data import words as words_lib
from gpt1_jax.data.files import check_output, locate
from gpt1_jax.data.progress import without_bars
from gpt1_jax.data.tables import ArrayWriter, check_library, open_arrays
from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer, special_tokens
from gpt1_jax.data.words import Context, Span, Window, Word, check_fits, split_words
from gpt1_jax.errors import UserError
from gpt1_jax.inference.features import Reader, attention_maps
from gpt1_jax.model import language_model
from gpt1_jax.parallel import devices
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.tasks.word_files import Line, encode_words, read_lines, read_words


def run(config: FeaturesConfig, workdir: str) -> None:
    """Writes the hidden states of each word or line of a text.

    Args:
      config: the model, the text, and which states to write where.
      workdir: must be empty; the features go to `config.output`.

    Raises:
      FileNotFoundError, ValueError: if there is no such run, layer, file or column, or
        the text does not fit the model.
    """
    config.check_workdir(workdir)
    output = Path(locate(config.output, local=True))
    check_library(output)
    check_output(output, "--config.output=FILE")
    trained = open_run(config.init_from, config.step)
    say_what_is_read(trained)
    _check_extract(config, trained)
    if config.attention:
        language_model.check_attention(trained.model)
    devices.configure("highest", compilation_cache(config.compilation_cache_dir))
    layers = config.layers or tuple(range(trained.model.depth + 1))
    features = _Features(config, trained, layers)
    # Read once more before: so whatever is wrong with the text is said at once.
    count = sum(len(window.spans) for window in _windows(config, trained))
    with (
        open_arrays(output, _attributes(config, trained, layers)) as file,
        tqdm.tqdm(total=count, unit=" rows", disable=without_bars()) as bar,
    ):
        for num_rows in features.write(file):
            bar.update(num_rows)
    named = ", ".join(map(str, layers))
    say(
        f"{count:,} rows of {trained.model.embed_dim} numbers for each of the layers "
        f"{named}, in {output}."
    )


class _Features:
    """Writes what a configuration asks for."""

    def __init__(
        self, config: FeaturesConfig, trained: TrainedRun, layers: tuple[int, ...]
    ):
        dtype = config.dtype or trained.model.dtype
        self._config, self._trained, self._layers = config, trained, layers
        self._model = dataclasses.replace(trained.model, dtype=dtype)
        self._params = jax.tree.map(jnp.asarray, trained.language_model)
        mean = config.rows == "mean"
        self._read = Reader(self._model, self._params, layers, mean)

    def write(self, file: ArrayWriter) -> Iterator[int]:
        """Adds all rows to a file; yields how many, each time."""
        count = 0
        windows = _windows(self._config, self._trained)
        for window, states in self._read.of_words(windows):
            self._append(file, window, states)
            if self._config.attention:
                maps = attention_maps(self._model, self._params, window.ids)
                file.append(f"attention_{count}", maps)
                file.append(f"tokens_{count}", np.asarray(window.ids, np.int32))
            count += len(window.spans)
            yield len(window.spans)

    def _append(self, file: ArrayWriter, window: Window, states: np.ndarray) -> None:
        config, found = self._config, [span.word for span in window.spans]
        for layer, rows in zip(self._layers, states, strict=True):
            file.append(f"layer_{layer}", _narrowed(rows, config.output_dtype, layer))
        name = "word" if config.rows == "words" else "text"
        file.append(name, [word.text for word in found])
        file.append("line", np.asarray([word.line + 1 for word in found], np.int64))
        if not config.words_column and not config.lines_column:
            for name in ("start", "end"):
                offsets = [getattr(word, name) for word in found]
                file.append(name, np.asarray(offsets, np.int64))


def _check_extract(config: FeaturesConfig, trained: TrainedRun) -> None:
    if config.rows == "extract" and not isinstance(trained.config, FinetuneConfig):
        raise UserError(
            f"config.rows='extract' needs a fine-tuned run, but {trained.folder} is "
            f"one of the job {trained.config.job!r}, which has no extract token; use "
            "--config.rows=last."
        )


def _attributes(
    config: FeaturesConfig, trained: TrainedRun, layers: tuple[int, ...]
) -> dict[str, Any]:
    """What a file says of itself."""
    return {
        "model": str(trained.folder),
        "step": trained.step,
        "num_layers": trained.model.depth,
        "layers": list(layers),
        "input": config.input,
        "rows": config.rows,
        "context": config.context,
        "context_words": config.context_words,
        "overlap": _context(config, trained).overlap,
        "max_seq_len": trained.model.max_seq_len,
        "dtype": config.dtype or trained.model.dtype,
        "tokenizer": trained.tokenizer.digest,
        "gpt1_jax": __version__,
    }


def _context(config: FeaturesConfig, trained: TrainedRun) -> Context:
    newline = trained.tokenizer.newline_id
    return Context.of(config, trained.model.max_seq_len, newline, after_newline=False)


def _windows(config: FeaturesConfig, trained: TrainedRun) -> Iterator[Window]:
    """What to read, and the words or lines whose rows are asked for."""
    if config.rows != "words":
        for line in _lines(config):
            yield _line_window(config, trained, line)
        return
    context = _context(config, trained)
    yield from words_lib.windows(_words(config, trained), context)


def _line_window(config: FeaturesConfig, trained: TrainedRun, line: Line) -> Window:
    ids = _encode(trained, line.where, line.text)
    if config.rows == "extract":
        special = special_tokens(trained.tokenizer.vocab_size)
        ids = (special.start, *ids, special.extract)
    if len(ids) > trained.model.max_seq_len:
        raise UserError(
            f"{line.where}: the line has {len(ids)} tokens; this model reads "
            f"{trained.model.max_seq_len}. Break it in two."
        )
    end = line.start + len(line.text)
    word = Word(line.text, line.start, end, line.number - 1, ids)
    return Window(list(ids), 0, [Span(word, 0, len(ids))])


def _words(config: FeaturesConfig, trained: TrainedRun) -> Iterator[Word]:
    """The words of the text, each shorter than the context."""
    for where, word in _placed_words(config, trained.tokenizer):
        check_fits(word, trained.model.max_seq_len, where)
        yield word


def _placed_words(
    config: FeaturesConfig, tokenizer: Tokenizer
) -> Iterator[tuple[str, Word]]:
    """Words, each with its place for messages."""
    if config.words_column:
        columns = config.words_column, config.text_column
        for where, word, _ in encode_words(tokenizer, config.input, *columns):
            yield where, word
        return
    for line in _lines(config):
        for word in split_words(tokenizer, line.text):
            start, end = line.start + word.start, line.start + word.end
            yield line.where, word._replace(start=start, end=end, line=line.number - 1)


def _lines(config: FeaturesConfig) -> Iterator[Line]:
    if not config.lines_column:
        yield from read_lines(config.input)
        return
    for number, row in enumerate(read_words(config.input, config.lines_column), 1):
        yield Line(row.where, number, 0, " ".join(row.word.split()))


def _encode(trained: TrainedRun, where: str, text: str) -> tuple[int, ...]:
    ids = tuple(trained.tokenizer.encode(clean(text)))
    if not ids:
        raise words_lib.nothing_left(text, where)
    return ids


def _narrowed(rows: np.ndarray, dtype: str, layer: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = rows.astype(dtype)
    if np.isinf(narrow).any() and np.isfinite(rows).all():
        raise UserError(
            f"A state of layer {layer} is too large for float16 "
            f"({np.abs(rows).max():.3g}); use --config.output_dtype=float32."
        )
    return narrow
