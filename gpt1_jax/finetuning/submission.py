"""Files of predictions: for the GLUE leaderboard, and for people.

Only the main process calls these functions.
"""

import io
import logging
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.checks import is_device
from gpt1_jax.data.files import format_json, write_whole
from gpt1_jax.data.tables import format_table
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example, Task


def write_glue(
    folder: epath.Path,
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
) -> list[epath.Path]:
    """Writes the files that gluebenchmark.com takes for a task.

    After a header, each line holds `index<TAB>prediction`. They are sorted by index,
    the example's number in the test file, because TensorFlow Datasets shuffles. If any
    id is not a number, the examples of that file are taken to be in order. A file that
    does not cover exactly the test split is written with a warning, as the leaderboard
    refuses it.

    Args:
      folder: the folder to write to; made if it is missing.
      task: a task with `Task.glue.files`.
      examples: the N examples.
      predictions: [N] label numbers, or scores if the task has no labels. Scores are
        clipped to the task's range and written with 3 decimals.

    Returns:
      The files written: one for each subset that has examples.

    Raises:
      UserError: if the task or a subset is not part of GLUE, an index occurs twice, or
        a prediction is not finite.
    """
    if not task.glue.files:
        names = ", ".join(name for name, each in TASKS.items() if each.glue.files)
        raise UserError(
            f"{task.title} is not a task of the GLUE leaderboard; those are {names}."
        )
    values = _check_predictions(task, examples, predictions)
    by_subset: dict[str, list[tuple[Example, str]]] = {}
    for example, value in zip(examples, values, strict=True):
        if example.subset not in task.glue.files:
            raise UserError(
                f"{example.where}: GLUE has no subset {example.subset!r} of "
                f"{task.title}; it has {', '.join(map(repr, task.glue.files))}."
            )
        pair = (example, _glue_prediction(task, value))
        by_subset.setdefault(example.subset, []).append(pair)
    written = []
    for subset, pairs in by_subset.items():
        indices = _indices([example for example, _ in pairs])
        ordered = sorted(zip(indices, (text for _, text in pairs), strict=True))
        path = folder / task.glue.files[subset].name
        _warn_if_short(path, len(ordered), task.glue.files[subset].rows)
        table = [{"index": index, "prediction": text} for index, text in ordered]
        write_whole(path, format_table(table, ".tsv"))
        written.append(path)
    return written


def write_glue_zip(folders: Iterable[epath.Path], path: epath.Path) -> None:
    """Packs the files of `write_glue` into one zip, ready to send to the leaderboard.

    A warning names the files that the leaderboard wants and no folder has. Other files
    are left out.

    Args:
      folders: the folders that hold the files.
      path: the zip file to write.

    Raises:
      UserError: if a file is in two folders, or no folder has any.
    """
    sizes = {
        f.name: f.rows for task in TASKS.values() for f in task.glue.files.values()
    }
    found: dict[str, epath.Path] = {}
    for folder in folders:
        for name in sizes:
            if not (folder / name).exists():
                continue
            if name in found:
                raise UserError(
                    f"{found[name]} and {folder / name} are both predictions for "
                    f"{name}; choose one run of each task."
                )
            found[name] = folder / name
    if not found:
        raise UserError(f"There are no GLUE files to pack into {path}.")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(found):
            content = found[name].read_text()
            _warn_if_short(found[name], content.count("\n") - 1, sizes[name])
            # Without timestamps, the same files make the same zip.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    if missing := [name for name in sizes if name not in found]:
        logging.warning(
            "%s lacks %s; the leaderboard wants all %d files.",
            path,
            ", ".join(missing),
            len(sizes),
        )
    write_whole(path, packed.getvalue())


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
    values = _check_predictions(task, examples, predictions)
    if probabilities is not None:
        _check_probabilities(task, probabilities, len(examples))
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


def _glue_prediction(task: Task, value: float) -> str:
    if task.target.score_range:  # the leaderboard refuses scores outside
        return f"{np.clip(value, *task.target.score_range):.3f}"
    return task.target.labels[int(value)] if task.glue.takes_names else str(int(value))


def _warn_if_short(path: epath.Path, rows: int, wanted: int) -> None:
    if rows != wanted:
        logging.warning(
            "%s holds %d predictions, and the leaderboard wants all %d.",
            path,
            rows,
            wanted,
        )


def _indices(examples: Sequence[Example]) -> list[int]:
    """The numbers of examples in the test file."""
    ids = [example.id for example in examples]
    if not all(each.isascii() and each.isdigit() for each in ids):
        return list(range(len(ids)))
    first: dict[int, Example] = {}
    for number, example in zip(map(int, ids), examples, strict=True):
        if number in first:
            raise UserError(
                f"{example.where}: the index {number} is already that of "
                f"{first[number].where}; a submission needs each index once."
            )
        first[number] = example
    return list(first)


def _check_predictions(
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
) -> np.ndarray:
    values = np.asarray(predictions)
    if values.shape != (len(examples),):
        raise ValueError(
            f"{task.title}: predictions of shape {values.shape} for {len(examples)} "
            "examples."
        )
    broken = np.flatnonzero(~np.isfinite(values))
    if broken.size:
        raise UserError(
            f"{examples[broken[0]].where}: the prediction {values[broken[0]]} is not a "
            "finite number."
        )
    return values


def _check_probabilities(task: Task, probabilities: np.ndarray, count: int) -> None:
    shape = np.shape(probabilities)
    if shape != (count, len(task.target.labels)):
        raise ValueError(
            f"{task.title}: probabilities of shape {shape} for {count} examples and "
            f"{len(task.target.labels)} labels."
        )
    if not np.isfinite(probabilities).all():
        raise UserError(f"{task.title}: a probability is not a finite number.")
