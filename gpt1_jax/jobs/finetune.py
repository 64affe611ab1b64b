"""The fine-tuning job: every task, variant and seed requested, and their table."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.finetune import (
    CUSTOM_TASK,
    FinetuneConfig,
    describe_left_out,
    suite_variants,
)
from gpt1_jax.config.saved import load_saved
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.finetuning import submission, suite
from gpt1_jax.finetuning.calibration import TEMPERATURE, fit_temperature
from gpt1_jax.finetuning.initial_state import (
    finetune_state_shapes,
    finetuned_model,
    init_finetune_state,
    num_transferred,
    open_origins,
)
from gpt1_jax.finetuning.prediction_files import write_predictions
from gpt1_jax.finetuning.predictor import Predictor, evaluate_dev, make_head
from gpt1_jax.finetuning.results import (
    ALL_RESULTS_FILE,
    ERROR_BEFORE,
    FILE_DIGESTS,
    TEST_BASELINES,
    Finished,
    labelled_split,
    predictions_file,
)
from gpt1_jax.finetuning.steps import Batch, make_batch, make_finetune_step
from gpt1_jax.finetuning.suite import PlannedRun, Result, SuiteRun
from gpt1_jax.formats import RESULTS
from gpt1_jax.interop.hub_files import fetch_tasks
from gpt1_jax.model.costs import train_flops_per_token
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.parallel.processes import (
    agree,
    eventually,
    gather,
    host_rows,
    is_main_process,
)
from gpt1_jax.report.comparisons import COMPARISONS
from gpt1_jax.report.loss_plot import plot_loss
from gpt1_jax.report.own_tasks import own_pictures, own_results
from gpt1_jax.report.plots import figure_path, save_figure
from gpt1_jax.report.tables import results_table, score_table
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
from gpt1_jax.runs.forms import choose_forms, form_names, saved_forms, say_forms
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
    fit_bag_of_words,
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
from gpt1_jax.tasks.custom_task import (
    class_weights,
    describe_class_weights,
    describe_rows,
)
from gpt1_jax.tasks.examples import (
    count_training_examples,
    describe_long_examples,
    file_digests,
    load_task,
)
from gpt1_jax.tasks.metrics import (
    METRICS,
    score_predictions,
    true_labels,
    with_all_metrics,
)
from gpt1_jax.tasks.paper_tasks import select_tasks
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import read_outputs
from gpt1_jax.tasks.uncertainty import calibration_error, score_in_full
from gpt1_jax.training.fit import (
    Computation,
    Evaluation,
    Run,
    check_patience,
    fit,
    how_long,
)
from gpt1_jax.training.memory import (
    accumulation_steps,
    check_sharing,
    check_train_batch,
)
from gpt1_jax.training.optimizer import (
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
    origin: TrainedRun
    origin_digest: str  # of its parameters
    file_digests: Mapping[str, str]  # by split, of the files that were read
    seq_lens: Sequence[int]  # lengths that batches are padded to
    splits: Mapping[str, EncodedExamples]

    def identity(self, config: FinetuneConfig) -> Identity:
        """The identity of the training that checkpoints and results belong to."""
        digests = {"origin": self.origin_digest}
        for split, encoded in self.splits.items():
            name = "training" if split == "train" else split
            digests[f"{name} examples"] = encoded.digest
        return Identity(config.to_dict(), self.origin.tokenizer.digest, digests)


@dataclasses.dataclass(frozen=True)
class TaskSetup:
    """The objects shared by the runs of a task that differ only in seed and layers."""

    config: FinetuneConfig  # as `_common_config` gives it
    data: TaskData
    computation: Computation  # of that configuration: all layers and seed 0
    init: Callable[..., TrainState]  # also takes the layers to transfer, and the seed
    batches: TrainBatches[Batch]  # of seed 0
    predict: Predictor


class _Shared:
    """Data and setup of the task at hand, for as long as runs can share them."""

    def __init__(
        self,
        origins: Mapping[str, TrainedRun],
        file_digests: Mapping[str, Mapping[str, str]],
    ):
        """Takes the origins by `config.init_from`, and `file_digests` by task."""
        self._origins, self._files = origins, file_digests
        self._digests = {name: tree_digest(o.params) for name, o in origins.items()}
        self._key: tuple[Any, ...] = ()  # what `_data` depends on
        self._data: TaskData | None = None
        self._setup: TaskSetup | None = None

    def check_finished(self, run: SuiteRun, result: Mapping[str, Any]) -> None:
        """Refuses a finished run that read other examples, or had another origin.

        To compare them, examples are encoded only if their files have changed, or were
        not recorded, as in 1.0 and before.

        Raises:
          UserError: naming what differs.
        """
        files = self._files[run.task.name]
        origin = saved_digests(result).get("origin")
        same_origin = origin == self._digests[run.config.init_from]
        if not (same_origin and files and result.get(FILE_DIGESTS) == files):
            self.data(run).identity(run.config).check(result, run.folder)

    def data(self, run: SuiteRun) -> TaskData:
        """The data of a run, read unless the run before it had the same."""
        task, start, config = run.task, run.config.init_from, run.config.data
        key = (task.name, start, config)
        if self._data is None or self._key != key:
            self._data = self._setup = None  # frees memory
            origin = self._origins[start]
            model = finetuned_model(origin, run.config.model)
            seq_lens = padded_lengths(config, model.max_seq_len)
            splits = load_task(task, config, origin.tokenizer, seq_lens[-1])
            if task.name == CUSTOM_TASK:
                for line in describe_rows(task, config, splits):
                    say(line)
            if long := describe_long_examples(task, splits, seq_lens[-1]):
                say(f"{task.title}: {long}")
            train = splits["train"].examples
            if weights := describe_class_weights(run.config.custom, train):
                say(weights)
            digests = self._digests[start], self._files[task.name]
            self._data = TaskData(task, origin, *digests, seq_lens, splits)
            self._key = key
        return self._data

    def setup(self, run: SuiteRun) -> TaskSetup:
        """The setup of a run, made unless the run before it had the same."""
        mesh = make_mesh(run.config.mesh.sharding)
        check_sharing(run.config.train, run.config.eval.batch_size, mesh)
        data = self.data(run)
        if self._setup is None or not _serves(self._setup, run):
            self._setup = None
            self._setup = _set_up(run, data)
        return self._setup


def run(config: FinetuneConfig, workdir: str) -> None:
    """Fine-tunes on all tasks requested; finished runs are not repeated.

    A single run uses `workdir` itself; several use TASK/VARIANT-seedN below it. Each
    owns its folder while it trains, so that several commands can share a suite.

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
    tasks, config = select_tasks(config)
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
    runs = suite.plan_runs(variants, tasks, config.seeds, folder)
    planned = [(run, suite.read_result(run)) for run in runs]
    results, skipped = _run_all(planned, origins, missing)
    _write_summary(config, folder, runs, results, skipped)
    finished = [run for run, result in planned if result]
    if finished and len(results) == len(finished):
        what = f"all {len(results)} runs in {folder} had finished."
        if len(results) == 1:
            best = results[0][1]["best_step"]
            what = f"the run in {folder} had finished; its best step is {best}."
        say(f"Nothing to do: {what}")


