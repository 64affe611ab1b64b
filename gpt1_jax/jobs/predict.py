"""The prediction job: labels new text with a fine-tuned model."""

from collections.abc import Iterator

import numpy as np

from gpt1_jax.config.predict import PredictConfig
from gpt1_jax.data.files import locate
from gpt1_jax.data.records import plain_lines, read_input
from gpt1_jax.data.text_files import split_lines
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.calibration import calibrated
from gpt1_jax.finetuning.prediction_files import (
    check_columns,
    check_format,
    write_predictions,
)
from gpt1_jax.finetuning.predictor import predict_examples, task_of
from gpt1_jax.finetuning.results import kept_run
from gpt1_jax.parallel import devices
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.runs.open import open_run, say_what_is_read
from gpt1_jax.runs.outputs import check_output_file, say_wrote
from gpt1_jax.tasks.examples import check_new_examples
from gpt1_jax.tasks.task import Example, Task


def run(config: PredictConfig, workdir: str) -> None:
    """Prints or writes the label and probabilities of each example.

    Args:
      config: the model and the text.
      workdir: must be empty; labels go to standard output or to `config.output`.

    Raises:
      FileNotFoundError, UserError: if there is no such run or file, or a line does not
        hold the texts that the task needs.
    """
    config.check_workdir(workdir)
    output = locate(config.output)
    if config.output:
        check_format(output)
        check_output_file(output, "--config.output=FILE", config.input)
    origin = open_run(kept_run(config.init_from), config.step)
    say_what_is_read(origin)
    origin = calibrated(origin)
    task, trained = task_of(origin), origin.config
    devices.configure(trained.train.matmul_precision, trained.train.compilation_cache)
    if not (origin.folder / RESULTS_FILE).exists():
        say(
            f"WARNING: the run in {origin.folder} is not finished; a better step may "
            "follow.",
            beside_output=True,
        )
    if config.output:
        check_columns(output, task)
    if config.text:
        lines = plain_lines(split_lines(config.text), "config.text")
        examples = check_new_examples(task, lines)
    else:
        examples = check_new_examples(task, read_input(config.input, "example"))
    if not examples:
        raise UserError(f"config.text={config.text!r} holds no examples.")
    predictions, probabilities = predict_examples(
        origin, origin.params, task, examples, config.batch_size
    )
    if config.output:
        write_predictions(
            output,
            task,
            examples,
            predictions,
            probabilities if task.target.labels else None,
            with_text=True,
        )
        say_wrote(config.output)
    else:
        for row in _table(task, examples, predictions, probabilities):
            say("\t".join(row))


def _table(
    task: Task,
    examples: list[Example],
    predictions: np.ndarray,
    probabilities: np.ndarray,
) -> Iterator[list[str]]:
    """Rows to print: the prediction, its probabilities and the text."""
    names = list(task.target.labels)
    yield ["label" if names else "score", *(f"P({name})" for name in names), "text"]
    for example, prediction, row in zip(
        examples, predictions, probabilities, strict=True
    ):
        answer = names[int(prediction)] if names else f"{prediction:.3f}"
        text = " | ".join(example.text)
        percent = [f"{p:.4f}" for p in row] if names else []
        yield [answer, *percent, " ".join(text.split())]
