"""Reads past runs back from their folders, for suites and reports.

Parameters are not read; `runs/open.py` does that.
"""

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from etils import epath

from gpt1_jax.config import BEST, ModelConfig
from gpt1_jax.config.checks import Content, marked_keys
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.saved import load_saved, read_json
from gpt1_jax.config.sections import ModelSection
from gpt1_jax.data.files import is_remote
from gpt1_jax.data.tables import parse_number, read_rows
from gpt1_jax.data.tokenizers import saved_digest
from gpt1_jax.data.windows import windows_per_epoch
from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import best_step, saved_steps
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE, locate_run
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    read_metrics,
    read_sessions,
)
from gpt1_jax.runs.resume import DIGESTS, fixed_values, saved_digests
from gpt1_jax.runs.wall_time import TRAINING
from gpt1_jax.tasks.metrics import METRICS, RANGES
from gpt1_jax.tasks.paper_tasks import BABYLM_SIZES, find_task


class Pretrained(NamedTuple):
    """A pre-training run, finished or not, as its folder describes it."""

    folder: epath.Path
    config: PretrainConfig
    model: ModelConfig
    records: Sequence[Mapping[str, Any]]
    sessions: Sequence[Mapping[str, Any]]  # none in folders of 0.1.0
    saved: Sequence[int]  # its saved steps, in order

    @property
    def step(self) -> int:
        """The newest saved step; if none is saved, the last step with a record."""
        recorded = max((record["step"] for record in self.records), default=0)
        return self.saved[-1] if self.saved else recorded

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a batch over all devices."""
        return self.config.train.batch_size * self.model.max_seq_len

    @property
    def tokens(self) -> int:
        """Tokens read up to `step`."""
        return self.step * self.tokens_per_step

    @property
    def taken_over(self) -> int:
        """How many updates the origin took, if its optimizer was taken over."""
        return steps_taken_over(self.config, self.sessions)

    @property
    def corpus_tokens(self) -> int | None:
        """Tokens of the training split; None if that is not recorded."""
        sizes = [session["text"].get("tokens") for session in self.sessions]
        return sizes[-1] if sizes and isinstance(sizes[-1], int) else None

    @property
    def num_steps(self) -> int | None:
        """Updates in the whole run; None if that is not known."""
        train = self.config.train
        if train.num_steps:
            return train.num_steps
        if not self.corpus_tokens:
            return None
        windows = windows_per_epoch(self.corpus_tokens, self.model.max_seq_len)
        return int(train.num_epochs * windows / train.batch_size)

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """The steps at which a metric was recorded, and its finite values."""
        points = [
            (record["step"], number)
            for record in self.records
            if isinstance(value := record.get(metric), int | float)
            and math.isfinite(number := parse_number(value))
        ]
        return [step for step, _ in points], [value for _, value in points]

    def last(self, metric: str) -> float | None:
        """The last value of a metric; None if it was never recorded."""
        return next(iter(self.series(metric)[1][::-1]), None)

    def sample(self) -> str | None:
        """The last text that the run sampled."""
        samples = [
            r["sample"] for r in self.records if isinstance(r.get("sample"), str)
        ]
        return samples[-1] if samples else None

    def seconds(self) -> tuple[float, float] | None:
        """Seconds in training steps, and in total; None if they are not recorded."""
        total = sum(sum(each["seconds"].values()) for each in self.sessions)
        training = sum(each["seconds"].get(TRAINING, 0.0) for each in self.sessions)
        return (training, total) if total > 0 else None


def read_pretrained(folder: epath.Path) -> Pretrained | None:
    """The pre-trained run in a folder; None if it holds none.

    Raises:
      ValueError: naming the file that is damaged.
    """
    file = folder / CONFIG_FILE
    if not file.exists() or read_json(file).get("job") != "pretrain":
        return None
    config: PretrainConfig = load_saved(file)
    return Pretrained(
        folder=folder,
        config=config,
        model=config.model.with_vocab_size(_vocab_size(folder, config)),
        records=read_metrics(folder / METRICS_FILE),
        sessions=read_sessions(folder / SESSIONS_FILE),
        saved=saved_steps(folder),
    )


def steps_taken_over(
    config: PretrainConfig, sessions: Sequence[Mapping[str, Any]]
) -> int:
    """How many of a run's updates its origin took, whose optimizer it took over.

    Args:
      config: the run's configuration.
      sessions: the run's sessions, from `read_sessions`; none if it has not begun.
    """
    return sessions[0]["first_step"] if config.init_optimizer and sessions else 0


def tokens_before(run: Pretrained, known: Iterable[Pretrained]) -> int:
    """Tokens that a run's initial weights had been trained on, besides `run.tokens`.

    Follows the origins for as long as they are in `known`. Updates that a run took over
    from its origin (`config.init_optimizer`) are in `run.tokens`.
    """
    origins = {each.folder: each for each in known}
    tokens = 0
    while run.config.init_from:
        try:
            origin = origins.pop(locate_run(run.config.init_from))
        except (UserError, KeyError):  # out of reach from here, or not known
            break
        if not run.config.init_optimizer:
            step = run.config.step
            number = int(step) if step.isdecimal() else _step_named(origin, step)
            tokens += number * origin.tokens_per_step
        run = origin
    return tokens


def _step_named(run: Pretrained, step: str) -> int:
    """The best step that a run has saved, or else its newest."""
    if step == BEST and run.saved:
        return best_step(run.folder)
    return run.step


def _vocab_size(folder: epath.Path, config: PretrainConfig) -> int:
    """The vocabulary size, which may be smaller than the configured one."""
    file = folder / "tokenizer" / "tokenizer.json"
    size = read_json(file).get("vocab_size") if file.exists() else None
    return size if isinstance(size, int) else config.tokenizer.vocab_size


class Finished(NamedTuple):
    """A finished fine-tuned run: what it was, and its scores."""

    folder: epath.Path
    config: FinetuneConfig  # with one task and one seed
    result: Mapping[str, Any]  # its results.json

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
        """What it was trained with, but for its seed; by flat key.

        Args:
          by_content: whether content digests of its examples stand for their paths.
        """
        values = fixed_values(self.config.to_dict())
        digests = {**saved_digests(self.result), "origin": None}
        del values["seeds"], digests["origin"]  # the values name the origin
        if by_content:
            paths = marked_keys(FinetuneConfig, Content).keys() - {"init_from", "step"}
            values = {k: v for k, v in values.items() if k not in paths} | digests
        return {**values, "transfer_layers": self.layers_transferred}

    @property
    def architecture(self) -> tuple[Any, ...]:
        """Its sizes and its tokenizer's content digest; without one, its origin."""
        file = self.folder / "tokenizer" / "tokenizer.json"
        saved = saved_digest(read_json(file)) if file.exists() else None
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
    results, config = folder / RESULTS_FILE, folder / CONFIG_FILE
    # Other jobs write results too, and leave out the configuration or name themselves.
    if not (results.exists() and config.exists()):
        return None
    if read_json(config).get("job") != "finetune":
        return None
    return Finished(folder, load_saved(config), read_results(results))


