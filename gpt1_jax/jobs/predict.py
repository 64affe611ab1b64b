"""The prediction job: labels new text with a fine-tuned model."""

from collections.abc import Iterator

import numpy as np

from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.models import PredictConfig
from gpt1_jax.data.files import locate
from gpt1_jax.data.tables import plain_lines, read_input, split_lines
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import submission
from gpt1_jax.finetuning.scores import Predictor, make_head
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import data_parallelism, make_mesh
from gpt1_jax.runs.console import say, say_wrote
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.runs.outputs import check_output_file
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.tasks.batches import padded_lengths
from gpt1_jax.tasks.examples import check_new_examples, describe_long_examples
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples, read_outputs


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
        submission.check_format(output)
        check_output_file(output, "--config.output=FILE")
    origin = open_run(config.init_from, config.step)
    say_what_is_read(origin)
    trained = origin.config
    if not isinstance(trained, FinetuneConfig):
        raise UserError(
            f"{origin.folder} is a run of the job {trained.job!r}; labels need a "
            "fine-tuned one, --config.init_from=runs/finetune/TASK."
        )
    devices.configure(trained.train.matmul_precision, trained.train.compilation_cache)
    if not (origin.folder / RESULTS_FILE).exists():
        say(
            f"WARNING: the run in {origin.folder} is not finished; a better step may "
            "follow.",
            beside_output=True,
        )
    task = find_task(trained)
    if config.output:
        submission.check_columns(output, task)
    if config.text:
        lines = plain_lines(split_lines(config.text), "config.text")
        examples = check_new_examples(task, lines)
    else:
        examples = check_new_examples(task, read_input(config.input, "example"))
    if not examples:
        raise UserError(f"config.text={config.text!r} holds no examples.")
    predictions, probabilities = _predict(config, origin, task, examples)
    if config.output:
        submission.write_predictions(
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


def _predict(
    config: PredictConfig, origin: TrainedRun, task: Task, examples: list[Example]
) -> tuple[np.ndarray, np.ndarray]:
    """The labels or scores of examples, and their probabilities."""
    seq_lens = padded_lengths(origin.config.data, origin.model.max_seq_len)
    encoded = encode_examples(task, examples, origin.tokenizer, seq_lens[-1])
    if long := describe_long_examples(task, {"new": encoded}, seq_lens[-1]):
        say(long, beside_output=True)
    mesh = make_mesh()
    unit = data_parallelism(mesh)
    batch_size = -(-config.batch_size // unit) * unit
    head = make_head(task, 0.0, origin.tokenizer.vocab_size)
    model = scoring_model(origin.model, batch_size // unit * seq_lens[-1])
    predict = Predictor(model, head, mesh, batch_size, seq_lens)
    predict.check_memory("config.batch_size", encoded)
    return read_outputs(task, predict(origin.params, encoded))


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
