"""The job of labelling new text with a fine-tuned model."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config import FinetuneConfig, PredictConfig, from_config_dict
from gpt1_jax.evaluation import submission
from gpt1_jax.parallel.mesh import data_parallelism, make_mesh
from gpt1_jax.tasks.selection import find_task
from gpt1_jax.tasks.task import Example, Record, Task
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
    task = dataclasses.replace(find_task(trained), drop_unlabelled=False)
    lines = [config.text] if config.text else _read_lines(config.input)
    as_json = config.input.endswith(".jsonl")
    examples = list(_examples(task, lines, config.input or "config.text", as_json))
    if not examples:
        name = "text" if config.text else "input"
        raise ValueError(f"config.{name}={getattr(config, name)!r} holds no example.")
    predictions, probabilities = _predict(config, trained, task, source, examples)
    if config.output:
        submission.write_predictions(
            epath.Path(config.output),
            task,
            examples,
            predictions,
            probabilities if task.labels else None,
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
    score_loss = trained.head.score_loss
    model = transfer.finetuned_config(source)
    max_seq_len = trained.data.longest(model.max_seq_len)
    encoded = encode_examples(task, examples, source.tokenizer, max_seq_len, score_loss)
    mesh = make_mesh()
    devices = data_parallelism(mesh)
    batch_size = -(-config.batch_size // devices) * devices
    head = finetune.make_head(task, model, 0.0, score_loss)
    buckets = trained.data.seq_len_buckets
    predictor = Predictor(model, head, mesh, batch_size, buckets, max_seq_len)
    return read_outputs(task, predictor(source.params, encoded), score_loss)


def _with_tuples(values: Any) -> Any:
    """A configuration as read from JSON, whose lists are the tuples they were."""
    if isinstance(values, dict):
        return {key: _with_tuples(value) for key, value in values.items()}
    return tuple(values) if isinstance(values, list) else values


def _read_lines(path: str) -> Iterable[str]:
    if path == "-":
        return sys.stdin
    try:
        text = epath.Path(path).expanduser().read_bytes().decode("utf-8-sig")
        return text.split("\n")  # a text may hold other line breaks
    except UnicodeDecodeError as error:
        message = f"config.input={path!r} is not UTF-8 text: {error}."
        raise ValueError(message) from error
    except OSError as error:
        raise FileNotFoundError(
            f"config.input={path!r} cannot be read ({error.strerror}); name a file of "
            "examples, one a line, or - for standard input."
        ) from error


def _examples(
    task: Task, lines: Iterable[str], where: str, as_json: bool
) -> Iterator[Example]:
    """One example a line that is not blank."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{where}:{number}"
        columns = _json(line, place) if as_json else _cells(task, line, place)
        columns.pop(task.label, None)
        example = task.example(Record(columns, place), needs_label=False)
        if example is not None:
            yield example


def _json(line: str, where: str) -> dict[str, Any]:
    try:
        columns = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: this is not JSON: {error}.") from error
    if not isinstance(columns, dict):
        raise ValueError(f"{where}: this is not a JSON object: {line!r:.60}.")
    return columns


def _cells(task: Task, line: str, where: str) -> dict[str, Any]:
    """Texts separated by tabs: the task's columns in order, then its choices."""
    cells = line.rstrip("\r\n").split("\t")
    choices = len(task.labels) if task.choices else 0
    names = [*task.text, *task.choices]
    if len(cells) != len(task.text) + choices:
        raise ValueError(
            f"{where}: there are {len(cells)} texts; {task.title} needs "
            f"{len(task.text) + choices}, separated by tabs: {', '.join(names)}."
        )
    if len(task.choices) == 1:
        return dict(zip(names, [*cells[:-choices], cells[-choices:]], strict=True))
    return dict(zip(names, cells, strict=True))


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
