"""Reads finished fine-tuned runs back from their folders, for suites and reports."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from etils import epath

from gpt1_jax.config.checks import CONTENT, marked_keys
from gpt1_jax.config.finetune import CUSTOM_TASK, FinetuneConfig
from gpt1_jax.config.sections import ModelSection
from gpt1_jax.data.records import parse_number, read_rows
from gpt1_jax.errors import UserError
from gpt1_jax.formats import RESULTS
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE, locate_run
from gpt1_jax.runs.resume import DIGESTS, fixed_values, saved_digests
from gpt1_jax.runs.run_folder import RunFolder, find_runs
from gpt1_jax.tasks.metrics import METRICS
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Task

ALL_RESULTS_FILE = "all_results.json"  # of several runs; a folder may have both
FILE_DIGESTS = "file_digests"  # in results.json, of the files of data; not in 1.0
# In results.json of a calibrated run: the calibration error of each split without.
ERROR_BEFORE = "uncalibrated_error"
TEST_BASELINES = "test_baselines"  # in results.json, of one's own task; not in 1.0


class Finished(NamedTuple):
    """A finished fine-tuned run: its configuration and its scores."""

    folder: epath.Path
    config: FinetuneConfig  # with one task and one seed
    result: Mapping[str, Any]  # its results.json

    @property
    def task(self) -> str:
        """The name of its task, or of one's own if that has one."""
        return self.config.custom.name or self.config.tasks[0]

    @property
    def title(self) -> str:
        """The name of its task, as the paper prints it if it has the task."""
        return TASKS[self.task].title if self.task in TASKS else self.task

    @property
    def repetition(self) -> str:
        """The name that tells it from runs of the same settings: "fold 1, seed 0"."""
        seed, fold = f"seed {self.config.seeds[0]}", self.config.data.fold
        return f"fold {fold}, {seed}" if fold else seed

    @property
    def is_own(self) -> bool:
        """Whether its task is one of the user's own."""
        return self.config.tasks == (CUSTOM_TASK,)

    @property
    def train_examples(self) -> int:
        """Training examples, perhaps fewer than were asked for; the mean over folds."""
        number, data = self.result.get("train_examples", 0), self.config.data
        if not data.folds or data.max_train_examples:
            return number
        return round((number + self.result["dev"]["n"]) * (1 - 1 / data.folds))

    @property
    def model(self) -> ModelSection:
        """Its model, with the sizes of its origin."""
        return cast(ModelSection, self.config.model)

    @property
    def kind(self) -> str:
        """ "transformer" or "lstm"."""
        return self.model.kind

    @property
    def is_from_scratch(self) -> bool:
        """Whether it took over only the tokenizer and the sizes of its origin."""
        return self.config.transfer_layers == "none"

    def settings(self, by_content: bool) -> dict[str, Any]:
        """The settings that it was trained with, by flat key.

        The seed and the fold are left out, and how batches are padded, which changes
        random masks as a seed does, and nothing else.

        Args:
          by_content: whether content digests of its examples stand for their paths.
        """
        values = fixed_values(self.config.to_dict())
        padding = ("data.seq_len_buckets", "data.unpadded_sizes")
        for key in ("seeds", "data.fold", *padding):
            del values[key]
        if by_content:
            paths = marked_keys(FinetuneConfig, CONTENT).keys() - {"init_from", "step"}
            values = {k: v for k, v in values.items() if k not in paths}
            # The examples of each fold are others, of the same files.
            files = self.result.get(FILE_DIGESTS, {})
            values |= files if self.config.data.folds else saved_digests(self.result)
            values.pop("origin", None)  # `init_from` and `step` name it
        return {**values, "transfer_layers": self.layers_transferred}

    @property
    def architecture(self) -> tuple[Any, ...]:
        """Its sizes and its tokenizer's content digest; without one, its origin."""
        saved = RunFolder(self.folder).about_tokenizer.get("content_digest")
        return (saved or self.config.init_from, *self.model.sizes.values())

    @property
    def layers_transferred(self) -> int:
        """How many layers were transferred; -1 if not even the embeddings were."""
        named = self.config.transfer_layers
        if self.is_from_scratch:
            return -1
        return self.model.depth if named == "all" else int(named)

    @property
    def is_whole(self) -> bool:
        """Whether all layers were transferred."""
        return self.layers_transferred == self.model.depth


def read_finished(folder: epath.Path) -> Finished | None:
    """The finished fine-tuned run in a folder; None if there is none.

    Raises:
      ValueError: naming the file that is damaged.
    """
    run = RunFolder(folder)
    # Other jobs write results too, and leave out the configuration or name themselves.
    results = read_results(run) if run.job == "finetune" else None
    return Finished(folder, run.config, results) if results else None


def first_metric(scores: Mapping[str, Any]) -> str:
    """The metric that chooses checkpoints: the first in the scores of a split."""
    return next(filter(METRICS.__contains__, scores))


def dev_rank(result: Mapping[str, Any]) -> float:
    """The first score on the dev split in results.json, higher if it is better."""
    metric = first_metric(result["dev"])
    score = result["dev"][metric]
    if score is None:
        return -math.inf
    return score if METRICS[metric].highest_is_best else -score


def labelled_split(result: Mapping[str, Any]) -> str:
    """The split whose scores count most: "test" if its labels are known, or "dev"."""
    return "test" if METRICS.keys() & result.get("test", {}).keys() else "dev"


