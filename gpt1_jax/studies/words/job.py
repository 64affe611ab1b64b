"""The jobs surprisal and features: one reads a text's words for both."""

from collections.abc import Iterable, Iterator

from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import (
    Word,
    check_words_source,
    encode_whole,
    lines_of,
    read_column,
    read_lines,
    words_in_sentences,
)
from gpt1_jax.parallel import devices
from gpt1_jax.runs.saved_steps import open_steps
from gpt1_jax.studies.words import features, surprisal
from gpt1_jax.studies.words.config import FeaturesConfig, InputConfig, SurprisalConfig


def run(config: SurprisalConfig | FeaturesConfig, workdir: str) -> None:
    """Writes the surprisal of each word of a text, or hidden states of it.

    Args:
      config: the model, the text and how to read it; its class says what is written.
      workdir: must be empty; the results go to standard output or to `config.output`.

    Raises:
      FileNotFoundError, UserError: if there is no such run, layer, file or column, or
        the text cannot be read, holds no word, or does not fit the model.
    """
    config.check_workdir(workdir)
    if isinstance(config, SurprisalConfig):
        surprisal.check_output(config)
    else:
        features.check_output(config)
    lines = list(_read(config))  # a bad one is named before the model is loaded
    if isinstance(config, SurprisalConfig):
        surprisal.check_columns(config, lines[0])
    origin, steps = open_steps(config.init_from, config.step)
    devices.configure("highest", compilation_cache(config.compilation_cache_dir))
    words = _encode(config, origin.tokenizer, lines)
    if isinstance(config, SurprisalConfig):
        surprisal.write(config, origin, steps, words)
    else:
        features.write(config, origin, words)


def _read(config: InputConfig) -> Iterator[Word]:
    """The lines of the text, or the words or lines in a column of the table."""
    if not config.input:
        return lines_of(config.text, "config.text")
    check_words_source(config.input, config.words_column, config.lines_column)
    if config.words_column:
        return read_column(config.input, config.words_column, config.text_column)
    if config.lines_column:
        cells = enumerate(read_column(config.input, config.lines_column), 1)
        return (cell._replace(line=number) for number, cell in cells)
    return read_lines(config.input)


def _encode(
    config: InputConfig, tokenizer: Tokenizer, lines: Iterable[Word]
) -> Iterator[Word]:
    """The words or whole lines that are asked for, in order, with their tokens."""
    if config.words_column or config.rows != "words":
        return encode_whole(tokenizer, lines)
    apart = config.punctuation == "apart"
    return words_in_sentences(tokenizer, lines, apart=apart)
