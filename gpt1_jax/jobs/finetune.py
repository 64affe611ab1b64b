"""The fine-tuning job: every task, variant and seed requested, and their table."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.finetune import (
    CUSTOM_TASK,
    FinetuneConfig,
    TaskDataConfig,
    describe_left_out,
    suite_variants,
)
from gpt1_jax.config.saved import load_saved
from gpt1_jax.config.sections import LogConfig
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.finetuning import submission, suite
from gpt1_jax.finetuning.initial_state import (
    finetune_state_shapes,
    finetuned_model,
    init_finetune_state,
    num_transferred,
    open_origins,
)
from gpt1_jax.finetuning.prediction import write_predictions
from gpt1_jax.finetuning.results import ALL_RESULTS_FILE, Finished, predictions_file
from gpt1_jax.finetuning.scores import Predictor, evaluate_dev, make_head
from gpt1_jax.finetuning.steps import Batch, make_batch, make_finetune_step
from gpt1_jax.finetuning.suite import Result, SuiteRun
from gpt1_jax.formats import RESULTS
from gpt1_jax.interop.datasets import fetch_tasks
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.parallel.processes import (
    eventually,
    gather,
    host_rows,
    is_main_process,
)
from gpt1_jax.report import figures
from gpt1_jax.report.loss_plot import plot_loss, save_figure
from gpt1_jax.report.own_tasks import own_results
from gpt1_jax.report.scores import (
    ablations_table,
    aux_weight_scores,
    layer_transfer_scores,
    results_table,
    score_table,
)
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import (
    Best,
    best_step,
    delete_checkpoint,
    newest_metadata,
    saved_steps,
)
from gpt1_jax.runs.checkpoints import read_params, refuse_name
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.runs.forms import (
    choose_forms,
    form_names,
    saved_forms,
    say_forms,
)
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.runs.records import Throughput, find_tracker, trackers_in_use
from gpt1_jax.runs.resume import (
    Identity,
    begin_run,
    digests_record,
    saved_digests,
    tree_digest,
)
from gpt1_jax.tasks.baselines import (
    bag_of_words_baseline,
    label_entropy,
    majority_baseline,
)
from gpt1_jax.tasks.batches import (
    TOKENS_TO_COMPILE,
    EncodedExamples,
    TrainBatches,
    padded_length,
    padded_lengths,
)
from gpt1_jax.tasks.examples import (
    count_training_examples,
    describe_long_examples,
    load_task,
)
from gpt1_jax.tasks.metrics import METRICS, interval, score_predictions
from gpt1_jax.tasks.paper_tasks import select_tasks
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import read_outputs
from gpt1_jax.training.fit import Computation, Evaluation, Run, fit
from gpt1_jax.training.memory import (
    accumulation_steps,
    check_sharing,
    check_train_batch,
)
from gpt1_jax.training.optimizer import (
    Optimizer,
    check_optimizer,
    describe_defaults,
    make_optimizer,
)
from gpt1_jax.training.state import TrainState
from gpt1_jax.training.steps import jit_step

TABLE_FILE = "results.md"  # of all runs that a command asks for


@dataclasses.dataclass(frozen=True)
class TaskData:
    """The examples of a task, as read by runs that start from the same origin."""

    task: Task
    config: TaskDataConfig
    origin: TrainedRun
    origin_digest: str  # of its parameters
    seq_lens: Sequence[int]  # lengths that batches are padded to
    splits: Mapping[str, EncodedExamples]

    def serve(self, run: SuiteRun, origin: TrainedRun) -> bool:
        """Whether a run that starts from an origin reads these examples."""
        same = self.task.name == run.task.name and self.config == run.config.data
        return same and self.origin is origin


@dataclasses.dataclass(frozen=True)
class TaskSetup:
    """The objects shared by the runs of a task that differ only in seed and layers."""

    config: FinetuneConfig  # as `_shared` gives it
    data: TaskData
    optimizer: Optimizer
    computation: Computation  # of that configuration: all layers and seed 0
    batches: TrainBatches[Batch]  # of seed 0
    predict: Predictor


def run(config: FinetuneConfig, workdir: str) -> None:
    """Fine-tunes on all tasks requested; finished runs are not repeated.

    A single run uses `workdir` itself; several use TASK/VARIANT-seedN below it.

    Args:
      config: the job's configuration.
      workdir: the job's folder.

    Raises:
      ValueError, OSError: if the configuration, data or folder cannot be used, before
        any long work.
      Stopped: after a signal; the same command resumes.
    """
    folder = run_folder.locate_run(workdir)
    refuse_name(folder, to_save=True)
    check_optimizer(config.optimizer)
    devices.configure(config.train.matmul_precision, config.train.compilation_cache)
    named = config.custom.labels
    tasks, config = select_tasks(config)
    if config.custom.labels != named:
        say(f"Labels: {', '.join(config.custom.labels)}.")
    origin = open_run(config.init_from, config.step)
    say_what_is_read(origin)
    variants = suite_variants(config, origin.model.depth)
    variants, origins = open_origins(variants, origin)
    if note := describe_left_out(config):
        say(note)
    missing: dict[str, str] = {}  # why the data of tasks cannot be read
    if config.data.source == "hub":
        fetched, missing = fetch_tasks(tasks)
        tasks = [fetched.get(task.name, task) for task in tasks]
    planned = suite.plan_runs(variants, tasks, config.seeds, folder)
    with lock.owned(folder):
        finished = {run.folder: suite.read_result(run) for run in planned}
        results, skipped = _run_all(planned, finished, origins, missing)
        text = _summary(config.suite.compare, results, skipped)
        if is_main_process():
            write_whole(folder / TABLE_FILE, text)
            if len(planned) > 1:
                write_json(folder / ALL_RESULTS_FILE, suite.by_task(results))
                _draw(config.suite.compare, suite.finished(results), folder)
                _track(config.log, results, folder)
                _pack_glue(folder, results)
    say(text)
    say(f"Results: {folder / TABLE_FILE}")
    if len(planned) > 1 and (kept := _describe_kept(results)):
        say(kept)
    if results and all(finished[run.folder] for run, _ in results):
        say(_nothing_to_do(folder, results))


def _track(log: LogConfig, results: Sequence[Result], folder: epath.Path) -> None:
    """Shows the scores of a suite in the trackers that can show a table."""
    names = [run.variant for run, _ in results]
    for tracker in map(find_tracker, trackers_in_use(log)):
        if results and (log_results := getattr(tracker, "log_results", None)):
            log_results(folder, suite.finished(results), names)


def _run_all(
    planned: Sequence[SuiteRun],
    finished: Mapping[epath.Path, Mapping[str, Any] | None],
    origins: Mapping[str, TrainedRun],
    missing: dict[str, str],
) -> tuple[list[Result], dict[str, str]]:
    """Carries out all runs; returns their results and why tasks were skipped.

    Args:
      planned: the runs.
      finished: the results of each run's folder; None if it has not finished.
      origins: the runs that they start from, by folder.
      missing: by task, why its data cannot be read, as far as that is known; what is
        found out is added.
    """
    results: list[Result] = []
    skipped: dict[str, str] = {}
    _check_training_data([run for run in planned if not finished[run.folder]], missing)
    data: TaskData | None = None
    setup: TaskSetup | None = None
    kept: list[SuiteRun] = []  # as `_kept` says, of the results so far
    with suite.progress_bar(finished.values()) as bar:
        for run in planned:
            result, task = finished[run.folder], run.task
            origin = origins[run.config.init_from]
            has_work = result is None and not _repeats(run, results)
            if has_work:
                mesh = make_mesh(run.config.mesh.sharding)
                check_sharing(run.config.train, run.config.eval.batch_size, mesh)
            if has_work or (result and saved_digests(result)):
                known = task.name in missing or (data and data.serve(run, origin))
                if not known:
                    data = setup = None  # frees memory
                    try:
                        data = _read_data(run, origin)
                    except MissingData as error:
                        if has_work and len({each.task.name for each in planned}) == 1:
                            raise
                        missing[task.name] = str(error)
                        left = "Skipping" if has_work else "Cannot compare the data of"
                        say(f"{left} {task.title}: {error}")
                    else:
                        _check_finished(planned, finished, data, origins)
            if has_work and task.name in missing:
                skipped[task.name] = missing[task.name]
            elif has_work and data is not None:
                if setup is None or not _serves(setup, run):
                    setup = None
                    setup = _set_up(run, data)
                suite_runs = len(planned) > 1  # alone, its folder is the job's
                with lock.owned(run.folder) if suite_runs else contextlib.nullcontext():
                    result = _run_one(run, setup)
                bar.update()
            if result is not None:
                results.append((run, result))
                if len(planned) > 1 and is_main_process():
                    before, kept = kept, _kept(results)
                    for other in (*before, run):
                        if other.folder not in [each.folder for each in kept]:
                            _delete_checkpoints(other)
            else:
                bar.total -= 1
                bar.refresh()
    return results, skipped


def _check_training_data(runs: Sequence[SuiteRun], missing: Mapping[str, str]) -> None:
    """Refuses a suite of which a later task cannot be trained on, before any training.

    A task whose data is not there is skipped in its turn.

    Args:
      runs: those that have not finished.
      missing: the tasks whose data is known not to be there.

    Raises:
      UserError: naming a task whose training examples cannot be read or are too few.
    """
    tasks = {run.task.name: run.task for run in runs if run.task.name not in missing}
    if len(tasks) < 2:
        return  # it is found out at once
    numbers: dict[str, int] = {}
    for name, task in tasks.items():
        with contextlib.suppress(MissingData):
            numbers[name] = count_training_examples(task, runs[0].config.data)
    for run in runs:
        if run.task.name in numbers:
            limit, number = run.config.data.max_train_examples, numbers[run.task.name]
            try:
                count_steps(run.config, min(limit or number, number))
            except UserError as error:
                raise UserError(f"{run.task.title}: {error}") from error


def _repeats(run: SuiteRun, results: Sequence[Result]) -> bool:
    """Whether a run would be the same as a finished one."""
    repeated = suite.find_repeated(run, results)
    if repeated is not None:
        say(
            f"{run.task.title} has no more than "
            f"{run.config.data.max_train_examples:,} training examples, so that "
            f"{run.folder.name} would repeat {repeated.folder.name}: left out."
        )
    return repeated is not None


def _serves(setup: TaskSetup, run: SuiteRun) -> bool:
    """Whether a run can use a setup; one that resumes needs its own forms, too."""
    before = saved_forms(newest_metadata(run.folder))
    same_forms = not before or before == form_names(setup.computation.forms)
    return setup.config == _shared(run.config) and same_forms


def _check_finished(
    planned: Sequence[SuiteRun],
    finished: Mapping[epath.Path, Mapping[str, Any] | None],
    data: TaskData,
    origins: Mapping[str, TrainedRun],
) -> None:
    """Refuses finished runs that read other examples, or started from another origin.

    Raises:
      UserError: naming what differs.
    """
    for run in planned:
        result, origin = finished[run.folder], origins[run.config.init_from]
        if result and saved_digests(result) and data.serve(run, origin):
            _identity(run.config, data).check(result, run.folder)


def _shared(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration without the values in which runs of one setup may differ."""
    return dataclasses.replace(config, seeds=(0,), transfer_layers="all")


