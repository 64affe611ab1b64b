"""Writes hidden states of words and lines, and attention maps."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax import __version__
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.data.files import locate
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.tables import ArrayWriter, check_library, open_arrays
from gpt1_jax.data.tokenizers import special_tokens
from gpt1_jax.data.words import (
    ReadingWindow,
    Word,
    nothing_left,
    reading_windows,
    window_overlap,
)
from gpt1_jax.errors import UserError
from gpt1_jax.inference.features import Reader
from gpt1_jax.inference.forward import forward_ids
from gpt1_jax.model import interventions
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.outputs import check_output_file
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.studies.words.config import FeaturesConfig


def check_output(config: FeaturesConfig) -> None:
    """Refuses a file that cannot be written, or whose package is missing."""
    output = Path(locate(config.output, local=True))
    check_library(output)
    check_output_file(output, "--config.output=FILE", config.input)


def write(config: FeaturesConfig, origin: TrainedRun, words: Iterable[Word]) -> None:
    """Writes the states of each word or line, a row for each.

    Args:
      config: which states to write where.
      origin: the run.
      words: words or lines, with their tokens.

    Raises:
      UserError: if the model has no such state, layer or attention map, or a line is
        too long for it.
    """
    if config.rows == "extract" and not isinstance(origin.config, FinetuneConfig):
        raise UserError(
            f"config.rows='extract' needs a fine-tuned run, but {origin.folder} is "
            f"one of the job {origin.config.job!r}, which has no extract token; use "
            "--config.rows=last."
        )
    if config.attention:
        interventions.check_attention(origin.model)
    output = Path(locate(config.output, local=True))
    layers = config.layers or tuple(range(origin.model.depth + 1))
    params = jax.tree.map(jnp.asarray, origin.language_model)
    model = scoring_model(origin.model_in(config.dtype))
    read = Reader(model, params, layers, mean=config.rows == "mean")
    words = list(words)
    count = sum(len(window.words) for window in _windows(config, origin, words))
    with (
        open_arrays(output, _attributes(config, origin, layers)) as file,
        Bar("read", count, "row") as bar,
    ):
        done = 0
        for window, states in read(_windows(config, origin, words)):
            _append(config, file, window.words, layers, states)
            if config.attention:
                text = {"the window": window.ids}
                found = forward_ids(model, params, text, [interventions.MAPS])
                maps = np.concatenate([*found.recorded.values()])
                file.append(f"attention_{done}", maps)
                file.append(f"tokens_{done}", np.asarray(window.ids, np.int32))
            done += len(window.words)
            bar.update(len(window.words))
    named = "layer " if len(layers) == 1 else "each of the layers "
    named += ", ".join(map(str, layers))
    say(f"{count:,} rows of {origin.model.embed_dim} numbers for {named}, in {output}.")


def _append(
    config: FeaturesConfig,
    file: ArrayWriter,
    words: Sequence[Word],
    layers: Sequence[int],
    states: np.ndarray,
) -> None:
    """Adds the rows of a window to all arrays."""
    for layer, rows in zip(layers, states, strict=True):
        file.append(f"layer_{layer}", _narrowed(rows, config.output_dtype, layer))
    name = "word" if config.rows == "words" else "text"
    file.append(name, [word.word for word in words])
    file.append("line", np.asarray([word.line for word in words], np.int64))
    if not config.words_column and not config.lines_column:
        file.append("start", np.asarray([word.start for word in words], np.int64))
        file.append("end", np.asarray([word.end for word in words], np.int64))


def _attributes(
    config: FeaturesConfig, origin: TrainedRun, layers: tuple[int, ...]
) -> dict[str, Any]:
    """The attributes of the file, which say how its rows were made."""
    return {
        "model": str(origin.folder),
        "step": origin.step,
        "num_layers": origin.model.depth,
        "layers": list(layers),
        "input": config.input,
        "rows": config.rows,
        "context": config.context,
        "context_words": config.context_words,
        "overlap": window_overlap(config, origin.model.max_seq_len),
        "max_seq_len": origin.model.max_seq_len,
        "dtype": origin.model_in(config.dtype).dtype,
        "tokenizer": origin.tokenizer.digest,
        "gpt1_jax": __version__,
    }


def _windows(
    config: FeaturesConfig, origin: TrainedRun, words: Iterable[Word]
) -> Iterator[ReadingWindow]:
    """The windows that are read for the words or lines."""
    if config.rows != "words":
        return (_line_window(config, origin, line) for line in words)
    return reading_windows(
        words,
        config,
        origin.model.max_seq_len,
        origin.tokenizer.newline_id,
        after_newline=False,
    )


def _line_window(
    config: FeaturesConfig, origin: TrainedRun, line: Word
) -> ReadingWindow:
    ids = line.ids
    if not ids:
        raise nothing_left(line.word, line.where)
    if config.rows == "extract":
        special = special_tokens(origin.tokenizer.vocab_size)
        ids = (special.start, *ids, special.extract)
    if len(ids) > origin.model.max_seq_len:
        raise UserError(
            f"{line.where}: the line has {len(ids)} tokens; this model reads "
            f"{origin.model.max_seq_len}. Break it in two."
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
