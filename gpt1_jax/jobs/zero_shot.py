"""The zero-shot job: what language models know of tasks they were not trained on."""

import dataclasses
import importlib.metadata
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tqdm
from etils import epath

import gpt1_jax
from gpt1_jax.config import FinetuneConfig, ZeroShotConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.data.progress import without_bars
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.evaluation.submission import write_predictions
from gpt1_jax.evaluation.zero_shot import Prepared, evaluate, prepare
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
from gpt1_jax.runs.checkpoint_files import manifest_digest
from gpt1_jax.runs.console import say
from gpt1_jax.runs.milestones import find_steps
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.runs.resume import begin_run
from gpt1_jax.tasks.zero_shot import Question, select
from gpt1_jax.training import signals
from gpt1_jax.training.signals import Stopped, StopSignal

_VERSIONS = ("jax", "numpy", "scikit-learn", "scipy")


class Source(NamedTuple):
    """A run that is asked, and the tasks as its tokenizer reads them."""

    name: str  # of its folders: "run" or "baseline"
    init_from: str
    run: TrainedRun  # at the first of the steps
    steps: list[int]
    tasks: list[Prepared]


class Piece(NamedTuple):
    """What is scored at a time: one task at one step of one run."""

    source: Source
    step: int
    task: Prepared

    @property
    def name(self) -> str:
        """The path of its files, below a folder and without suffix."""
        return f"{self.source.name}/{self.step}/{self.task.way.task.name}"

    def origin(self) -> dict[str, str]:
        """What its scores are of: the fingerprints of parameters and examples."""
        checkpoint = self.source.run.folder / "checkpoints" / str(self.step)
        return {
            "checkpoint": manifest_digest(checkpoint),
            "examples": self.task.fingerprint,
        }


def run(config: ZeroShotConfig, workdir: str) -> None:
    """Scores steps of a run, and of a baseline, on tasks they were not trained on.

    What is scored is kept, piece by piece; the same command goes on from there.

    Args:
      config: the runs, their steps and the tasks.
      workdir: the folder to make: results.json, a table, scores, predictions, a plot.

    Raises:
      FileExistsError: if the folder holds something else.
      FileNotFoundError, ValueError: if there is no such run, step, task or data, a
        text does not fit into the model's context, or the folder holds scores of
        another configuration, of other checkpoints or of other examples.
      Stopped: after a signal, once the scores at hand are saved.
    """
    questions = select(config.tasks)
    folder = run_folder.locate_run(workdir)
    if (folder / run_folder.CONFIG_FILE).exists():
        config = begin_run(folder, config)
    else:
        run_folder.refuse_used(folder)
    sources = _sources(config, questions)
    devices.configure("default", compilation_cache(config.compilation_cache_dir))
    for source in sources:
        score = _scorer(config, source.run)
        for task in source.tasks:
            score.check_memory(task.windows)
    pieces = [
        Piece(source, step, task)
        for source in sources
        for step in source.steps
        for task in source.tasks
    ]
    missing = [piece for piece in pieces if not _is_scored(folder, piece)]
    with lock.owned(folder):
        config = begin_run(folder, config)
        write_json(folder / run_folder.CONFIG_FILE, config.to_dict())
        with signals.catch() as stop, stop.deferred():
            _score(config, folder, missing, len(pieces), stop)
        _write(folder, config, [_collect(folder, source) for source in sources])


# --- what is asked --------------------------------------------------------------


def _sources(config: ZeroShotConfig, questions: list[Question]) -> list[Source]:
    """The run and, if there is one, the baseline; opened before anything is read."""
    named = {"run": config.init_from, "baseline": config.baseline_init_from}
    opened = {}
    for name, init_from in named.items():
        if init_from:
            steps = find_steps(run_folder.locate_run(init_from), config.step)
            trained = open_run(init_from, steps[0])
            say_what_is_read(trained, config.step, steps)
            if isinstance(trained.config, FinetuneConfig):
                say(
                    f"{trained.folder} is fine-tuned; its language model answers, not "
                    "its head."
                )
            opened[name] = trained, [trained.step, *map(int, steps[1:])]
    sources: list[Source] = []
    for name, (trained, steps) in opened.items():
        if sources and read_alike(sources[0].run, trained):
            tasks = sources[0].tasks
        else:
            tasks = _prepare_all(config, questions, trained)
            # Whatever is missing is missing for the baseline too, and said once.
            at_hand = [task.way for task in tasks]
            questions = [each for each in questions if each.way in at_hand]
        sources.append(Source(name, named[name], trained, steps, tasks))
    return sources


def read_alike(one: TrainedRun, other: TrainedRun) -> bool:
    """Whether texts become the same tokens for two runs."""
    return (
        one.tokenizer.digest == other.tokenizer.digest
        and one.model.max_seq_len == other.model.max_seq_len
    )


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