def _read_data(run: SuiteRun, origin: TrainedRun) -> TaskData:
    """Reads a task's examples.

    Raises:
      MissingData: if the examples are not there.
    """
    task, config = run.task, run.config
    model = finetuned_model(origin, config.model)
    seq_lens = padded_lengths(config.data, model.max_seq_len)
    splits = load_task(task, config.data, origin.tokenizer, seq_lens[-1])
    if long := describe_long_examples(task, splits, seq_lens[-1]):
        say(f"{task.title}: {long}")
    digest = tree_digest(origin.params)
    return TaskData(task, config.data, origin, digest, seq_lens, splits)


def _set_up(run: SuiteRun, data: TaskData) -> TaskSetup:
    """Prepares the objects that the runs of a task share."""
    task, config, origin = run.task, run.config, data.origin
    splits, seq_lens = data.splits, data.seq_lens
    mesh = make_mesh(config.mesh.sharding)
    model = finetuned_model(origin, config.model)
    examples = splits["train"]
    num_steps = count_steps(config, len(examples))
    shortest = dataclasses.replace(model, max_seq_len=int(examples.lengths.min()))
    check_train_batch(config.train, shortest, mesh, examples.num_seqs)
    longest = padded_length(int(examples.lengths.max()), seq_lens)
    largest = dataclasses.replace(model, max_seq_len=longest)
    parts = accumulation_steps(
        config.train, config.optimizer, largest, mesh, examples.num_seqs
    )
    before = saved_forms(newest_metadata(run.folder))
    model, forms = choose_forms(model, longest, training=True, before=before)
    say_forms(forms)
    if note := describe_defaults(config.optimizer):
        say(note)

    head = make_head(task, config.head.dropout, origin.tokenizer.vocab_size)
    predict = Predictor(model, head, mesh, config.eval.batch_size, seq_lens)
    for split in (splits["dev"], splits.get("test"), _train_sample(config, data)):
        if split is not None:
            predict.check_memory("config.eval.batch_size", split)

    optimizer = make_optimizer(config.optimizer, num_steps)
    step = make_finetune_step(
        model, head, optimizer, config.head.aux_lm_weight, parts, mesh
    )
    shapes = finetune_state_shapes(model, head, optimizer)
    shared = _shared(config)
    return TaskSetup(
        config=shared,
        data=data,
        optimizer=optimizer,
        computation=Computation(
            mesh=mesh,
            shapes=shapes,
            init=_init(shared, data, predict, optimizer),
            step=jit_step(step, mesh, shapes),
            seed=shared.seeds[0],
            forms=forms,
        ),
        batches=TrainBatches(
            examples=examples,
            make_batch=make_batch,
            batch_size=config.train.batch_size,
            rows=host_rows(config.train.batch_size),
            seq_lens=seq_lens,
            devices=mesh.size,
            parts=parts,
            unpadded_sizes=config.data.unpadded_sizes,
            tokens_to_compile=TOKENS_TO_COMPILE[mesh.devices.flat[0].platform],
            num_steps=num_steps,
            seed=shared.seeds[0],
        ),
        predict=predict,
    )


