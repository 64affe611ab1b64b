"""Files of predictions: for the GLUE leaderboard, and for people.

Only the process that writes calls these functions.
"""

import csv
import io
import json
import logging
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.checks import is_device
from gpt1_jax.data.files import write_whole
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example, Task

FORMATS = (".jsonl", ".tsv", ".csv")  # of files for people


def write_glue(
    folder: epath.Path,
    task: Task,
    predictions: np.ndarray | Sequence[float],
    examples: Sequence[Example],
) -> list[epath.Path]:
    """Writes the files that gluebenchmark.com takes for a task.

    A header, then lines of `index<TAB>prediction` sorted by index, the example's number
    in the test file, because TensorFlow Datasets shuffles. If any id in a file is not a
    number, its examples are taken to be in order. A file that does not cover exactly
    the test split is written with a warning, as the leaderboard refuses it.

    Args:
      folder: the folder to write to; made if it is missing.
      task: a task with `Task.glue`.
      predictions: [N] label numbers, or scores if the task has no labels; these
        are clipped to the task's range and written with 3 decimals.
      examples: the N examples.

    Returns:
      The files written: one for each subset that has examples.

    Raises:
      ValueError: if the task or a subset is not part of GLUE, lengths differ, an index
        occurs twice, or a prediction is not finite.
    """
    if not task.glue:
        names = ", ".join(name for name, each in TASKS.items() if each.glue)
        raise UserError(
            f"{task.title} is not a task of the GLUE leaderboard; those are {names}."
        )
    found = _check(task, predictions, examples)
    rows: dict[str, list[tuple[Example, str]]] = {}
    for example, value in zip(examples, found, strict=True):
        if example.subset not in task.glue:
            raise UserError(
                f"{example.where}: GLUE has no subset {example.subset!r} of "
                f"{task.title}; it has {', '.join(map(repr, task.glue))}."
            )
        rows.setdefault(example.subset, []).append((example, _glue(task, value)))
    written = []
    for subset, pairs in rows.items():
        indices = _indices([example for example, _ in pairs])
        ordered = sorted(zip(indices, (text for _, text in pairs), strict=True))
        path = folder / task.glue[subset].name
        _warn_if_short(path, len(ordered), task.glue[subset].rows)
        lines = (f"{index}\t{text}" for index, text in ordered)
        _write(path, ["index\tprediction", *lines])
        written.append(path)
    return written


