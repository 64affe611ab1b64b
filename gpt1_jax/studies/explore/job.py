"""The explore job: a page to look inside models."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.config.reading import DEFAULT_WORDS
from gpt1_jax.config.report import KIND_NAMES
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import locate, write_whole
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import Word, lines_of, read_lines, split_words
from gpt1_jax.errors import UserError
from gpt1_jax.inference.surprisal import word_windows
from gpt1_jax.model.costs import describe_model
from gpt1_jax.parallel import devices
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import locate_run
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.outputs import check_output_file, say_wrote
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.runs.saved_steps import each_step, open_steps
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.studies.explore.config import ExploreConfig
from gpt1_jax.studies.explore.inside import joined, look_inside
from gpt1_jax.studies.explore.page import ExploredRun, ExploredStep, make_page

MOST_WORDS = 1000
_READING = dataclasses.replace(DEFAULT_WORDS, context="text")


def run(config: ExploreConfig, workdir: str) -> None:
    """Writes a page on one or several runs.

    Args:
      config: the runs, the steps and the text.
      workdir: must be empty; the page goes to `config.output`.

    Raises:
      FileNotFoundError, UserError: if there is no such run or text, or the text is
        blank or too long.
    """
    config.check_workdir(workdir)
    output = locate(config.output)
    check_output_file(output, "--config.output=FILE")
    lines = _lines(config)
    opened = [open_steps(folder, config.step) for folder in config.folders]
    devices.configure("default", compilation_cache(config.compilation_cache_dir))
    total = sum(len(steps) for _, steps in opened)
    with Bar("read", total, "step") as bar:
        runs = [
            _explore(name, origin, steps, lines, bar)
            for name, (origin, steps) in zip(_names(config), opened, strict=True)
        ]
    page, attention = make_page(lines, runs)
    write_whole(output, page)
    if attention:
        say(attention)
    say_wrote(config.output)


def _lines(config: ExploreConfig) -> list[Word]:
    """The lines of the text; refuses one that is too long for a page."""
    given = lines_of(config.text, "config.text")
    lines = list(read_lines(config.input) if config.input else given)
    num_words = sum(len(line.word.split()) for line in lines)
    if num_words > MOST_WORDS:
        name = f"config.input={config.input!r}" if config.input else "config.text"
        raise UserError(
            f"{name} has {num_words:,} words; a page shows up to {MOST_WORDS:,}. Give "
            "a part of it."
        )
    return lines


def _names(config: ExploreConfig) -> tuple[str, ...]:
    """The names of the runs' folders or, if two are the same, their paths."""
    names = tuple(locate_run(folder).name for folder in config.folders)
    return names if len(set(names)) == len(names) else config.folders


def _explore(
    name: str,
    origin: TrainedRun,
    steps: Sequence[int],
    lines: Sequence[Word],
    bar: Any,
) -> ExploredRun:
    """Looks inside a run at each step as it reads the text."""
    tokenizer = origin.tokenizer
    words = split_words(tokenizer, lines)
    windows = list(word_windows(words, _READING, origin.model, tokenizer.newline_id))
    ids, spans = joined(windows)
    model = scoring_model(origin.model_in("float32"))
    found = []
    for opened in each_step(origin, steps):
        params = jax.tree.map(jnp.asarray, opened.language_model)
        inside = look_inside(model, params, tokenizer.vocab_size, windows)
        found.append(ExploredStep(opened.step, inside))
        bar.update()
    return ExploredRun(
        name=name,
        about=(
            f"{KIND_NAMES[origin.model.kind]}: {describe_model(origin.model)}, "
            f"{tokenizer.vocab_size:,} tokens"
        ),
        spans=spans,
        ids=[int(token) for token in ids],
        spelled=lambda token: token_text(tokenizer, token),
        steps=found,
        samples=_samples(origin),
    )


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token for people: a dot follows it if it does not end a word.

    There are no dots if tokens do not mark the ends of words.
    """
    if token == tokenizer.newline_id:
        return "↵"
    text = tokenizer.decode([token])
    if not tokenizer.marks_word_ends:
        return text or "▁"
    ends_word = tokenizer.decode([token, token]) != text + text
    return (text or "▁") if ends_word or not text else f"{text}·"


def _samples(origin: TrainedRun) -> dict[int, str]:
    """The texts that a pre-training run sampled, by step."""
    records = read_metrics(origin.folder / METRICS_FILE)
    return {
        record["step"]: record["sample"]
        for record in records
        if isinstance(record.get("sample"), str)
    }