def _init(
    config: FinetuneConfig, data: TaskData, predict: Predictor, optimizer: Optimizer
) -> Callable[[TrainState], TrainState]:
    """The function that makes the state a run starts from."""
    return functools.partial(
        init_finetune_state,
        predict.model,
        predict.head,
        optimizer,
        data.origin.params,
        num_transferred(config.transfer_layers, predict.model.depth),
        config.seeds[0],
    )


def _train_sample(config: FinetuneConfig, data: TaskData) -> EncodedExamples | None:
    """Training examples to score at the end, if any were asked for."""
    number = config.eval.train_examples
    return data.splits["train"].draw(number) if number else None


def count_steps(config: FinetuneConfig, num_examples: int) -> int:
    """Updates in the whole run, whose epochs leave out the last partial batch.

    Raises:
      ValueError: if there are too few examples for one batch, or no update at all, or
        none after the warmup.
    """
    per_epoch = num_examples // config.train.batch_size
    if not per_epoch:
        raise UserError(
            f"The training split holds {num_examples} examples, fewer than one batch: "
            f"config.train.batch_size={config.train.batch_size}. Use a smaller batch."
        )
    num_steps = config.train.num_steps or int(config.train.num_epochs * per_epoch)
    if not num_steps:
        raise UserError(
            f"config.train.num_epochs={config.train.num_epochs} at {per_epoch} updates "
            "per epoch gives no update; train for longer."
        )
    config.optimizer.check_num_steps(
        num_steps, f"{num_examples:,} examples, {per_epoch:,} updates per epoch"
    )
    return num_steps


