"""The features job: hidden states of words and lines, and attention maps."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from gpt1_jax import __version__
from gpt1_jax.config import FeaturesConfig, FinetuneConfig
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import MadeOnce, check_output, locate
from gpt1_jax.data.progress import without_bars
from gpt1_jax.data.tables import ArrayWriter, check_library, open_arrays
from gpt1_jax.data.tokenizers import special_tokens
from gpt1_jax.data.words import (
    ReadingWindow,
    Word,
    encode_whole,
    nothing_left,
    read_column,
    read_lines,
    reading_windows,
    split_words,
    window_overlap,
)
from gpt1_jax.errors import UserError
from gpt1_jax.inference.features import Reader, attention_maps
from gpt1_jax.model import language_model
from gpt1_jax.parallel import devices
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read


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
    with MadeOnce(lambda: _words(config, trained)) as words:
        count = sum(len(window.words) for window in _windows(config, trained, words))
        with (
            open_arrays(output, _attributes(config, trained, layers)) as file,
            tqdm.tqdm(total=count, unit=" rows", disable=without_bars()) as bar,
        ):
            for num_rows in features.write(file, _windows(config, trained, words)):
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

    def write(
        self, file: ArrayWriter, windows: Iterable[ReadingWindow]
    ) -> Iterator[int]:
        """Adds all rows to a file; yields how many, each time."""
        count = 0
        for window, states in self._read(windows):
            self._append(file, window.words, states)
            if self._config.attention:
                maps = attention_maps(self._model, self._params, window.ids)
                file.append(f"attention_{count}", maps)
                file.append(f"tokens_{count}", np.asarray(window.ids, np.int32))
            count += len(window.words)
            yield len(window.words)

    def _append(
        self, file: ArrayWriter, words: Sequence[Word], states: np.ndarray
    ) -> None:
        config = self._config
        for layer, rows in zip(self._layers, states, strict=True):
            file.append(f"layer_{layer}", _narrowed(rows, config.output_dtype, layer))
        name = "word" if config.rows == "words" else "text"
        file.append(name, [word.word for word in words])
        file.append("line", np.asarray([word.line for word in words], np.int64))
        if not config.words_column and not config.lines_column:
            for name in ("start", "end"):
                offsets = [getattr(word, name) for word in words]
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
        "overlap": window_overlap(config, trained.model.max_seq_len),
        "max_seq_len": trained.model.max_seq_len,
        "dtype": config.dtype or trained.model.dtype,
        "tokenizer": trained.tokenizer.digest,
        "gpt1_jax": __version__,
    }


def _words(config: FeaturesConfig, trained: TrainedRun) -> Iterator[Word]:
    """The words or lines whose rows are asked for, in order, with their tokens."""
    lines: Iterable[Word]
    if config.words_column:
        lines = read_column(config.input, config.words_column, config.text_column)
    elif config.lines_column:
        cells = enumerate(read_column(config.input, config.lines_column), 1)
        lines = (cell._replace(line=number) for number, cell in cells)
    else:
        lines = read_lines(config.input)
    if config.rows == "words" and not config.words_column:
        return split_words(trained.tokenizer, lines)
    return encode_whole(trained.tokenizer, lines)


def _windows(
    config: FeaturesConfig, trained: TrainedRun, words: Iterable[Word]
) -> Iterator[ReadingWindow]:
    """What to read for the words or lines."""
    if config.rows != "words":
        return (_line_window(config, trained, line) for line in words)
    return reading_windows(
        words,
        config,
        trained.model.max_seq_len,
        trained.tokenizer.newline_id,
        after_newline=False,
    )


def _line_window(
    config: FeaturesConfig, trained: TrainedRun, line: Word
) -> ReadingWindow:
    ids = line.ids
    if not ids:
        raise nothing_left(line.word, line.where)
    if config.rows == "extract":
        special = special_tokens(trained.tokenizer.vocab_size)
        ids = (special.start, *ids, special.extract)
    if len(ids) > trained.model.max_seq_len:
        raise UserError(
            f"{line.where}: the line has {len(ids)} tokens; this model reads "
            f"{trained.model.max_seq_len}. Break it in two."
        )
    return ReadingWindow(ids, 0, [line], [(0, len(ids))])


def _narrowed(rows: np.ndarray, dtype: str, layer: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = rows.astype(dtype)
    if np.isinf(narrow).any() and np.isfinite(rows).all():
        raise UserError(
            f"A state of layer {layer} is too large for float16 "
            f"({np.abs(rows).max():.3g}); use --config.output_dtype=float32."
        )
    return narrow