def write_glue_zip(folders: Iterable[epath.Path], path: epath.Path) -> None:
    """Packs the files of `write_glue` into one zip, ready to send to the leaderboard.

    Files that the leaderboard wants and that are in none of the folders are named in a
    warning; files that it does not know are left out.

    Args:
      folders: the folders that hold the files.
      path: the zip file to write.

    Raises:
      ValueError: if a file is in two folders, or no folder has any.
    """
    sizes = {f.name: f.rows for task in TASKS.values() for f in task.glue.values()}
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

    For each example, a `.jsonl` file holds "id" (the source's, or else its number from
    0), "subset", "text" if asked for, "prediction" (a label's name, or a score),
    "label" if it is known, "probabilities" by label and "log_probs" of the answers in
    the order of the labels, if they are given. A `.tsv` or `.csv` file has a header and
    the same in columns, one for each text and probability.

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
      ValueError: if lengths differ, a number is not finite, the suffix is unknown, or
        two columns of a table would have one name.
    """
    check_format(path)
    if with_text:
        check_columns(path, task)
    found = _check(task, predictions, examples)
    if probabilities is not None:
        _check_probabilities(task, probabilities, len(examples))
    lines = []
    for number, (example, value) in enumerate(zip(examples, found, strict=True)):
        line: dict[str, Any] = {
            "id": example.id or str(number),
            "subset": example.subset,
        }
        if with_text:
            line["text"] = _texts(task, example)
        line["prediction"] = _shown(task, value)
        if example.label is not None:
            line["label"] = _shown(task, example.label)
        if probabilities is not None:
            line["probabilities"] = dict(
                zip(task.labels, map(float, probabilities[number]), strict=True)
            )
        if log_probs is not None:
            row = log_probs[number]
            line["log_probs"] = row[np.isfinite(row)].tolist()
        lines.append(line)
    if (suffix := _suffix(path)) == ".jsonl":
        _write(path, (json.dumps(line, ensure_ascii=False) for line in lines))
    else:
        write_whole(path, _table(lines, "," if suffix == ".csv" else "\t"))


def _suffix(path: epath.Path) -> str:
    """The suffix that names a format; that of JSON lines for a device."""
    return ".jsonl" if is_device(str(path)) else path.suffix.lower()


def check_format(path: epath.Path) -> None:
    """Refuses a file for predictions whose suffix names no format."""
    if _suffix(path) not in FORMATS:
        raise UserError(
            f"{path} ends in {path.suffix!r}; predictions are written as "
            f"{', '.join(FORMATS)}."
        )


def check_columns(path: epath.Path, task: Task) -> None:
    """Refuses a table that repeats the texts, if one is named like another column.

    Raises:
      UserError: naming the column.
    """
    if _suffix(path) == ".jsonl":  # which keeps the texts apart
        return
    probabilities = (f"P({name})" for name in task.labels)
    names = ["id", "subset", *_text_names(task), "prediction", "label", *probabilities]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(
            f"{path} would have two columns named {twice!r}, one of them a text of "
            f"{task.title}; write a .jsonl file, which keeps the texts apart."
        )


def _text_names(task: Task) -> list[str]:
    """The columns of texts and of choices, those of one column by label."""
    names = task.labels if len(task.choices) == 1 else task.choices
    return [*task.text, *(names if task.choices else ())]


def _texts(task: Task, example: Example) -> dict[str, str]:
    """An example's texts and choices by column."""
    texts = [*example.text, *example.choices]
    return dict(zip(_text_names(task), texts, strict=True))


def _table(lines: Sequence[dict[str, Any]], delimiter: str) -> str:
    """The lines as a table with a header; nested values get columns of their own."""
    flat = [dict(_flat(line)) for line in lines]
    header = list(dict.fromkeys(name for line in flat for name in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, header, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def _flat(line: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in line.items():
        if isinstance(value, dict):
            probability = key == "probabilities"
            for name, part in value.items():
                yield (f"P({name})" if probability else name), part
        else:
            yield key, value


def _shown(task: Task, value: float) -> str | float:
    return task.labels[int(value)] if task.labels else float(value)


def _glue(task: Task, value: float) -> str:
    if task.score_range:  # the leaderboard refuses what lies outside
        return f"{np.clip(value, *task.score_range):.3f}"
    return task.labels[int(value)] if task.glue_takes_names else str(int(value))


def _warn_if_short(path: epath.Path, rows: int, wanted: int) -> None:
    if rows != wanted:
        logging.warning(
            "%s holds %d predictions, and the leaderboard wants all %d.",
            path,
            rows,
            wanted,
        )


def _indices(examples: Sequence[Example]) -> list[int]:
    ids = [example.id for example in examples]
    if not all(each.isascii() and each.isdigit() for each in ids):
        return list(range(len(ids)))
    first: dict[int, Example] = {}
    for number, example in zip(map(int, ids), examples, strict=True):
        if number in first:
            raise UserError(
                f"{example.where}: the index {number} is already that of "
                f"{first[number].where}; a submission needs each once."
            )
        first[number] = example
    return list(first)


def _check(
    task: Task,
    predictions: np.ndarray | Sequence[float],
    examples: Sequence[Example],
) -> np.ndarray:
    found = np.asarray(predictions)
    if found.shape != (len(examples),):
        raise ValueError(
            f"{task.title}: predictions of shape {found.shape} for {len(examples)} "
            "examples."
        )
    broken = np.flatnonzero(~np.isfinite(found))
    if broken.size:
        raise UserError(
            f"{examples[broken[0]].where}: the prediction {found[broken[0]]} is not a "
            "finite number."
        )
    return found


def _check_probabilities(task: Task, probabilities: np.ndarray, count: int) -> None:
    shape = np.shape(probabilities)
    if shape != (count, len(task.labels)):
        raise ValueError(
            f"{task.title}: probabilities of shape {shape} for {count} examples and "
            f"{len(task.labels)} labels."
        )
    if not np.isfinite(probabilities).all():
        raise UserError(f"{task.title}: a probability is not a finite number.")


def _write(path: epath.Path, lines: Iterable[str]) -> None:
    write_whole(path, "".join(f"{line}\n" for line in lines))