def read_results(file: epath.Path) -> dict[str, Any]:
    """The results of a fine-tuned run.

    Raises:
      ValueError: if the file holds anything else.
    """
    results = read_json(file)
    for name in ("dev", "majority", "test", "train"):
        always = name in ("dev", "majority")  # and with labels
        if (always or name in results) and not _is_scores(results.get(name), always):
            raise _damaged_results(file, f"no {name!r} scores")
    for name in ("train_examples", "init_step"):
        if not _is_count(results.get(name, 0)):
            raise _damaged_results(file, f"a {name!r} that is no number")
    digests = results.get(DIGESTS, {})
    if not (isinstance(digests, dict) and all(map(_is_text, digests.values()))):
        raise _damaged_results(file, f"{DIGESTS!r} of another kind")
    return results


def read_babylm_predictions(*folders: epath.Path) -> dict[str, list[int]]:
    """What finished runs on BabyLM's data predict for its files `TASK.valid.jsonl`.

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
    found: dict[str, list[int]] = {}
    places: dict[str, epath.Path] = {}
    for folder in folders:
        finetuned = [
            place
            for place in (find_folders(folder) if folder.is_dir() else ())
            if (place / CONFIG_FILE).exists()
            and read_json(place / CONFIG_FILE).get("job") == "finetune"
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
            task = run.config.tasks[0]
            if task in found:
                raise UserError(
                    f"{places[task]} and {place} are both runs on {task!r}, and a "
                    "submission takes one; name the folder of one of them."
                )
            found[task], places[task] = _read_label_numbers(run), place
    return found


def _check_babylm(run: Finished) -> None:
    """Refuses a run that did not label the whole valid file of a task of BabyLM's."""
    (task, *_), data = run.config.tasks, run.config.data
    if data.source != "babylm" or task not in BABYLM_SIZES:
        raise UserError(
            f"{run.folder} is a run on {task!r} from the source {data.source!r}; a "
            f"submission to BabyLM needs {', '.join(BABYLM_SIZES)} from the source "
            "'babylm'."
        )
    if data.max_dev_examples or data.drop_long:
        key = "max_dev_examples" if data.max_dev_examples else "drop_long"
        raise UserError(
            f"{run.folder} was made with config.data.{key}={getattr(data, key)}, which "
            "leaves out dev examples, and a submission to BabyLM needs all; make it "
            "again without."
        )


