"""Labels new examples with a fine-tuned model; writes the predictions of any task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.checks import is_device
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.data.files import format_json, write_whole
from gpt1_jax.data.tables import format_table
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.scores import Predictor, make_head
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.tasks.batches import padded_lengths
from gpt1_jax.tasks.examples import describe_long_examples
from gpt1_jax.tasks.metrics import check_numbers
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples, read_outputs


def task_of(run: TrainedRun) -> Task:
    """The task that a run was fine-tuned on.

    Raises:
      UserError: if it was not fine-tuned.
    """
    if not isinstance(run.config, FinetuneConfig):
        raise UserError(
            f"{run.folder} is a run of the job {run.config.job!r}; labels need a "
            "fine-tuned one, such as runs/finetune/TASK."
        )
    return find_task(run.config)


def predict_examples(
    run: TrainedRun,
    params: Params,
    task: Task,
    examples: Sequence[Example],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The labels or scores of examples, and their probabilities.

    Args:
      run: the fine-tuned run.
      params: its parameters, those of the head included.
      task: its task.
      examples: those to label.
      batch_size: how many to compute together; rounded up to fill all devices.

    Returns:
      As `gpt1_jax.tasks.transforms.read_outputs`.

    Raises:
      UserError: if an example is too long, or a batch does not fit in memory.
    """
    seq_lens = padded_lengths(run.config.data, run.model.max_seq_len)
    encoded = encode_examples(task, list(examples), run.tokenizer, seq_lens[-1])
    if long := describe_long_examples(task, {"new": encoded}, seq_lens[-1]):
        say(long, beside_output=True)
    mesh = make_mesh()
    unit = mesh.size
    batch_size = -(-batch_size // unit) * unit
    head = make_head(task, 0.0, run.tokenizer.vocab_size)
    model = scoring_model(run.model)
    predict = Predictor(model, head, mesh, batch_size, seq_lens)
    predict.check_memory("config.batch_size", encoded)
    return read_outputs(task, predict(params, encoded))


# --- files ------------------------------------------------------------------------


def write_predictions(
    path: epath.Path,
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
    probabilities: np.ndarray | None = None,
    *,
    with_text: bool = False,
    log_probs: np.ndarray | None = None,
) -> None:
    """Writes predictions of any task, in the format of the file's suffix.

    For each example, a `.jsonl` file holds "id" (the source's, or else the number of
    its row from 0), "subset", "text" if `with_text`, "prediction" (a label's name, or a
    score), "label" if it is known and, if they are given, "probabilities" by label and
    "log_probs" of the answers in the order of the labels. A `.tsv` or `.csv` file has a
    header and the same in columns, one for each text and probability. A `.tsv` file has
    no quotes, and a space for each tab or line end in a text.

    Args:
      path: the file to write; its folder is made if it is missing.
      task: the task, which names texts and labels.
      examples: the N examples.
      predictions: [N] label numbers, or scores if the task has no labels.
      probabilities: [N, labels], or None.
      with_text: whether to include the texts.
      log_probs: [N, A], nats, for a `.jsonl` file; or None. Minus infinity stands for
        an answer that an example does not have.

    Raises:
      UserError: if a number is not finite, the suffix is unknown, or two columns of a
        table would have one name.
    """
    check_format(path)
    if with_text:
        check_columns(path, task)
    values = check_numbers("predictions", predictions, examples)
    if probabilities is not None:
        num_labels = len(task.target.labels)
        check_numbers("probabilities", probabilities, examples, num_labels)
    lines = []
    for number, (example, value) in enumerate(zip(examples, values, strict=True)):
        line: dict[str, Any] = {
            "id": example.id or str(example.number),
            "subset": example.subset,
        }
        if with_text:
            line["text"] = _texts(task, example)
        line["prediction"] = _label_name(task, value)
        if example.label is not None:
            line["label"] = _label_name(task, example.label)
        if probabilities is not None:
            line["probabilities"] = dict(
                zip(task.target.labels, map(float, probabilities[number]), strict=True)
            )
        if log_probs is not None:
            row = log_probs[number]
            line["log_probs"] = row[np.isfinite(row)].tolist()
        lines.append(line)
    if (suffix := _suffix(path)) == ".jsonl":
        text = "".join(format_json(line, ensure_ascii=False) + "\n" for line in lines)
    else:
        text = format_table(_table(lines), suffix)
    write_whole(path, text)


_SUFFIXES = (".jsonl", ".tsv", ".csv")


def _suffix(path: epath.Path) -> str:
    """The suffix that names the format; a device gets JSON lines."""
    return ".jsonl" if is_device(str(path)) else path.suffix.lower()


def check_format(path: epath.Path) -> None:
    """Refuses a file for predictions whose suffix names no format."""
    if _suffix(path) not in _SUFFIXES:
        raise UserError(
            f"{path} ends in {path.suffix!r}; predictions are written as "
            f"{', '.join(_SUFFIXES)}."
        )


def check_columns(path: epath.Path, task: Task) -> None:
    """Refuses a table that repeats the texts, if one is named like another column.

    Raises:
      UserError: naming the column.
    """
    if _suffix(path) == ".jsonl":  # which keeps the texts apart
        return
    probabilities = (f"P({name})" for name in task.target.labels)
    names = ["id", "subset", *_text_names(task), "prediction", "label", *probabilities]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(
            f"{path} would have two columns named {twice!r}, one of them a text of "
            f"{task.title}; write a .jsonl file, which keeps the texts apart."
        )


def _text_names(task: Task) -> list[str]:
    """The columns of texts and of choices, those of one column by label."""
    names = task.target.labels if len(task.inputs.choices) == 1 else task.inputs.choices
    return [*task.inputs.text, *(names if task.inputs.choices else ())]


def _texts(task: Task, example: Example) -> dict[str, str]:
    """An example's texts and choices by column."""
    texts = [*example.text, *example.choices]
    return dict(zip(_text_names(task), texts, strict=not task.inputs.fewer_choices))


def _table(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The lines as rows of the same columns; each text and probability gets its own."""
    rows = []
    for line in lines:
        row: dict[str, str] = {}
        for key, value in line.items():
            if key == "text":
                row.update(value)
            elif key == "probabilities":
                row.update({f"P({name})": str(part) for name, part in value.items()})
            else:
                row[key] = str(value)
        rows.append(row)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "") for name in columns} for row in rows]


def _label_name(task: Task, value: float) -> str | float:
    """The name of a label, or a score as it is."""
    return task.target.labels[int(value)] if task.target.labels else float(value)