def _run_all(
    planned: Sequence[PlannedRun],
    origins: Mapping[str, TrainedRun],
    missing: dict[str, str],
) -> tuple[list[Result], dict[str, str]]:
    """Carries out all runs; returns their results and why tasks were skipped.

    Why the data of tasks cannot be read is added to `missing` as it is found out.
    """
    shared = _Shared(origins, _digest_files(planned, missing))
    for run, result in planned:
        if result and saved_digests(result) and run.task.name not in missing:
            shared.check_finished(run, result)
    _check_training_data([run for run, result in planned if not result], missing)
    results: list[Result] = []
    skipped: dict[str, str] = {}
    with suite.progress_bar([result for _, result in planned]) as bar:
        for run, result in planned:
            if result is None and run.task.name in missing:
                skipped[run.task.name] = missing[run.task.name]
            elif result is None and not _repeats(run, results):
                with lock.owned(run.folder):
                    result = suite.read_result(run)  # perhaps of another command
                    if agree(result is None):
                        result = _run_one(run, shared.setup(run))
                bar.update()
            if result is None:
                bar.total -= 1
                bar.refresh()
                continue
            results.append((run, result))
            if len(planned) > 1 and is_main_process():
                _delete_checkpoints(results)
    return results, skipped


def _digest_files(
    planned: Sequence[PlannedRun], missing: dict[str, str]
) -> dict[str, Mapping[str, str]]:
    """Digests of the files of each task, as `file_digests` returns them.

    Tasks whose data is not there are added to `missing`, and said.

    Raises:
      MissingData: if nothing else is to be done.
    """
    found: dict[str, Mapping[str, str]] = {}
    for run, _ in planned:
        task = run.task
        if task.name in found or task.name in missing:
            continue
        try:
            found[task.name] = file_digests(task, run.config.data)
        except MissingData as error:
            results = [r for each, r in planned if each.task.name == task.name]
            has_work = not all(results)
            if has_work and len(results) == len(planned):
                raise
            missing[task.name] = str(error)
            left = "Skipping" if has_work else "Cannot compare the data of"
            say(f"{left} {task.title}: {error}")
    return found


