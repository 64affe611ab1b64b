"""The job of fine-tuning: every task, start and seed asked for, and their table."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tqdm
from etils import epath

from gpt1_jax.config import FinetuneConfig
from gpt1_jax.evaluation import submission, tables
from gpt1_jax.parallel import mesh as parallel
from gpt1_jax.tasks import loading
from gpt1_jax.tasks.loading import Split, TaskData
from gpt1_jax.tasks.metrics import majority_baseline
from gpt1_jax.tasks.rows import MissingData
from gpt1_jax.tasks.selection import select_tasks
from gpt1_jax.tasks.task import Task
from gpt1_jax.tasks.transforms import read_outputs
from gpt1_jax.training import finetune, run_folder, scoring, setup, transfer
from gpt1_jax.training.checkpoint import BEST, read_params
from gpt1_jax.training.scoring import Predictor

RESULTS_FILE = "results.json"  # of a run
ALL_RESULTS_FILE = "all_results.json"  # of several; a folder may come to hold both


class Planned(NamedTuple):
    """One run of the suite."""

    task: Task
    start: str  # "pretrained" or "scratch"
    config: FinetuneConfig  # with one task and one seed
    folder: epath.Path


def run(config: FinetuneConfig, workdir: str) -> None:
    """Fine-tunes on all tasks asked for; a run that is finished is not repeated.

    A single run is in `workdir` itself; several are in TASK/START-seedN below it.

    Args:
      config: of the job.
      workdir: its folder.

    Raises:
      ValueError, OSError: what does not fit, before any long work.
      loop.Stopped: after a signal; the same command goes on.
    """
    say = setup.speaker()
    run_folder.configure_jax(config.train)
    source = transfer.read_run(config.init_from, config.init_step)
    tasks, config = select_tasks(config)
    config = finetune.resolved(config, source)
    _check_max_seq_len(config)
    folder = run_folder.locate(workdir)
    plan = list(_plan(config, tasks, folder))
    results: dict[str, dict[str, list[Any]]] = {}
    skipped: dict[str, str] = {}
    data: TaskData | None = None
    with tqdm.tqdm(
        total=len(plan), unit="run", desc="suite", disable=None if plan[1:] else True
    ) as bar:
        for planned in plan:
            task = planned.task
            result = _finished(planned)
            if result is None and task.name not in skipped:
                if data is None or data.task is not task:
                    data = _load(config, source, task, skipped, alone=len(tasks) == 1)
                if data is not None:
                    result = _run_one(planned, source, data, keep=len(plan) == 1)
            if result is not None:
                by_start = results.setdefault(task.name, {})
                by_start.setdefault(planned.start, []).append(result)
            bar.update()
    table = tables.results_table(results, skipped)
    if parallel.is_main_process():
        run_folder.write_whole(folder / "results.md", table)
        if plan[1:]:
            run_folder.write_json(folder / ALL_RESULTS_FILE, results)
    say(table)


def _plan(
    config: FinetuneConfig, tasks: list[Task], folder: epath.Path
) -> Iterator[Planned]:
    own = "scratch" if config.transfer_layers == "none" else "pretrained"
    starts = {own: config.transfer_layers}
    if config.suite.from_scratch:
        starts["scratch"] = "none"
    seeds = list(dict.fromkeys(config.seeds))
    several = len(tasks) * len(starts) * len(seeds) > 1
    for task in tasks:
        for start, transfer_layers in starts.items():
            for seed in seeds:
                one = dataclasses.replace(
                    config,
                    tasks=(task.name,),
                    seeds=(seed,),
                    transfer_layers=transfer_layers,
                )
                below = folder / task.name / f"{start}-seed{seed}"
                yield Planned(task, start, one, below if several else folder)


def _check_max_seq_len(config: FinetuneConfig) -> None:
    longest = config.model["max_seq_len"]
    if config.data.max_seq_len > longest:
        raise ValueError(
            f"config.data.max_seq_len={config.data.max_seq_len}, but the pre-trained "
            f"model reads {longest} tokens at most; lower it, or leave it at 0."
        )


def _load(
    config: FinetuneConfig,
    source: transfer.TrainedRun,
    task: Task,
    skipped: dict[str, str],
    *,
    alone: bool,
) -> TaskData | None:
    """A task's data; where there is none, and other tasks are left, says so."""
    max_seq_len = config.data.longest(config.model["max_seq_len"])
    try:
        data = loading.load(task, config.data, source.tokenizer, max_seq_len)
    except MissingData as error:
        if alone:
            raise
        skipped[task.name] = str(error)
        setup.speaker()(f"Skipping {task.title}: {error}")
        return None
    if cuts := loading.describe_cuts(data, max_seq_len):
        setup.speaker()(f"{task.title}: {cuts}")
    return data


def _finished(planned: Planned) -> Mapping[str, Any] | None:
    """The results of a run, if they are there."""
    results_file = planned.folder / RESULTS_FILE
    if not results_file.exists():
        return None
    run_folder.check(planned.folder, planned.config, finished=True)
    return json.loads(results_file.read_text())


def _run_one(
    planned: Planned, source: transfer.TrainedRun, data: TaskData, *, keep: bool
) -> Mapping[str, Any]:
    """Runs one run to its end; its results."""
    predictor = finetune.run(planned.config, str(planned.folder), source, data)
    result = _conclude(planned, source, data, predictor)
    if parallel.is_main_process():
        run_folder.write_json(planned.folder / RESULTS_FILE, result)
        if not (keep or planned.config.suite.keep_checkpoints):
            (planned.folder / "checkpoints").rmtree()
    return result


def _conclude(
    planned: Planned,
    source: transfer.TrainedRun,
    data: TaskData,
    predictor: Predictor,
) -> dict[str, Any]:
    """Scores and predictions of the best checkpoint of a run."""
    config, task = planned.config, data.task
    best = read_params(planned.folder, BEST)
    train_labels, dev_labels = (
        [example.label for example in split.examples]
        for split in (data.train, data.dev)
    )
    subsets = [example.subset for example in data.dev.examples]
    result: dict[str, Any] = {
        "task": task.name,
        "start": planned.start,
        "seed": config.seeds[0],
        "init_from": config.init_from,
        "init_step": source.step,
        "best_step": best.step,
        "train_examples": len(data.train.examples),
        "majority": majority_baseline(task, train_labels, dev_labels, subsets),
    }
    for name, split in (("dev", data.dev), ("test", data.test)):
        if split is None:
            continue
        logits = predictor(best.params, split.encoded)
        result[name] = _report(planned, name, split, logits)
    return result


def _report(planned: Planned, name: str, split: Split, logits: Any) -> dict[str, Any]:
    """Writes what was predicted for a split; its scores, if it has labels."""
    task = planned.task
    predictions, probabilities = read_outputs(task, logits)
    if parallel.is_main_process():
        submission.write_predictions(
            planned.folder / "predictions" / f"{name}.jsonl",
            task,
            split.examples,
            predictions,
            probabilities if task.labels else None,
        )
        if name == "test" and task.glue:
            submission.write_glue(
                planned.folder / "glue", task, predictions, split.examples
            )
    if any(example.label is None for example in split.examples):
        return {"n": len(split.examples), "scores": None}
    return scoring.score(task, split, predictions)
