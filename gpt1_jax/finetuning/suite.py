"""The runs of a fine-tuning suite: lists them, and reads the results so far."""

import dataclasses
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config.checks import CONTENT, marked_keys
from gpt1_jax.config.finetune import FinetuneConfig, Variants
from gpt1_jax.config.flat import flatten
from gpt1_jax.config.saved import read_values
from gpt1_jax.data.files import find_files
from gpt1_jax.data.progress import Bar
from gpt1_jax.finetuning.results import (
    Finished,
    dev_rank,
    read_finished,
    read_results,
)
from gpt1_jax.parallel.processes import is_main_process
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE
from gpt1_jax.runs.resume import begin_run, changed_keys, saved_digests
from gpt1_jax.runs.run_folder import RunFolder
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Task


class SuiteRun(NamedTuple):
    """One run of a suite."""

    task: Task
    variant: str
    config: FinetuneConfig  # with one task and one seed
    folder: epath.Path


Result = tuple[SuiteRun, Mapping[str, Any]]  # a run and its results.json
PlannedRun = tuple[SuiteRun, Mapping[str, Any] | None]  # None until it has finished


def plan_runs(
    variants: Variants, tasks: Sequence[Task], seeds: Sequence[int], folder: epath.Path
) -> list[SuiteRun]:
    """Lists all runs of a suite in order: by task, variant, fold and seed.

    Args:
      variants: configurations by name, of all tasks and seeds.
      tasks: the tasks.
      seeds: the seeds; one that is named twice is run once.
      folder: the folder of a single run; several use TASK/VARIANT-seedN below it, or
        TASK/VARIANT-foldM-seedN with `config.data.folds`.
    """
    runs = []
    for task, (variant, config) in itertools.product(tasks, variants.items()):
        data = config.data
        each_fold = data.folds and not data.fold
        folds = range(1, data.folds + 1) if each_fold else [data.fold]
        for fold, seed in itertools.product(folds, dict.fromkeys(seeds)):
            own = dataclasses.replace(
                config,
                tasks=(task.name,),
                seeds=(seed,),
                data=dataclasses.replace(data, fold=fold),
            )
            name = f"{variant}-fold{fold}" if fold else variant
            below = folder / task.name / f"{name}-seed{seed}"
            runs.append(SuiteRun(task, variant, own, below))
    if len(runs) == 1:
        runs = [run._replace(folder=folder) for run in runs]
    return [_as_begun(run) for run in runs]


def _as_begun(run: SuiteRun) -> SuiteRun:
    """The run; F1 stays that of the last label if version 1.0 began it so."""
    custom, file = run.config.custom, run.folder / CONFIG_FILE
    if not custom.positive or not file.exists():
        return run
    if flatten(read_values(file)).get("custom.positive"):
        return run
    custom = dataclasses.replace(custom, positive="")
    config = dataclasses.replace(run.config, custom=custom)
    return run._replace(task=find_task(config), config=config)


def read_result(run: SuiteRun) -> Mapping[str, Any] | None:
    """The results of a run; None if it has not finished.

    Raises:
      ValueError: if the results belong to another configuration or are damaged.
    """
    if not (run.folder / RESULTS_FILE).exists():
        return None
    begin_run(run.folder, run.config)
    return read_results(RunFolder(run.folder))


def find_repeated(run: SuiteRun, results: Sequence[Result]) -> SuiteRun | None:
    """The finished run that `run` would repeat, or None.

    If a task has no more examples than a run asks for, a run that asked for even more
    has already trained on the same ones.
    """
    size = run.config.data.max_train_examples
    if not size:
        return None
    for other, result in results:
        asked = other.config.data.max_train_examples
        more = asked == 0 or asked > size
        data = dataclasses.replace(other.config.data, max_train_examples=size)
        alike = dataclasses.replace(other.config, data=data) == run.config
        if more and alike and result["train_examples"] <= size:
            return other
    return None


def progress_bar(results: Collection[Mapping[str, Any] | None]) -> Bar:
    """A progress bar over runs, given their results: None if one has not finished.

    Runs that had finished before do not count in the estimate of the time left.
    """
    return Bar(
        "suite",
        len(results),
        "run",
        active=len(results) > 1 and is_main_process(),
        initial=sum(result is not None for result in results),
        smoothing=0,
    )


def add_others(
    results: Sequence[Result], planned: Sequence[SuiteRun], folder: epath.Path
) -> list[Result]:
    """Adds the finished runs of the same suite that other commands have made.

    They have other seeds, folds or tasks, and nothing else: several commands, such as
    those of a job array, divide a suite among them.

    Args:
      results: those of this command's runs.
      planned: all runs of this command.
      folder: the suite's folder.

    Returns:
      All results by task, in the order planned, by variant, fold and seed.
    """
    by_variant = {run.variant: (run.config, result) for run, result in results}
    own = {run.folder for run in planned}
    # Paths may differ; of the origin, the content must not.
    may_differ = {"tasks", "seeds", "data.fold", *marked_keys(FinetuneConfig, CONTENT)}
    others = []
    for file in find_files(folder, f"*/*-seed*/{RESULTS_FILE}"):
        variant = re.sub(r"(-fold\d+)?-seed\d+$", "", file.parent.name)
        if file.parent in own or variant not in by_variant:
            continue
        found, (config, result) = read_finished(file.parent), by_variant[variant]
        if found is None:
            continue
        changed = changed_keys(found.config.to_dict(), config.to_dict()).keys()
        origin = saved_digests(found.result).get("origin")
        same_origin = origin == saved_digests(result).get("origin")
        if same_origin and changed <= may_differ:
            run = SuiteRun(find_task(found.config), variant, found.config, found.folder)
            others.append((run, found.result))
    tasks = [*dict.fromkeys(run.task.name for run in planned)]
    tasks += sorted({run.task.name for run, _ in others}.difference(tasks))
    variants = [*dict.fromkeys(run.variant for run in planned)]

    def place(result: Result) -> tuple[int, int, int, int]:
        run, _ = result
        task, variant = tasks.index(run.task.name), variants.index(run.variant)
        return task, variant, run.config.data.fold, run.config.seeds[0]

    return sorted([*results, *others], key=place)


def by_task(results: Sequence[Result]) -> dict[str, dict[str, list[Any]]]:
    """Results by task and variant, as `all_results.json` holds them."""
    found: dict[str, dict[str, list[Any]]] = {}
    for run, result in results:
        variants = found.setdefault(run.task.name, {})
        variants.setdefault(run.variant, []).append(result)
    return found


def finished(results: Sequence[Result]) -> list[Finished]:
    """Results as they would be read back from the runs' folders."""
    return [Finished(run.folder, run.config, r) for run, r in results]


def best_runs(results: Sequence[Result]) -> list[SuiteRun]:
    """The run of each task with the best dev score; of equal ones, the first."""
    best: dict[str, Result] = {}
    for run, result in results:
        _, before = best.setdefault(run.task.name, (run, result))
        if dev_rank(result) > dev_rank(before):
            best[run.task.name] = (run, result)
    return [run for run, _ in best.values()]