def _run_one(run: SuiteRun, setup: TaskSetup) -> Mapping[str, Any]:
    """Takes one run to its end; returns its results."""
    folder = run.folder
    config = begin_run(folder, run.config)
    run_folder.write_config_and_tokenizer(folder, config, setup.data.origin.tokenizer)
    say(_description(config, setup))
    say(f"Run folder: {folder}")
    fit(_prepare(config, folder, setup))
    result = _conclude(run, setup)
    lock.check_owned()
    if is_main_process():
        guess = label_entropy(run.task, setup.data.splits["train"].examples)
        plot_loss(folder, "clf_loss", "nats per example", guess)
        write_json(folder / RESULTS_FILE, result)
    return result


def _description(config: FinetuneConfig, setup: TaskSetup) -> str:
    """A description of the run that is about to start."""
    origin, splits = setup.data.origin, setup.data.splits
    start = f"step {origin.step:,} of {origin.folder}"
    if config.transfer_layers == "none":
        start = f"scratch, with the tokenizer of {origin.folder}"
    others = f" and {len(splits['dev']):,} dev"
    if "test" in splits:
        others = f", {len(splits['dev']):,} dev and {len(splits['test']):,} test"
    return (
        f"{setup.data.task.title}, seed {config.seeds[0]}, from {start}\n"
        f"{len(splits['train']):,} training{others} examples; "
        f"{len(setup.batches):,} steps of {config.train.batch_size} examples"
    )


