"""The zero-shot job: what a language model knows of tasks it was not trained on."""

import dataclasses
import importlib.metadata
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

import gpt1_jax
from gpt1_jax.config import FinetuneConfig, ZeroShotConfig, compilation_cache
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.evaluation.submission import write_predictions
from gpt1_jax.evaluation.zero_shot import Outcome, Prepared, evaluate, prepare
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.parallel import devices
from gpt1_jax.report import figures, zero_shot, zero_shot_figures
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.console import say
from gpt1_jax.runs.kept_steps import find_steps
from gpt1_jax.runs.trained_run import TrainedRun, open_run
from gpt1_jax.tasks.rows import MissingData
from gpt1_jax.tasks.zero_shot import Question, select

_VERSIONS = ("jax", "numpy", "scikit-learn", "scipy")


def run(config: ZeroShotConfig, workdir: str) -> None:
    """Scores one checkpoint of a run, or all kept ones, on tasks it was not trained on.

    Args:
      config: the run, its steps and the tasks.
      workdir: the folder to make: results.json, a table, predictions and a plot.

    Raises:
      FileExistsError: if the folder is not empty.
      FileNotFoundError, ValueError: if there is no such run, step, task or data, or a
        text does not fit into the model's context.
    """
    questions = select(config.tasks)
    folder = run_folder.locate(workdir)
    run_folder.refuse_used(folder)
    steps = find_steps(run_folder.locate(config.init_from), config.step)
    source = open_run(config.init_from, steps[0])
    devices.configure("default", compilation_cache(config.compilation_cache_dir))
    if isinstance(source.config, FinetuneConfig):
        say(f"{source.folder} is fine-tuned; its language model answers, not its head.")
    tasks = _prepare_all(config, questions, source)
    model = dataclasses.replace(source.model, dtype=config.dtype or source.model.dtype)
    score = Scorer(model, source.tokenizer.vocab_size, config.batch_tokens)
    outcomes: dict[int, list[Outcome]] = {}
    checkpoints = []
    for step in steps:
        trained = source if step == steps[0] else open_run(config.init_from, step)
        params = jax.tree.map(jnp.asarray, trained.language_model)
        outcomes[trained.step] = evaluate(tasks, score, params, config.seed)
        found: dict[str, Any] = {}
        for task, (_, scores) in zip(tasks, outcomes[trained.step], strict=True):
            name = task.way.task.name
            found[name] = {**scores, **zero_shot.against(name, scores)}
            say(f"step {trained.step:>7,}  {zero_shot.describe(name, found[name])}")
        checkpoints.append({"step": trained.step, "tasks": found})
    # Only now, so that a run that is stopped leaves no folder to refuse the next.
    _write_predictions(folder / "predictions", tasks, outcomes)
    _write(folder, config, checkpoints)


def _prepare_all(
    config: ZeroShotConfig, questions: list[Question], source: TrainedRun
) -> list[Prepared]:
    """The tasks, read and encoded; of several, those without data are left out."""
    prepared = []
    for question in questions:
        title = question.way.task.title
        try:
            task = prepare(
                question, config.data, source.tokenizer, source.model.max_seq_len
            )
        except MissingData as error:
            if len(questions) == 1:
                raise
            say(f"Skipping {title}: {error}")
            continue
        if cut := task.asked.encoded.num_cut:
            say(
                f"{title}: {cut:,} of {len(task.asked.examples):,} examples were cut "
                f"to fit {source.model.max_seq_len} tokens."
            )
        prepared.append(task)
    if not prepared:
        raise MissingData(
            "There is no data of any of the tasks; see the lines above, "
            "--config.data.source and --config.data.dir."
        )
    return prepared


def _write_predictions(
    folder: epath.Path, tasks: list[Prepared], outcomes: dict[int, list[Outcome]]
) -> None:
    """Writes the answers of each step to each task."""
    for step, by_task in outcomes.items():
        for (way, asked, _), outcome in zip(tasks, by_task, strict=True):
            path = folder / str(step) / f"{way.task.name}.jsonl"
            write_predictions(path, way.task, asked.examples, outcome.predictions)


def _write(
    folder: epath.Path, config: ZeroShotConfig, checkpoints: list[dict[str, Any]]
) -> None:
    """Writes the table, the plot and, last, all that is known of the scores."""
    table = zero_shot.results_table(checkpoints)
    write_whole(folder / "results.md", table)
    figure = zero_shot_figures.relative_scores(zero_shot.curves(checkpoints))
    plot = figures.save(figure, folder / "plots" / "zero_shot.png")
    versions = {name: importlib.metadata.version(name) for name in _VERSIONS}
    write_json(
        folder / run_folder.RESULTS_FILE,
        {
            "config": config.to_dict(),
            "versions": {"gpt1_jax": gpt1_jax.__version__, **versions},
            "checkpoints": checkpoints,
        },
    )
    say(table)
    say(f"Results: {folder / 'results.md'}\nPlot: {plot}")
