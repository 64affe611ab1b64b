"""Writes the predictions of any task, as JSON lines or a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.checks import is_device
from gpt1_jax.data.files import write_json_lines, write_whole
from gpt1_jax.data.tables import format_table
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.metrics import check_numbers
from gpt1_jax.tasks.task import Example, Task


def write_predictions(
    path: epath.Path,
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
    probabilities: np.ndarray | None = None,
    *,
    with_text: bool = False,
) -> None:
    """Writes predictions of any task, in the format of the file's suffix.

    A `.jsonl` file holds the objects that `prediction_rows` makes. A `.tsv` or `.csv`
    file has a header and the same in columns, one for each text and probability. A
    `.tsv` file has no quotes, and a space for each tab or line end in a text.

    Args:
      path: the file to write; its folder is made if it is missing.
      task, examples, predictions, probabilities, with_text: as `prediction_rows`.

    Raises:
      UserError: if a number is not finite, the suffix is unknown, or two columns of a
        table would have one name.
    """
    check_format(path)
    if with_text:
        check_columns(path, task)
    rows = prediction_rows(
        task, examples, predictions, probabilities, with_text=with_text
    )
    if (suffix := _suffix(path)) == ".jsonl":
        write_json_lines(path, rows)
    else:
        write_whole(path, format_table(_table(rows), suffix))


def prediction_rows(
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
    probabilities: np.ndarray | None = None,
    *,
    with_text: bool = False,
    log_probs: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """The predictions of any task, ready for JSON.

    Args:
      task: the task, which names texts and labels.
      examples: the N examples.
      predictions: [N] label numbers, or scores if the task has no labels.
      probabilities: [N, labels], or None.
      with_text: whether to include the texts.
      log_probs: [N, A] of answers, nats, or None. Minus infinity stands for an answer
        that an example does not have.

    Returns:
      For each example "id" (the source's, or else the number of its row from 0),
      "subset", "text" if `with_text`, "prediction" (a label's name, or a score),
      "label" if it is known and, if they are given, "probabilities" by label and
      "log_probs" of the answers in the order of the labels.

    Raises:
      UserError: if a number is not finite.
    """
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
    return lines


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


def _label_name(task: Task, value: Any) -> str | float:
    """The name of a label, or a score as it is."""
    return task.target.labels[int(value)] if task.target.labels else float(value)
