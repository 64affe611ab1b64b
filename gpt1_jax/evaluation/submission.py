"""Files of predictions: for the GLUE leaderboard, and for people.

Only the process that writes calls these functions.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.data.files import write_whole
from gpt1_jax.tasks.task import Example, Task

# Our names to the leaderboard's: a file for each subset of the test split.
GLUE_FILES = {
    "cola": {"": "CoLA.tsv"},
    "sst2": {"": "SST-2.tsv"},
    "mrpc": {"": "MRPC.tsv"},
    "stsb": {"": "STS-B.tsv"},
    "qqp": {"": "QQP.tsv"},
    "mnli": {"matched": "MNLI-m.tsv", "mismatched": "MNLI-mm.tsv"},
    "qnli": {"": "QNLI.tsv"},
    "rte": {"": "RTE.tsv"},
    "wnli": {"": "WNLI.tsv"},
}
_LABELS_BY_NAME = ("mnli", "qnli", "rte")  # the others by number
_STSB_RANGE = (0.0, 5.0)  # the leaderboard refuses what lies outside


def write_glue(
    folder: epath.Path,
    task: Task,
    predictions: np.ndarray | Sequence[float],
    examples: Sequence[Example],
) -> list[epath.Path]:
    """Writes what gluebenchmark.com takes: a header, then `index<TAB>prediction`.

    Lines are in order of the index, the example's number in the test file, since
    TensorFlow Datasets shuffles. If an id of a file is no such number, its examples
    count as being in order. The leaderboard scores only files with the whole test
    split, zipped together. AX.tsv, its diagnostic set, is not written: it takes a
    model fine-tuned on MNLI and examples that are not of any task here.

    Args:
      folder: where the files go; made if it is missing.
      task: one of `GLUE_FILES`.
      predictions: [N] numbers of labels, or scores where the task has no labels;
        these are cut to [0, 5], with 3 decimals.
      examples: the N examples.

    Returns:
      The files written: one, or two for MNLI if both subsets are given.

    Raises:
      ValueError: if the task or a subset is not in GLUE, lengths differ, an index
        comes twice, or a prediction is not finite.
    """
    if task.name not in GLUE_FILES:
        raise ValueError(
            f"{task.title} is no task of the GLUE leaderboard; those are "
            f"{', '.join(GLUE_FILES)}."
        )
    files = GLUE_FILES[task.name]
    found = _check(task, predictions, examples)
    rows: dict[str, list[tuple[Example, str]]] = {}
    for example, value in zip(examples, found, strict=True):
        if example.subset not in files:
            raise ValueError(
                f"{example.where}: GLUE has no subset {example.subset!r} of "
                f"{task.title}; it has {', '.join(map(repr, files))}."
            )
        rows.setdefault(example.subset, []).append((example, _glue(task, value)))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for subset, pairs in rows.items():
        indices = _indices([example for example, _ in pairs])
        ordered = sorted(zip(indices, (text for _, text in pairs), strict=True))
        path = folder / files[subset]
        lines = (f"{index}\t{text}" for index, text in ordered)
        _write(path, ["index\tprediction", *lines])
        written.append(path)
    return written


def write_predictions(
    path: epath.Path,
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
    probabilities: np.ndarray | None = None,
) -> None:
    """Writes predictions of any task as JSON lines.

    A line holds "id" (the source's, else the number of the line from 0), "subset",
    "prediction" (a label's name, or a score), "label" if it is known (likewise), and
    "probabilities", by label, if they are given.

    Args:
      path: the file; its folder is made if it is missing.
      task: names the labels.
      examples: the N examples.
      predictions: [N] numbers of labels, or scores where the task has no labels.
      probabilities: [N, labels], or None.

    Raises:
      ValueError: if lengths differ or a number is not finite.
    """
    found = _check(task, predictions, examples)
    if probabilities is not None:
        shape = np.shape(probabilities)
        if shape != (len(examples), len(task.labels)):
            raise ValueError(
                f"{task.title}: probabilities of shape {shape} for {len(examples)} "
                f"examples and {len(task.labels)} labels."
            )
        if not np.isfinite(probabilities).all():
            raise ValueError(f"{task.title}: a probability is no finite number.")
    lines = []
    for number, (example, value) in enumerate(zip(examples, found, strict=True)):
        line: dict[str, Any] = {
            "id": example.id or str(number),
            "subset": example.subset,
            "prediction": _shown(task, value),
        }
        if example.label is not None:
            line["label"] = _shown(task, example.label)
        if probabilities is not None:
            line["probabilities"] = dict(
                zip(task.labels, map(float, probabilities[number]), strict=True)
            )
        lines.append(json.dumps(line, ensure_ascii=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, lines)


def _shown(task: Task, value: float) -> str | float:
    return task.labels[int(value)] if task.labels else float(value)


def _glue(task: Task, value: float) -> str:
    if not task.labels:
        return f"{np.clip(value, *_STSB_RANGE):.3f}"
    if task.name in _LABELS_BY_NAME:
        return task.labels[int(value)]
    return str(int(value))


def _indices(examples: Sequence[Example]) -> list[int]:
    ids = [example.id for example in examples]
    if not all(each.isascii() and each.isdigit() for each in ids):
        return list(range(len(ids)))
    first: dict[int, Example] = {}
    for number, example in zip(map(int, ids), examples, strict=True):
        if number in first:
            raise ValueError(
                f"{example.where}: the index {number} is also that of "
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
        raise ValueError(
            f"{examples[broken[0]].where}: the prediction {found[broken[0]]} is no "
            "finite number."
        )
    return found


def _write(path: epath.Path, lines: Iterable[str]) -> None:
    """Writes lines, a file whole or not at all."""
    write_whole(path, "".join(f"{line}\n" for line in lines))