# --- piece by piece -------------------------------------------------------------


def _scores_file(folder: epath.Path, piece: Piece) -> epath.Path:
    return folder / run_folder.SCORES_FOLDER / f"{piece.name}.json"


def _is_scored(folder: epath.Path, piece: Piece) -> bool:
    """Whether the scores of a piece are at hand.

    Raises:
      ValueError: if they are of another checkpoint or of other examples.
    """
    path = _scores_file(folder, piece)
    if not path.exists():
        return False
    saved = read_json(path)
    for key, fingerprint in piece.origin().items():
        if saved.get(key) != fingerprint:
            what = {"checkpoint": "checkpoint", "examples": "set of examples"}[key]
            raise UserError(
                f"{path} holds scores of another {what} than the one there now; delete "
                "it to have that scored, or name another --workdir."
            )
    return True


def _score(
    config: ZeroShotConfig,
    folder: epath.Path,
    missing: list[Piece],
    num_pieces: int,
    stop: StopSignal,
) -> None:
    """Scores what is missing; each piece is saved before the next begins."""
    done = num_pieces - len(missing)
    if done:
        say(f"{done} of {num_pieces} scores are at hand, in {folder}.")
    with tqdm.tqdm(
        total=num_pieces,
        initial=done,
        unit="score",
        desc="zero-shot",
        disable=without_bars(),
    ) as bar:
        for piece, score, params in _with_models(config, missing):
            if stop.received():
                raise Stopped(
                    f"stopped by a signal; {done} of {num_pieces} scores are saved."
                )
            task, examples = piece.task.way.task, piece.task.asked.examples
            outcome = evaluate(piece.task, score, params, config.seed)
            lock.check_owned()
            path = folder / "predictions" / f"{piece.name}.jsonl"
            write_predictions(
                path, task, examples, outcome.predictions, log_probs=outcome.log_probs
            )
            # Last: where there are scores, nothing else of the piece is missing.
            path = _scores_file(folder, piece)
            write_json(path, {**piece.origin(), "scores": outcome.scores})
            of = f"{piece.source.name:<8}  " if config.baseline_init_from else ""
            line = describe_zero_shot(task.name, outcome.scores)
            say(f"{of}step {piece.step:>7,}  {line}")
            done += 1
            bar.update()


def _with_models(
    config: ZeroShotConfig, pieces: list[Piece]
) -> Iterator[tuple[Piece, Scorer, Any]]:
    """Pieces with the model and parameters to score them, opened once for each step."""
    opened = None
    for piece in pieces:
        source = piece.source
        if opened != (source.name, piece.step):
            opened = source.name, piece.step
            trained = source.run
            if piece.step != trained.step:
                trained = open_run(source.init_from, piece.step)
            score = _scorer(config, trained)
            params = jax.tree.map(jnp.asarray, trained.language_model)
        yield piece, score, params


def _scorer(config: ZeroShotConfig, trained: TrainedRun) -> Scorer:
    dtype = config.dtype or trained.model.dtype
    model = dataclasses.replace(trained.model, dtype=dtype)
    return Scorer(model, trained.tokenizer.vocab_size, config.batch_tokens)


# --- what is written of all -----------------------------------------------------


def _collect(folder: epath.Path, source: Source) -> dict[str, Any]:
    """All scores of a run, as results.json has them."""
    checkpoints = []
    for step in source.steps:
        tasks = {}
        for task in source.tasks:
            name, piece = task.way.task.name, Piece(source, step, task)
            scores = read_json(_scores_file(folder, piece))["scores"]
            tasks[name] = {**scores, **relative_score(name, scores)}
        checkpoints.append({"step": step, "tasks": tasks})
    return {
        "init_from": source.init_from,
        "kind": source.run.model.kind,
        "checkpoints": checkpoints,
    }


def _write(
    folder: epath.Path, config: ZeroShotConfig, runs: list[dict[str, Any]]
) -> None:
    """Writes the table, the plot and, last, all that is known of the scores."""
    scores = zero_shot_scores(runs)
    table = zero_shot_table(scores)
    write_whole(folder / "results.md", table)
    figure = figures.relative_scores(scores)
    plot = figures.save(figure, folder / "plots" / "zero_shot.png")
    versions = {name: importlib.metadata.version(name) for name in _VERSIONS}
    write_json(
        folder / run_folder.RESULTS_FILE,
        {
            "config": config.to_dict(),
            "versions": {"gpt1_jax": gpt1_jax.__version__, **versions},
            "runs": runs,
        },
    )
    say(table)
    say(f"Results: {folder / 'results.md'}\nPlot: {plot}")