def _read_label_numbers(run: Finished) -> list[int]:
    """The label numbers that a run predicts for its dev split, in its order."""
    task = find_task(run.config)
    file = run.folder / "predictions" / "dev.jsonl"
    if not file.exists():
        raise UserError(
            f"{file} does not exist; remove {run.folder / RESULTS_FILE} and run the "
            "fine-tuning again, which writes both."
        )
    numbers = []
    with file.open("rb") as lines:
        for where, row in read_rows(lines, str(file), "jsonl"):
            if (label := row.get("prediction")) not in task.labels:
                raise _damaged_results(file, f"no label of {task.title} at {where}")
            numbers.append(task.labels.index(label))
    if len(numbers) != run.result["dev"]["n"]:
        raise _damaged_results(
            file, f"{len(numbers)} predictions for {run.result['dev']['n']} examples"
        )
    if len(numbers) != (wanted := BABYLM_SIZES[task.name]):
        logging.warning(
            "%s holds %d predictions, and BabyLM wants all %d.",
            file,
            len(numbers),
            wanted,
        )
    return numbers


def _is_scores(value: Any, labelled: bool) -> bool:
    """Whether a value is what `gpt1_jax.tasks.metrics.score_predictions` returns.

    For a split without labels it holds no metrics.
    """
    if not isinstance(value, dict):
        return False
    subsets = value.get("subsets", {})
    return isinstance(subsets, dict) and all(
        isinstance(part, dict)
        and _is_count(part.get("n"))
        and (not labelled or not METRICS.keys().isdisjoint(part))
        and all(_is_score(name, part[name]) for name in METRICS.keys() & part.keys())
        for part in (value, *subsets.values())
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_score(metric: str, value: Any) -> bool:
    """Whether a value is one that a metric gives; None and NaN are not known."""
    if value is None or value != value:
        return True
    low, high = RANGES.get(metric, (-math.inf, math.inf))
    return not isinstance(value, str) and low <= parse_number(value) <= high


def _damaged_results(file: epath.Path, what: str) -> UserError:
    return UserError(
        f"{file} holds {what}; it is damaged or was not written by this program. "
        "Remove it and run the fine-tuning again, or name other folders."
    )


# Folders inside a run folder; they hold many files and no other run.
_PARTS_OF_A_RUN = {
    "checkpoints",
    "damaged_checkpoints",
    "glue",
    "plots",
    "predictions",
    "profile",
    "tensorboard",
    "tokenizer",
}


def find_folders(folder: epath.Path) -> Iterator[epath.Path]:
    """A folder and all folders below it, in order, but none inside a run folder.

    Leaves out hidden folders, and the target of a link if it was visited already.
    """
    yield from _walk(folder, set())


def _walk(folder: epath.Path, seen: set[str]) -> Iterator[epath.Path]:
    path = os.fspath(folder)
    place = path if is_remote(path) else os.path.realpath(path)
    if place in seen:
        return
    seen.add(place)
    yield folder
    for below in sorted(folder.iterdir()):
        hidden = below.name.startswith(".")
        if not hidden and below.name not in _PARTS_OF_A_RUN and below.is_dir():
            yield from _walk(below, seen)
