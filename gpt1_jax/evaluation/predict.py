"""The job of labelling new text with a fine-tuned model."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config import FinetuneConfig, PredictConfig, from_config_dict
from gpt1_jax.evaluation import submission
from gpt1_jax.parallel import mesh as parallel
from gpt1_jax.tasks.batches import Padding
from gpt1_jax.tasks.new_text import examples_of_lines, read_examples
from gpt1_jax.tasks.selection import find_task
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples, read_outputs
from gpt1_jax.training import finetune, run_folder, transfer
from gpt1_jax.training.checkpoint import BEST
from gpt1_jax.training.scoring import Predictor


def run(config: PredictConfig, workdir: str) -> None:
    """Prints, or writes, label and probabilities of each example.

    Args:
      config: the model and the text.
      workdir: not used; nothing is left behind.

    Raises:
      FileNotFoundError, ValueError: if there is no such run or file, or a line does
        not hold the texts that the task needs.
    """
    del workdir
    source = transfer.read_run(config.init_from, BEST)
    if source.config["job"] != "finetune":
        raise ValueError(
            f"{source.folder} is a run of the job {source.config['job']!r}; labels "
            "come from a fine-tuned one, config.init_from=runs/finetune/TASK."
        )
    trained: FinetuneConfig = from_config_dict(_with_tuples(source.config))
    run_folder.configure_jax(trained.train)
    task = find_task(trained)
    if config.output:
        submission.check_format(epath.Path(config.output))
    if config.text:
        examples = examples_of_lines(task, config.text.split("\n"), "config.text")
    else:
        examples = read_examples(task, config.input)
    if not examples:
        raise ValueError(f"config.text={config.text!r} holds no example.")
    predictions, probabilities = _predict(config, trained, task, source, examples)
    if config.output:
        submission.write_predictions(
            epath.Path(config.output),
            task,
            examples,
            predictions,
            probabilities if task.labels else None,
            with_text=True,
        )
    else:
        for row in _table(task, examples, predictions, probabilities):
            print("\t".join(row))


def _predict(
    config: PredictConfig,
    trained: FinetuneConfig,
    task: Task,
    source: transfer.TrainedRun,
    examples: list[Example],
) -> tuple[np.ndarray, np.ndarray]:
    """Labels or scores, and probabilities, of examples."""
    model = transfer.finetuned_config(source)
    padding = Padding.of(trained.data, model.max_seq_len)
    encoded = encode_examples(task, examples, source.tokenizer, padding.longest)
    mesh = parallel.make_mesh()
    batch_size = -(-config.batch_size // mesh.size) * mesh.size
    head = finetune.make_head(task, 0.0)
    predictor = Predictor(model, head, mesh, batch_size, padding)
    return read_outputs(task, predictor(source.params, encoded))


def _with_tuples(values: Any) -> Any:
    """A configuration as read from JSON, whose lists are the tuples they were."""
    if isinstance(values, dict):
        return {key: _with_tuples(value) for key, value in values.items()}
    return tuple(values) if isinstance(values, list) else values


def _table(
    task: Task,
    examples: list[Example],
    predictions: np.ndarray,
    probabilities: np.ndarray,
) -> Iterator[list[str]]:
    """Lines for people: what was predicted, how surely, of which text."""
    names = list(task.labels)
    yield ["label" if names else "score", *(f"P({name})" for name in names), "text"]
    for example, prediction, row in zip(
        examples, predictions, probabilities, strict=True
    ):
        shown = names[int(prediction)] if names else f"{prediction:.3f}"
        percent = [f"{p:.4f}" for p in row] if names else []
        text = " | ".join(example.text)
        yield [shown, *percent, " ".join(text.split())]