def _prepare(config: FinetuneConfig, folder: epath.Path, setup: TaskSetup) -> Run:
    """Prepares one run."""
    data, batches, seed = setup.data, setup.batches, config.seeds[0]
    per_epoch, first = batches.steps_per_epoch, data.task.metrics[0]
    early = (
        step
        for step in config.eval.first_epoch_steps
        if step < per_epoch  # released code: only in the first epoch
    )
    return Run(
        config=config,
        folder=folder,
        identity=_identity(config, data),
        num_steps=len(batches),
        computation=dataclasses.replace(
            setup.computation,
            init=_init(config, data, setup.predict, setup.optimizer),
            seed=seed,
        ),
        batches=dataclasses.replace(batches, seed=seed),
        evaluation=Evaluation(
            evaluate=functools.partial(
                evaluate_dev, data.task, data.splits["dev"], setup.predict, say
            ),
            best=Best(f"valid_{first}", METRICS[first].highest_is_best),
            every=per_epoch,
            also=tuple(early),
            saves=True,
        ),
        throughput=Throughput("examples", batches.batch_size),
    )


def _identity(config: FinetuneConfig, data: TaskData) -> Identity:
    """The identity of the training that checkpoints and results belong to."""
    splits = data.splits
    digests = {
        f"{long} examples": splits[name].digest
        for name, long in (("train", "training"), ("dev", "dev"), ("test", "test"))
        if name in splits
    }
    return Identity(
        config.to_dict(),
        data.origin.tokenizer.digest,
        {"origin": data.origin_digest, **digests},
    )


def _conclude(run: SuiteRun, setup: TaskSetup) -> dict[str, Any]:
    """Scores the best checkpoint of a run and writes its predictions."""
    config, task, splits = run.config, run.task, setup.data.splits
    best = read_params(run.folder, _best_step(run.folder))
    train, dev = splits["train"].examples, splits["dev"].examples
    result: dict[str, Any] = {
        **RESULTS.stamp(),
        "task": task.name,
        "variant": run.variant,
        "seed": config.seeds[0],
        "init_from": config.init_from,
        "origin_step": setup.data.origin.step,
        "best_step": best.step,
        "train_examples": len(train),
        "majority": majority_baseline(task, train, dev),
        **digests_record(_identity(config, setup.data).digests),
    }
    for name in ("dev", "test"):
        if name in splits:
            logits = setup.predict(best.params, splits[name])
            result[name] = _report(run, name, splits[name].examples, logits)
    if task.name == CUSTOM_TASK:
        result["bag_of_words"] = bag_of_words_baseline(task, train, dev)
    if sample := _train_sample(config, setup.data):
        predictions, _ = read_outputs(task, setup.predict(best.params, sample))
        result["train"] = score_predictions(task, sample.examples, predictions)
    return result


def _best_step(folder: epath.Path) -> int:
    """The best step on every process; the main one alone has written the scores."""
    found = str(best_step(folder)) if is_main_process() else ""
    step = int(gather(found)[0])
    eventually(lambda: step in saved_steps(folder))
    return step


