"""Files of predictions for the GLUE leaderboard.

Only the main process calls these functions.
"""

import io
import itertools
import logging
import zipfile
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath

from gpt1_jax.data.files import write_whole
from gpt1_jax.data.tables import format_table
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.results import Prediction, predictions_file, read_predictions
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example, GlueFile, Task

_FOLDER = "glue"  # in the folder of a run


def write_glue(
    run: epath.Path,
    task: Task,
    examples: Sequence[Example],
    predictions: np.ndarray | Sequence[float],
) -> list[epath.Path]:
    """Writes the files that gluebenchmark.com takes for a task to the folder `glue`.

    After a header, each line holds `index<TAB>prediction`. They are sorted by index,
    the example's number in the test file, because TensorFlow Datasets shuffles. If any
    id is not a number, the examples of that file are taken to be in order. A file that
    does not cover exactly the test split is written with a warning, as the leaderboard
    refuses it.

    Args:
      run: the folder of the run.
      task: the task.
      examples: the N examples.
      predictions: [N] finite label numbers, or scores if the task has no labels. Scores
        are clipped to the task's range and written with 3 decimals.

    Returns:
      The files written: one for each subset that has examples.

    Raises:
      UserError: if the task or a subset is not part of GLUE, or an index occurs twice.
    """
    by_subset: dict[str, list[tuple[Example, float]]] = {}
    for example, value in zip(examples, predictions, strict=True):
        if example.subset not in task.glue.files:
            raise UserError(
                f"{example.where}: GLUE has no subset {example.subset!r} of "
                f"{task.title}; it has {list(task.glue.files) or 'none'}."
            )
        by_subset.setdefault(example.subset, []).append((example, value))
    written = []
    for subset, pairs in by_subset.items():
        of_subset, values = zip(*pairs, strict=True)
        file = task.glue.files[subset]
        path = run / _FOLDER / file.name
        _warn_if_short(path, len(pairs), file.rows)
        write_whole(path, _table(task, _indices(of_subset), values))
        written.append(path)
    return written


def write_glue_zip(runs: Iterable[epath.Path], path: epath.Path) -> None:
    """Packs the files of `write_glue` into one zip, ready to send to the leaderboard.

    A warning names the files that the leaderboard wants and no run has. Other files
    are left out.

    Args:
      runs: the folders of the runs.
      path: the zip file to write.

    Raises:
      UserError: if two runs have the same file, or none has any; or if a file does not
        hold the predictions of its run.
    """
    wanted = {
        file.name: (task, subset, file)
        for task in TASKS.values()
        for subset, file in task.glue.files.items()
    }
    found: dict[str, epath.Path] = {}
    for run, name in itertools.product(runs, wanted):
        if not (run / _FOLDER / name).exists():
            continue
        if name in found:
            raise UserError(
                f"{found[name]} and {run} both hold predictions for {name}; choose "
                "one run of each task."
            )
        found[name] = run
    if not found:
        raise UserError(f"There are no GLUE files to pack into {path}.")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(found):
            content = _read_checked(found[name], *wanted[name])
            # Without timestamps, the same files make the same zip.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    if missing := ", ".join(name for name in wanted if name not in found):
        wants = f"the leaderboard wants all {len(wanted)} files."
        logging.warning("%s lacks %s; %s", path, missing, wants)
    write_whole(path, packed.getvalue())


def _read_checked(run: epath.Path, task: Task, subset: str, file: GlueFile) -> bytes:
    """The content of a file, if it holds the predictions of its run.

    Raises:
      UserError: if either was changed or cut since.
    """
    path = run / _FOLDER / file.name
    found = read_predictions(run, "test", task)
    made = [each for each in found if each.subset == subset]
    values = [each.value for each in made]
    content = path.read_bytes()
    # Where examples have no ids, their predictions are numbered through all subsets.
    numbered = (_indices(made), range(len(values)))
    if all(content != _table(task, each, values).encode() for each in numbered):
        raise UserError(
            f"{path} and {predictions_file(run, 'test')} do not hold the same "
            "predictions: one of them was changed or cut. Put back a sound copy, or "
            f"remove {run / RESULTS_FILE}, and the same command makes both again."
        )
    _warn_if_short(path, len(values), file.rows)
    return content


def _table(task: Task, indices: Iterable[int], values: Iterable[float]) -> str:
    """The content of a file, sorted by index."""
    pairs = sorted(zip(indices, values, strict=True))
    rows = [{"index": n, "prediction": _glue_prediction(task, v)} for n, v in pairs]
    return format_table(rows, ".tsv")


def _glue_prediction(task: Task, value: float) -> str:
    if task.target.score_range:  # the leaderboard refuses scores outside
        return f"{np.clip(value, *task.target.score_range):.3f}"
    return task.target.labels[int(value)] if task.glue.takes_names else str(int(value))


def _warn_if_short(path: epath.Path, rows: int, wanted: int) -> None:
    if rows != wanted:
        message = "%s holds %d predictions, and the leaderboard wants all %d."
        logging.warning(message, path, rows, wanted)


def _indices(examples: Sequence[Example | Prediction]) -> list[int]:
    """The numbers of examples in the test file."""
    ids = [example.id for example in examples]
    if not all(each.isascii() and each.isdigit() for each in ids):
        return list(range(len(ids)))
    first: dict[int, Example | Prediction] = {}
    for number, example in zip(map(int, ids), examples, strict=True):
        if number in first:
            raise UserError(
                f"{example.where}: the index {number} is already that of "
                f"{first[number].where}; a submission needs each index once."
            )
        first[number] = example
    return list(first)