def _check_training_data(runs: Sequence[SuiteRun], missing: Mapping[str, str]) -> None:
    """Refuses unfinished runs that cannot be trained, before any of them is.

    A task whose data is `missing` is skipped in its turn.

    Raises:
      UserError: naming a task whose training examples cannot be read or are too few.
    """
    runs = [run for run in runs if run.task.name not in missing]
    tasks = {run.task.name: run.task for run in runs}
    if len({(run.task.name, run.config.data) for run in runs}) < 2:
        return  # it is found out at once
    data = runs[0].config.data
    numbers = {name: count_training_examples(t, data) for name, t in tasks.items()}
    for run in runs:
        limit, number = run.config.data.max_train_examples, numbers[run.task.name]
        try:
            count_steps(run.config, min(limit or number, number))
        except UserError as error:
            of_size = f", {run.variant}" if limit else ""
            raise UserError(f"{run.task.title}{of_size}: {error}") from error


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
    return setup.config == _common_config(run.config) and same_forms


def _common_config(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration without the values in which runs of one setup may differ."""
    return dataclasses.replace(config, seeds=(0,), transfer_layers="all")


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
    weight = config.head.aux_lm_weight
    step = make_finetune_step(model, head, optimizer, weight, parts, mesh)
    shapes = finetune_state_shapes(model, head, optimizer)
    init = functools.partial(init_finetune_state, model, head, optimizer, origin.params)
    return TaskSetup(
        config=_common_config(config),
        data=data,
        computation=Computation(
            mesh=mesh,
            shapes=shapes,
            init=functools.partial(init, model.depth, 0),
            step=jit_step(step, mesh, shapes),
            seed=0,
            forms=forms,
        ),
        init=init,
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
            seed=0,
            class_weights=class_weights(config.custom, examples.examples),
        ),
        predict=predict,
    )


def _train_sample(config: FinetuneConfig, data: TaskData) -> EncodedExamples | None:
    """Training examples to score at the end, if any were asked for."""
    number = config.eval.train_examples
    return data.splits["train"].draw(number) if number else None


def count_steps(config: FinetuneConfig, num_examples: int) -> int:
    """Updates in the whole run, whose epochs leave out the last partial batch.

    Raises:
      ValueError: if there are too few examples for one batch, or no update at all, or
        none after the warmup; or too few evaluations to end a run early.
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
    early = [step for step in _early_steps(config, per_epoch) if step < num_steps]
    check_patience(config.eval.patience, len(early) + (num_steps - 1) // per_epoch)
    return num_steps


def _early_steps(config: FinetuneConfig, per_epoch: int) -> tuple[int, ...]:
    """The steps of the first epoch to evaluate (released code: of no other epoch)."""
    return tuple(step for step in config.eval.first_epoch_steps if step < per_epoch)


def _run_one(run: SuiteRun, setup: TaskSetup) -> Mapping[str, Any]:
    """Takes one run to its end; returns its results."""
    folder = run.folder
    config = begin_run(folder, run.config)
    run_folder.write_config_and_tokenizer(folder, config, setup.data.origin.tokenizer)
    say(_description(config, setup))
    say(f"Run folder: {folder}")
    if takes := _how_long(config, folder, setup):
        say(takes)
    fit(_prepare(config, folder, setup))
    result = _conclude(run, setup)
    lock.check_owned()
    if is_main_process():
        train = setup.data.splits["train"].examples
        guess = label_entropy(run.task, train, setup.batches.class_weights)
        plot_loss(folder, "clf_loss", "nats per example", guess, config.figure)
        if run.task.name == CUSTOM_TASK:
            for picture in own_pictures([Finished(folder, config, result)]):
                path = figure_path(folder, picture.name, config.figure)
                save_figure(picture.draw, path, picture.rows)
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
    fold = ""
    if config.data.fold:
        fold = f", fold {config.data.fold} of {config.data.folds}"
    return (
        f"{setup.data.task.title}{fold}, seed {config.seeds[0]}, from {start}\n"
        f"{len(splits['train']):,} training{others} examples; "
        f"{len(setup.batches):,} steps of {config.train.batch_size} examples"
    )


def _how_long(config: FinetuneConfig, folder: epath.Path, setup: TaskSetup) -> str:
    """About how long the rest of the run takes here; empty if that is short."""
    batches, dev = setup.batches, setup.data.splits["dev"]
    steps = len(batches) - max(saved_steps(folder), default=0)
    lengths = batches.examples.lengths  # [N, C]
    seq_len = padded_length(int(lengths.mean()), setup.data.seq_lens)
    flops = train_flops_per_token(setup.predict.model, seq_len)
    training = steps * batches.batch_size * lengths.sum(axis=1).mean() * flops
    # The forward pass is a third of a step's work.
    evaluations = steps / batches.steps_per_epoch
    validation = evaluations * dev.lengths.sum() * flops / 3
    return how_long(training, validation, config.eval.patience)[0]


def _prepare(config: FinetuneConfig, folder: epath.Path, setup: TaskSetup) -> Run:
    """Prepares one run."""
    data, batches, seed = setup.data, setup.batches, config.seeds[0]
    per_epoch, first = batches.steps_per_epoch, data.task.metrics[0]
    layers = num_transferred(config.transfer_layers, setup.predict.model.depth)
    return Run(
        config=config,
        folder=folder,
        identity=data.identity(config),
        num_steps=len(batches),
        computation=dataclasses.replace(
            setup.computation,
            init=functools.partial(setup.init, layers, seed),
            seed=seed,
        ),
        batches=dataclasses.replace(batches, seed=seed),
        evaluation=Evaluation(
            evaluate=functools.partial(
                evaluate_dev, data.task, data.splits["dev"], setup.predict, say
            ),
            best=Best(f"valid_{first}", METRICS[first].highest_is_best),
            every=per_epoch,
            also=_early_steps(config, per_epoch),
            saves=True,
            patience=config.eval.patience,
        ),
        throughput=Throughput("examples", batches.batch_size),
    )


def _conclude(run: SuiteRun, setup: TaskSetup) -> dict[str, Any]:
    """Scores the best checkpoint of a run and writes its predictions."""
    config, task, splits = run.config, run.task, setup.data.splits
    best = read_params(run.folder, _best_step(run.folder))
    train, dev = splits["train"].examples, splits["dev"].examples
    is_own = task.name == CUSTOM_TASK
    compared = with_all_metrics(task) if is_own else task
    result: dict[str, Any] = {
        **RESULTS.stamp(),
        "task": task.name,
        "variant": run.variant,
        "seed": config.seeds[0],
        "init_from": config.init_from,
        "origin_step": setup.data.origin.step,
        "best_step": best.step,
        "train_examples": len(train),
        "majority": majority_baseline(compared, train, dev),
        **digests_record(setup.data.identity(config).digests),
        FILE_DIGESTS: dict(setup.data.file_digests),
    }
    if config.data.fold:
        result["fold"] = config.data.fold
    scored = {name: splits[name] for name in ("dev", "test") if name in splits}
    logits = {k: setup.predict(best.params, split) for k, split in scored.items()}
    if config.custom.calibrate:
        result |= _calibrate(task, scored, logits)
    temperature = result.get(TEMPERATURE, 1.0)
    for name, split in scored.items():
        result[name] = _report(run, name, split.examples, logits[name] / temperature)
    if is_own:
        score_words = fit_bag_of_words(compared, train)
        result["bag_of_words"] = score_words and score_words(dev)
        if labelled_split(result) == "test":
            test = splits["test"].examples
            result[TEST_BASELINES] = {
                "majority": majority_baseline(compared, train, test),
                "bag_of_words": score_words and score_words(test),
            }
    if sample := _train_sample(config, setup.data):
        outputs = read_outputs(task, setup.predict(best.params, sample) / temperature)
        result["train"] = score_predictions(task, sample.examples, *outputs)
    return result


def _calibrate(
    task: Task,
    splits: Mapping[str, EncodedExamples],
    logits: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """The temperature that fits dev, and the calibration errors of splits without it.

    Both are named as in results.json.
    """
    dev, several = splits["dev"], task.target.multilabel
    errors = {}
    for name, split in splits.items():
        if all(example.label is not None for example in split.examples):
            _, shares = read_outputs(task, logits[name])
            labels = true_labels(task, split.examples)
            errors[name] = calibration_error(labels, shares)
    temperature = fit_temperature(logits["dev"], dev.targets, several)
    return {TEMPERATURE: temperature, ERROR_BEFORE: errors}


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
    is_own = task.name == CUSTOM_TASK
    if is_main_process():
        path = predictions_file(run.folder, name)
        shares = probabilities if task.target.labels else None
        write_predictions(path, task, examples, predictions, shares, with_text=is_own)
        if name == "test" and task.glue.files:
            submission.write_glue(run.folder, task, examples, predictions)
    if any(example.label is None for example in examples):
        return {"n": len(examples), "scores": None}
    if not is_own:
        return score_predictions(task, examples, predictions)
    return score_in_full(with_all_metrics(task), examples, predictions, probabilities)


def _write_summary(
    config: FinetuneConfig,
    folder: epath.Path,
    runs: Sequence[SuiteRun],
    results: Sequence[Result],
    skipped: Mapping[str, str],
) -> None:
    """Writes and prints the summary of a command's runs.

    That of a suite also holds the finished runs of commands that share its folder.
    """
    is_suite = len(runs) > 1
    with lock.owned(folder, for_a_moment=True):
        if is_suite:
            results = suite.add_others(results, runs, folder)
        text = _summary(config.suite.compare, results, skipped)
        if is_main_process():
            write_whole(folder / TABLE_FILE, text)
        if is_main_process() and is_suite:
            _delete_checkpoints(results)
            _write_of_suite(config, folder, results)
    say(text)
    say(f"Results: {folder / TABLE_FILE}")
    if is_suite and (kept := _describe_kept(results)):
        say(kept)


def _describe_kept(results: Sequence[Result]) -> str:
    """Says which checkpoints of a suite's runs are deleted; "" if none is."""
    folders = [run.folder for run, _ in results]
    kept = [str(each) for each in folders if (each / "checkpoints").exists()]
    if len(kept) == len(folders):
        return ""
    of = f"but those of {', '.join(kept)}, " if kept else ""
    return f"Checkpoints are deleted, {of}unless --config.suite.keep_checkpoints=True."


def _delete_checkpoints(results: Sequence[Result]) -> None:
    """Deletes the checkpoints of a suite's finished runs that need not be kept.

    Kept are those of the best run on one's own task, of runs that were made alone, and
    of those configured to keep them.
    """
    saved = [each for each in results if (each[0].folder / "checkpoints").exists()]
    # Of equally good runs, one that has its checkpoints.
    best = suite.best_runs([*saved, *results])
    kept = [run.folder for run in best if run.task.name == CUSTOM_TASK]
    for run, _ in saved:
        by_itself = (run.folder / TABLE_FILE).exists()
        if run.folder in kept or by_itself or run.config.suite.keep_checkpoints:
            continue
        config = run.folder / run_folder.CONFIG_FILE
        if not config.exists() or load_saved(config).suite.keep_checkpoints:
            continue
        directory = run.folder / "checkpoints"
        with contextlib.suppress(FileNotFoundError):  # another command deletes them too
            for step in saved_steps(run.folder):
                delete_checkpoint(directory / str(step))
            directory.unlink() if os.path.islink(directory) else directory.rmtree()


def _summary(
    compare: str, results: Sequence[Result], skipped: Mapping[str, str]
) -> str:
    """The tables of `results.md`."""
    runs = suite.finished(results)
    own = runs and all(run.is_own for run in runs)
    if own and compare in ("", "scratch", "train_sizes"):
        text = own_results(runs)
    else:
        scores = score_table(runs, [run.variant for run, _ in results])
        text = results_table(scores, skipped)
    if compare in ("ablations", "train_sizes"):
        compared = COMPARISONS[compare]
        text = f"{compared.table(compared.scores(runs))}\n\n{text}"
    return text


def _write_of_suite(
    config: FinetuneConfig, folder: epath.Path, results: Sequence[Result]
) -> None:
    """Writes what a suite has beside its tables.

    These are the results of all runs, the figure of its comparison, a table in the
    trackers that can show one, and a zip for the GLUE leaderboard, of each task's run
    with the best dev score.
    """
    write_json(folder / ALL_RESULTS_FILE, suite.by_task(results))
    runs, compared = suite.finished(results), COMPARISONS.get(config.suite.compare)
    if compared and compared.has_figure:
        scores = compared.scores(runs)
        path = folder / "plots" / f"{compared.suite}{config.figure}"
        draw = functools.partial(compared.draw, scores)
        if not scores.empty and save_figure(draw, path, scores):
            say(f"Plot: {path}")
    for tracker in map(find_tracker, trackers_in_use(config.log)):
        if results and (log_results := getattr(tracker, "log_results", None)):
            log_results(folder, score_table(runs, [run.variant for run, _ in results]))
    submitted = [each for each in results if (each[0].folder / "glue").exists()]
    if submitted:
        folders = [run.folder for run in suite.best_runs(submitted)]
        submission.write_glue_zip(folders, folder / "glue.zip")
        say(f"For the GLUE leaderboard: {folder / 'glue.zip'}")
