"""The zero-shot job: what language models know of tasks they were not trained on."""

import functools
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

import gpt1_jax
from gpt1_jax.config import FinetuneConfig, ZeroShotConfig
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.errors import MissingData
from gpt1_jax.evaluation.submission import write_predictions
from gpt1_jax.evaluation.zero_shot import score_answers
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.parallel import devices
from gpt1_jax.report import figures
from gpt1_jax.report.scores import (
    describe_zero_shot,
    relative_score,
    zero_shot_scores,
    zero_shot_table,
)
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock
from gpt1_jax.runs.console import say
from gpt1_jax.runs.forms import scoring_model
from gpt1_jax.runs.open import TrainedRun, open_steps
from gpt1_jax.runs.resume import begin_run
from gpt1_jax.runs.step_scores import ScoredRun, ScoreTask, StepScores
from gpt1_jax.tasks.zero_shot import (
    Answers,
    ZeroShotTask,
    load_answers,
    select_zero_shot_tasks,
)
from gpt1_jax.training import signals
from gpt1_jax.training.signals import Stopped

_VERSIONS = ("jax", "numpy", "scikit-learn", "scipy")


def run(config: ZeroShotConfig, workdir: str) -> None:
    """Scores steps of a run, and of a baseline, on tasks they were not trained on.

    Each score is kept; the same command goes on from there.

    Args:
      config: the runs, their steps and the tasks.
      workdir: the folder to make: results.json, a table, scores, predictions, a plot.

    Raises:
      FileExistsError: if the folder holds something else.
      FileNotFoundError, UserError: if there is no such run, step, task or data, a
        text does not fit into the model's context, or the folder holds scores of
        another configuration, of other checkpoints or of other examples.
      Stopped: after a signal, once the scores at hand are saved.
    """
    tasks = select_zero_shot_tasks(config.tasks)
    folder = run_folder.locate_run(workdir)
    if (folder / run_folder.CONFIG_FILE).exists():
        config = begin_run(folder, config)
    else:
        run_folder.refuse_used(folder)
    runs = _open_runs(config, tasks)
    devices.configure("default", compilation_cache(config.compilation_cache_dir))
    for each in runs:
        score = _scorer(config, each.opened)
        for answers in each.tasks.values():
            score.check_memory(answers.all_windows)
    scores = StepScores(folder, runs, "zero-shot")
    with lock.owned(folder):
        config = begin_run(folder, config)
        write_json(folder / run_folder.CONFIG_FILE, config.to_dict())
        make_scorer = functools.partial(_make_scorer, config)
        with signals.catch() as stop, stop.deferred():
            if not scores.score_missing(make_scorer, describe_zero_shot, stop.received):
                raise Stopped(
                    f"stopped by a signal; {scores.num_kept} of {scores.total} scores "
                    "are saved."
                )
        _write_results(folder, config, runs, scores)


# --- what is scored -------------------------------------------------------------


def _open_runs(
    config: ZeroShotConfig, tasks: Sequence[ZeroShotTask]
) -> list[ScoredRun[Answers]]:
    """The run and, if there is one, the baseline; opened before anything is read."""
    named = {"run": config.init_from, "baseline": config.baseline_init_from}
    opened = {}
    for name, init_from in named.items():
        if init_from:
            opened[name] = first, _ = open_steps(init_from, config.step)
            if isinstance(first.config, FinetuneConfig):
                say(
                    f"{first.folder} is fine-tuned; its language model answers, not "
                    "its head."
                )
    runs: list[ScoredRun[Answers]] = []
    for name, (first, steps) in opened.items():
        if runs and read_alike(runs[0].opened, first):
            answers = dict(runs[0].tasks)
        else:
            answers = _load_all(config, tasks, first)
            # Whatever is missing is missing for the baseline too, and said once.
            tasks = [each.task for each in answers.values()]
        runs.append(ScoredRun(name, named[name], first, steps, answers))
    return runs


def read_alike(one: TrainedRun, other: TrainedRun) -> bool:
    """Whether texts become the same tokens for two runs."""
    return (
        one.tokenizer.digest == other.tokenizer.digest
        and one.model.max_seq_len == other.model.max_seq_len
    )


def _load_all(
    config: ZeroShotConfig, tasks: Sequence[ZeroShotTask], run: TrainedRun
) -> dict[str, Answers]:
    """The answers of each task by name; of several, those without data are left out."""
    loaded = {}
    for task in tasks:
        title, max_seq_len = task.task.title, run.model.max_seq_len
        try:
            answers = load_answers(task, config.data, run.tokenizer, max_seq_len)
        except MissingData as error:
            if len(tasks) == 1:
                raise
            say(f"Skipping {title}: {error}")
            continue
        if answers.num_cut:
            say(
                f"{title}: {answers.num_cut:,} of {len(answers.examples):,} examples "
                f"were cut to fit {max_seq_len} tokens."
            )
        loaded[task.task.name] = answers
    if not loaded:
        raise MissingData(
            "There is no data of any of the tasks; see the lines above, "
            "--config.data.source and --config.data.dir."
        )
    return loaded


def _make_scorer(config: ZeroShotConfig, run: TrainedRun) -> ScoreTask[Answers]:
    """What scores the answers of a task by a run at a step."""
    score = _scorer(config, run)
    params = jax.tree.map(jnp.asarray, run.language_model)

    def score_task(
        answers: Answers,
    ) -> tuple[Mapping[str, Any], Callable[[epath.Path], None]]:
        predictions, log_probs, scores = score_answers(
            answers, score, params, config.seed
        )

        def write(path: epath.Path) -> None:
            examples = answers.examples
            write_predictions(
                path, answers.task.task, examples, predictions, log_probs=log_probs
            )

        return scores, write

    return score_task


def _scorer(config: ZeroShotConfig, run: TrainedRun) -> Scorer:
    model = scoring_model(run.model_in(config.dtype), config.batch_tokens)
    return Scorer(model, run.tokenizer.vocab_size, config.batch_tokens)


# --- what is written of all -----------------------------------------------------


def _write_results(
    folder: epath.Path,
    config: ZeroShotConfig,
    runs: Sequence[ScoredRun[Answers]],
    scores: StepScores[Answers],
) -> None:
    """Writes the table, the plot and, last, all that is known of the scores."""
    results = []
    for run in runs:
        checkpoints = scores.of_run(run)
        for checkpoint in checkpoints:
            for name, values in checkpoint["tasks"].items():
                values |= relative_score(name, values)
        kind = run.opened.model.kind
        results.append(
            {"init_from": run.init_from, "kind": kind, "checkpoints": checkpoints}
        )
    score_table = zero_shot_scores(results)
    table = zero_shot_table(score_table)
    write_whole(folder / "results.md", table)
    figure = figures.relative_scores(score_table)
    plot = figures.save_figure(figure, folder / "plots" / "zero_shot.png")
    versions = {name: importlib.metadata.version(name) for name in _VERSIONS}
    write_json(
        folder / run_folder.RESULTS_FILE,
        {
            "config": config.to_dict(),
            "versions": {"gpt1_jax": gpt1_jax.__version__, **versions},
            "runs": results,
        },
    )
    say(table)
    say(f"Results: {folder / 'results.md'}\nPlot: {plot}")