def _report(
    run: SuiteRun, name: str, examples: Sequence[Example], logits: Any
) -> dict[str, Any]:
    """Writes the predictions for a split; returns its scores, if it has labels."""
    task = run.task
    predictions, probabilities = read_outputs(task, logits)
    if is_main_process():
        write_predictions(
            predictions_file(run.folder, name),
            task,
            examples,
            predictions,
            probabilities if task.target.labels else None,
        )
        if name == "test" and task.glue.files:
            submission.write_glue(run.folder, task, examples, predictions)
    if any(example.label is None for example in examples):
        return {"n": len(examples), "scores": None}
    scores = score_predictions(task, examples, predictions)
    if task.name == CUSTOM_TASK:
        labels = np.asarray([example.label for example in examples])
        found = {each: interval(each, predictions, labels) for each in task.metrics}
        scores["intervals"] = found
    return scores


def _kept(results: Sequence[Result]) -> list[SuiteRun]:
    """The runs of a suite that keep their checkpoints: the best on one's own task."""
    return [run for run in suite.best_runs(results) if run.task.name == CUSTOM_TASK]


def _describe_kept(results: Sequence[Result]) -> str:
    """Says which checkpoints of a suite's runs are deleted; "" if none is."""
    folders = [run.folder for run, _ in results]
    kept = [str(each) for each in folders if (each / "checkpoints").exists()]
    if len(kept) == len(folders):
        return ""
    of = f"but those of {', '.join(kept)}, " if kept else ""
    return f"Checkpoints are deleted, {of}unless --config.suite.keep_checkpoints=True."


def _delete_checkpoints(run: SuiteRun) -> None:
    """Deletes the checkpoints of a finished run of a suite, unless they are kept.

    A run that finished before may still have some, if its program was killed while it
    deleted them. A run that was made alone, or configured to keep them, keeps them.
    """
    folder = run.folder
    directory = folder / "checkpoints"
    by_itself = (folder / TABLE_FILE).exists()
    if not directory.exists() or by_itself or run.config.suite.keep_checkpoints:
        return
    saved = folder / run_folder.CONFIG_FILE
    if not saved.exists() or load_saved(saved).suite.keep_checkpoints:
        return
    for step in saved_steps(folder):
        delete_checkpoint(directory / str(step))
    directory.rmtree()


def _summary(compare: str, results: list[Result], skipped: Mapping[str, str]) -> str:
    """The tables of `results.md`."""
    runs = suite.finished(results)
    if runs and all(run.is_own for run in runs) and compare in ("", "scratch"):
        return own_results(runs)
    scores = score_table(runs, [run.variant for run, _ in results])
    text = results_table(scores, skipped)
    return f"{ablations_table(runs)}\n{text}" if compare == "ablations" else text


def _draw(compare: str, runs: list[Finished], folder: epath.Path) -> None:
    """Draws the scores of a comparison that has a figure, if there are any."""
    if compare == "layer_transfer":
        scores, draw = layer_transfer_scores(runs), figures.layer_transfer
    elif compare == "aux_lm_weight":
        scores, draw = aux_weight_scores(runs), figures.aux_lm_weight
    else:
        return
    if not scores.empty:
        plot = save_figure(draw(scores), folder / "plots" / f"{compare}.png")
        say(f"Plot: {plot}")


def _nothing_to_do(folder: epath.Path, results: list[Result]) -> str:
    """Says that all runs had finished, and that only their summary is written again."""
    if len(results) > 1:
        return f"Nothing to do: all {len(results)} runs in {folder} had finished."
    best = results[0][1]["best_step"]
    return f"Nothing to do: the run in {folder} had finished; its best step is {best}."


def _pack_glue(folder: epath.Path, results: list[Result]) -> None:
    """Writes a zip for the leaderboard, of each task's run with the best dev score."""
    submitted = [each for each in results if (each[0].folder / "glue").exists()]
    if submitted:
        folders = [run.folder for run in suite.best_runs(submitted)]
        submission.write_glue_zip(folders, folder / "glue.zip")
        say(f"For the GLUE leaderboard: {folder / 'glue.zip'}")
