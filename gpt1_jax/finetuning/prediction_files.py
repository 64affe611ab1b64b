"""The predictions of any task: files of them, and columns of a user's table."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.checks import is_device
from gpt1_jax.data.files import write_json_lines
from gpt1_jax.data.tables import OWN_TABLES
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
    """Writes predictions of any task as JSON lines, as `prediction_rows` makes them.

    Args:
      path: the file to write; its folder is made if it is missing.
      task, examples, predictions, probabilities, with_text: as `prediction_rows`.

    Raises:
      UserError: if a number is not finite.
    """
    rows = prediction_rows(
        task, examples, predictions, probabilities, with_text=with_text
    )
    write_json_lines(path, rows)


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
      predictions: [N] label numbers, or scores if the task has no labels; with several
        labels per example, [N, labels], whether it has each.
      probabilities: [N, labels], or None.
      with_text: whether to include the texts.
      log_probs: [N, A] of answers, nats, or None. Minus infinity stands for an answer
        that an example does not have.

    Returns:
      For each example "id" (the source's, or else the number of its row from 0),
      "subset", "text" if `with_text`, "prediction" (a label's name, a list of several,
      or a score), "label" if it is known and, if they are given, "probabilities" by
      label and "log_probs" of the answers in the order of the labels.

    Raises:
      UserError: if a number is not finite.
    """
    values = name_predictions(task, examples, predictions)
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
        line["prediction"] = value
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


def table_suffix(path: epath.Path) -> str:
    """The suffix that names the format of a table; a device gets JSON lines.

    Raises:
      UserError: if it names none.
    """
    suffix = ".jsonl" if is_device(str(path)) else path.suffix.lower()
    if suffix not in OWN_TABLES:
        raise UserError(
            f"{path} ends in {path.suffix!r}; predictions are written as "
            f"{', '.join(OWN_TABLES)}."
        )
    return suffix


def _added_columns(task: Task) -> list[str]:
    """The columns that predictions add to a table."""
    return ["prediction", *(f"P({name})" for name in task.target.labels)]


def check_added(names: Collection[Any], task: Task, where: str) -> None:
    """Refuses a table with a column that predictions would add.

    Raises:
      UserError: naming the column.
    """
    if taken := [name for name in _added_columns(task) if name in names]:
        raise UserError(
            f"{where}: there is a column {taken[0]!r} already, and predictions add one "
            "of this name; rename it."
        )


def prediction_columns(
    task: Task,
    num_rows: int,
    examples: Sequence[Example],
    predictions: np.ndarray,
    probabilities: np.ndarray,
) -> dict[str, Any]:
    """The columns that predictions add to a table, empty in rows without an example.

    Args:
      task: the task, which names the labels.
      num_rows: of the table.
      examples: those of its rows that have text, each with the number of its row.
      predictions, probabilities: as `gpt1_jax.tasks.transforms.read_outputs`.

    Returns:
      "prediction", labels or scores, a tuple of labels if there may be several; and
      for each label "P(LABEL)", floats.
    """
    answers = {
        example.number: tuple(answer) if isinstance(answer, list) else answer
        for example, answer in zip(
            examples, name_predictions(task, examples, predictions), strict=True
        )
    }
    predicted = [answers.get(number) for number in range(num_rows)]
    num_labels = len(task.target.labels)
    shares = np.full((num_rows, num_labels), np.nan)
    if num_labels:  # without, they may be of whole scores
        shares[list(answers)] = check_numbers(
            "probabilities", probabilities, examples, num_labels
        )
    return dict(zip(_added_columns(task), [predicted, *shares.T], strict=True))


def text_columns(task: Task, examples: Sequence[Example]) -> dict[str, list[Any]]:
    """The table of examples that were lines of text: a column for each text.

    Before them "id", the number of the example from 0, unless a text is called so.

    Raises:
      UserError: if predictions would add a column with the name of a text.
    """
    names = _text_names(task)
    check_added(names, task, task.title)
    texts = [_texts(task, example) for example in examples]
    columns = {name: [each.get(name) for each in texts] for name in names}
    return {"id": [str(example.number) for example in examples], **columns}


def _text_names(task: Task) -> list[str]:
    """The columns of texts and of choices, those of one column by label."""
    names = task.target.labels if len(task.inputs.choices) == 1 else task.inputs.choices
    return [*task.inputs.text, *(names if task.inputs.choices else ())]


def _texts(task: Task, example: Example) -> dict[str, str]:
    """An example's texts and choices by column."""
    texts = [*example.text, *example.choices]
    return dict(zip(_text_names(task), texts, strict=not task.inputs.fewer_choices))


def name_predictions(
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
) -> list[Any]:
    """Predictions by the names of their labels, or scores as they are.

    Raises:
      UserError: if a number is not finite.
    """
    labels = task.target.labels
    several = (len(labels),) if task.target.multilabel else ()
    values = check_numbers("predictions", predictions, examples, *several)
    found = [np.flatnonzero(row) for row in values] if several else values
    return [_label_name(task, each) for each in found]


def _label_name(task: Task, value: Any) -> str | float | list[str]:
    """The name of a label, the names of several, or a score as it is."""
    labels = task.target.labels
    if task.target.multilabel:
        return [labels[number] for number in value]
    return labels[int(value)] if labels else float(value)