def kept_run(folder: str) -> str:
    """The one run with a checkpoint below the folder of several runs; or the folder.

    Args:
      folder: the folder of a run, or of several seeds of one's own task.
    """
    top = locate_run(folder)
    if (top / CONFIG_FILE).exists() or not (top / ALL_RESULTS_FILE).exists():
        return folder
    kept = [str(run.folder) for run in find_runs(top) if run.saved]
    return kept[0] if len(kept) == 1 else folder


def read_results(run: RunFolder) -> Mapping[str, Any] | None:
    """The results of a fine-tuned run; None if it has not finished.

    Raises:
      ValueError: if the file holds anything else, or is of another format.
    """
    results, file = run.results, run.folder / RESULTS_FILE
    if results is None:
        return None
    RESULTS.check(results, file)
    optional = [name for name in ("test", "train") if name in results]
    if results.get("bag_of_words") is not None:
        optional.append("bag_of_words")
    for name in ("dev", "majority", *optional):
        if not _is_scores(results.get(name), labelled=name not in optional):
            raise damaged_results(file, f"no {name!r} scores")
    for name in ("train_examples", "origin_step", "best_step"):
        if not isinstance(results.get(name), int):
            raise damaged_results(file, f"a {name!r} that is no number")
    if not isinstance(results.get(DIGESTS), dict):
        raise damaged_results(file, f"{DIGESTS!r} of another kind")
    return results


def results_of_step(folder: epath.Path, step: int) -> Mapping[str, Any] | None:
    """The results of a fine-tuned run; None if there are none of this step.

    Raises:
      ValueError: as `read_results`.
    """
    results = read_results(RunFolder(folder))
    return results if results and results["best_step"] == step else None


def _is_scores(value: Any, labelled: bool) -> bool:
    """Whether a value is like what `gpt1_jax.tasks.metrics.score_predictions` returns.

    For a split without labels it holds no metrics; an unknown score is None.
    """
    try:
        parts = [value, *value.get("subsets", {}).values()]
        scores = [[part[name] for name in METRICS if name in part] for part in parts]
        numbers = [part["n"] for part in parts]
    except (AttributeError, LookupError, TypeError):
        return False
    numbers += [score for own in scores for score in own if score is not None]
    are_numbers = all(isinstance(number, int | float) for number in numbers)
    return are_numbers and (all(scores) or not labelled)


class Prediction(NamedTuple):
    """A prediction as a run wrote it."""

    id: str
    subset: str
    value: float  # the number of a label, or a score
    where: str  # "file:line", for messages


def predictions_file(run: epath.Path, split: str) -> epath.Path:
    """The file of a run's predictions for a split."""
    return run / "predictions" / f"{split}.jsonl"


def read_predictions(run: epath.Path, split: str, task: Task) -> list[Prediction]:
    """The predictions of a finished run for a split, in its order.

    Args:
      run: the folder of the run.
      split: "dev" or "test".
      task: its task.

    Raises:
      UserError: if the file is missing, or a line is no prediction of the task.
    """
    path = predictions_file(run, split)
    if not path.exists():
        raise UserError(
            f"{path} does not exist; remove {run / RESULTS_FILE} and run the "
            "fine-tuning again, which writes both."
        )
    labels, found = task.target.labels, []
    for where, row in read_rows(path):
        value = row.get("prediction")
        if labels and value not in labels:
            raise damaged_results(path, f"no label of {task.title} at {where}")
        number = labels.index(value) if labels else parse_number(value)
        if not math.isfinite(number):
            raise damaged_results(path, f"no score of {task.title} at {where}")
        name, subset = row.get("id"), row.get("subset")
        found.append(Prediction(str(name), str(subset), number, where))
    return found


def read_errors(run: epath.Path, split: str, task: Task) -> list[dict[str, Any]]:
    """The wrong predictions of a finished run for a split, the most confident first.

    Args:
      run: the folder of the run.
      split: "dev" or "test".
      task: its task.

    Returns:
      Rows of its predictions file, as `prediction_rows` of
      `gpt1_jax.finetuning.prediction_files` makes them, with texts if the task is one's
      own. "confidence" is added: the probability of the wrong label; of several labels,
      that of the surest wrong answer about one; of scores, how far they are off. There
      are no rows if the file is missing or has no labels.

    Raises:
      UserError: if the file is damaged.
    """
    path = predictions_file(run, split)
    found = []
    for where, row in read_rows(path) if path.exists() else ():
        try:
            if row.get("label", row["prediction"]) != row["prediction"]:
                found.append({**row, "confidence": _confidence(row, task)})
        except (KeyError, TypeError) as error:
            raise damaged_results(path, f"no prediction at {where}") from error
    return sorted(found, key=lambda row: -row["confidence"])


def _confidence(row: Mapping[str, Any], task: Task) -> float:
    """How sure a wrong prediction was, or how far off a score."""
    answer, shares = row["prediction"], row.get("probabilities", {})
    if not task.target.labels:
        return float(abs(answer - row["label"]))
    if not task.target.multilabel:
        return float(shares[answer])
    wrong = set(answer).symmetric_difference(row["label"])
    return max(shares[name] if name in answer else 1 - shares[name] for name in wrong)


def damaged_results(file: epath.Path, what: str) -> UserError:
    """The error for a file of a finished run that holds something else."""
    return UserError(
        f"{file} holds {what}; it is damaged or was not written by this program. "
        "Remove it and run the fine-tuning again, or name other folders."
    )
