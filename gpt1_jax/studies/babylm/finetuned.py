"""Predictions of runs fine-tuned on BabyLM's data, for its submission."""

import logging
from collections.abc import Mapping

from etils import epath

from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.results import (
    Finished,
    damaged_results,
    predictions_file,
    read_finished,
    read_predictions,
)
from gpt1_jax.runs.run_folder import RunFolder, find_folders
from gpt1_jax.tasks.paper_tasks import find_task

# The tasks that BabyLM's evaluation fine-tunes on, and the examples it wants labelled.
BABYLM_SIZES: Mapping[str, int] = {
    "boolq": 1635,
    "mnli": 4908,
    "mrpc": 204,
    "multirc": 2424,
    "qqp": 20215,
    "rte": 139,
    "wsc": 52,
}


def read_babylm_predictions(*folders: epath.Path) -> dict[str, list[int]]:
    """Reads the predictions of finished runs for BabyLM's files `TASK.valid.jsonl`.

    A warning names a file that has another number of examples than BabyLM's.

    Args:
      folders: each a run folder, or a folder above some, such as a suite's.

    Returns:
      For each task, label numbers in the order of the file.

    Raises:
      UserError: naming a run that has not finished, is of another task or source,
        left out dev examples, is the second of its task, or is damaged; or a folder
        without a run.
    """
    runs: dict[str, Finished] = {}
    for folder in folders:
        finetuned = [
            place
            for place in (find_folders(folder) if folder.is_dir() else ())
            if RunFolder(place).job == "finetune"
        ]
        if not finetuned:
            raise UserError(
                f"{folder} holds no fine-tuned run; make one with configs/finetune.py:"
                "babylm, babylm_long or babylm_wsc, or name another folder."
            )
        for place in finetuned:
            run = read_finished(place)
            if run is None:
                raise UserError(
                    f"{place} has not finished; run its command again, and it resumes."
                )
            _check_babylm(run)
            if other := runs.get(run.task):
                raise UserError(
                    f"{other.folder} and {place} are both runs on {run.task!r}, and a "
                    "submission takes one; name the folder of one of them."
                )
            runs[run.task] = run
    return {task: _read_label_numbers(run) for task, run in runs.items()}


def _check_babylm(run: Finished) -> None:
    """Refuses a run that did not label the whole valid file of a task of BabyLM's."""
    task, data = run.task, run.config.data
    if data.source != "babylm" or task not in BABYLM_SIZES:
        raise UserError(
            f"{run.folder} is a run on {task!r} from the source {data.source!r}; a "
            f"submission to BabyLM needs {', '.join(BABYLM_SIZES)} from the source "
            "'babylm'."
        )
    for key in ("max_dev_examples", "drop_long"):
        if value := getattr(data, key):
            raise UserError(
                f"{run.folder} was made with config.data.{key}={value}, which leaves "
                "out dev examples, and a submission to BabyLM needs all; make it again "
                "without."
            )


def _read_label_numbers(run: Finished) -> list[int]:
    """The label numbers that a run predicts for its dev split, in its order."""
    task = find_task(run.config)
    made = read_predictions(run.folder, "dev", task)
    file, count = predictions_file(run.folder, "dev"), run.result["dev"]["n"]
    if len(made) != count:
        raise damaged_results(file, f"{len(made)} predictions for {count} examples")
    if count != (wanted := BABYLM_SIZES[task.name]):
        logging.warning(
            "%s holds %d predictions, and BabyLM wants all %d.", file, count, wanted
        )
    return [int(each.value) for each in made]
