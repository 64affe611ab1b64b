"""The generation job: writes continuations of texts."""

import sys
from typing import Any

from gpt1_jax.config.generate import GenerateConfig
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import locate, write_json_lines
from gpt1_jax.data.records import cell_text, read_input, require_column
from gpt1_jax.data.text_files import STANDARD_INPUT
from gpt1_jax.errors import UserError
from gpt1_jax.inference import decoding
from gpt1_jax.inference.decoding import Continuation
from gpt1_jax.inference.generation import Generator
from gpt1_jax.parallel import devices
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import open_run, say_what_is_read
from gpt1_jax.runs.outputs import check_output_file, say_wrote


def run(config: GenerateConfig, workdir: str) -> None:
    """Prints or writes continuations of each prompt.

    Args:
      config: the model, the prompts and how to continue them.
      workdir: must be empty; text goes to standard output or to `config.output`.

    Raises:
      FileNotFoundError, UserError: if there is no such run or file, or the file holds
        no prompt.
    """
    config.check_workdir(workdir)
    output = locate(config.output)
    if config.output:
        check_output_file(output, "--config.output=FILE.jsonl", config.input)
    prompts = _prompts(config)
    origin = open_run(config.init_from, config.step)
    say_what_is_read(origin)
    devices.configure("default", compilation_cache(config.compilation_cache_dir))
    model = origin.model_in(config.dtype)
    params = decoding.prepare(model, origin.language_model)
    alone = config.num_return_sequences == 1 and not config.output
    streamed = alone and (prompts is None or len(prompts) == 1)
    generator = Generator(
        model,
        origin.tokenizer,
        config.sampling,
        batch_size=config.batch_size,
        round_size=1 if streamed else 0,
    )
    if prompts is None:
        _converse(generator, params, config)
        return
    if generator.outgrows(prompts):
        say(
            f"The context of {model.max_seq_len} tokens slides: text that outgrows "
            "it continues from its newest half."
        )
    if streamed:
        _stream(generator, params, prompts[0], config.seed)
        return
    continuations = generator.several(
        params, prompts, config.num_return_sequences, config.seed
    )
    if config.output:
        records = (_record(each, config.log_probs) for each in continuations)
        write_json_lines(output, records)
        say_wrote(config.output)
    else:
        for each in continuations:
            say(f"{each.prompt}{generator.separator}{each.text}\n")


def _prompts(config: GenerateConfig) -> list[str] | None:
    """The texts to continue; None if the user is to be asked at the terminal."""
    if config.input:
        return read_prompts(config.input)
    if config.prompt:
        return [config.prompt]
    return None if sys.stdin.isatty() else read_prompts(STANDARD_INPUT)


def read_prompts(source: str) -> list[str]:
    """Reads prompts: plain lines, or rows with a column "prompt".

    Args:
      source: a file, or "-" for standard input; see `read_input`.

    Raises:
      FileNotFoundError: if the file cannot be read.
      UserError: naming the line that holds no prompt; or if there are none.
    """
    prompts = []
    for where, row in read_input(source, "prompt"):
        cell = row if isinstance(row, str) else require_column(row, "prompt", where)
        if cell is None:
            raise UserError(f"{where}: the column 'prompt' holds no text.")
        prompts.append(cell_text(cell, "prompt", where))
    return prompts


def _converse(generator: Generator, params: Any, config: GenerateConfig) -> None:
    """Continues what is typed, until the end of the input."""
    say("Type a text for the model to continue; Ctrl-D ends.")
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            say("")
            return
        _stream(generator, params, prompt, config.seed)


def _stream(generator: Generator, params: Any, prompt: str, seed: int) -> None:
    generator.check_memory([prompt])
    say(prompt, end=generator.separator)
    for words in generator.stream(params, prompt, seed):
        say(words, end="")
    say("")


def _record(continuation: Continuation, with_log_probs: bool) -> dict[str, Any]:
    """A continuation as a JSON line."""
    names = ["prompt", "text", "tokens", "log_probs", "seed", "finish_reason"]
    if not with_log_probs:
        names.remove("log_probs")
    return {name: getattr(continuation, name) for name in names}
