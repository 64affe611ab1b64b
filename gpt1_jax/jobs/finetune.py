"""The fine-tuning job: every task, variant and seed requested, and their table."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath

from gpt1_jax.config import BEST, FinetuneConfig, ModelConfig
from gpt1_jax.config.finetune import describe_left_out, suite_variants
from gpt1_jax.config.saved import load_saved
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.evaluation import submission
from gpt1_jax.evaluation.scores import Predictor, evaluate_dev, make_head
from gpt1_jax.model.heads import Head
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import data_parallelism, make_mesh
from gpt1_jax.parallel.processes import host_rows, is_main_process
from gpt1_jax.report import figures, tables
from gpt1_jax.report.comparisons import ablations_table
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock, suite
from gpt1_jax.runs.checkpoint_files import (
    Best,
    clear_steps,
    delete_checkpoint,
    saved_steps,
)
from gpt1_jax.runs.checkpoints import read_params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.runs.records import Throughput
from gpt1_jax.runs.resume import (
    Identity,
    begin_run,
    digests_record,
    saved_digests,
    tree_digest,
)
from gpt1_jax.runs.suite import Planned, Result
from gpt1_jax.tasks.batches import (
    EncodedExamples,
    TrainBatches,
    padded_length,
    padded_lengths,
)
from gpt1_jax.tasks.custom_task import select_tasks
from gpt1_jax.tasks.examples import (
    describe_long_examples,
    load_task,
)
from gpt1_jax.tasks.metrics import majority_baseline, score_predictions
from gpt1_jax.tasks.task import Example
from gpt1_jax.tasks.transforms import read_outputs
from gpt1_jax.training import initial_state
from gpt1_jax.training.fit import (
    Plan,
    accumulation_steps,
    check_sharing,
    check_train_batch,
    fit,
)
from gpt1_jax.training.optimizer import Optimizer, make_optimizer
from gpt1_jax.training.state import TrainState, init_state
from gpt1_jax.training.steps import Step, jit_step, make_finetune_step

TABLE_FILE = "results.md"  # of all runs that a command asks for
ALL_RESULTS_FILE = "all_results.json"  # of several runs; a folder may end up with both


@dataclasses.dataclass(frozen=True)
class Setting:
    """What runs share that differ in seed and transferred layers alone."""

    config: FinetuneConfig  # as `_shared` gives it
    splits: Mapping[str, EncodedExamples]
    train_sample: EncodedExamples | None  # training examples to score at the end
    model: ModelConfig
    head: Head
    mesh: jax.sharding.Mesh
    optimizer: Optimizer
    steps_per_epoch: int
    num_steps: int
    accumulation_steps: int
    shapes: TrainState
    step: Step
    predict: Predictor
    origin: str  # content digest of the parameters to start from


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
    devices.configure(config.train.matmul_precision, config.train.compilation_cache)
    named = config.custom.labels
    tasks, config = select_tasks(config)
    if config.custom.labels != named:
        say(f"Labels: {', '.join(config.custom.labels)}.")
    source = open_run(config.init_from, config.step)
    say_what_is_read(source)
    variants = suite_variants(config, source.model.depth)
    variants, sources = initial_state.open_sources(variants, source)
    if note := describe_left_out(config):
        say(note)
    folder = run_folder.locate(workdir)
    plan = suite.plan(variants, tasks, config.seeds, folder)
    with lock.owned(folder):
        results, skipped = _run_all(plan, sources)
        text = _summary(config.suite.compare, results, skipped)
        if is_main_process():
            write_whole(folder / TABLE_FILE, text)
            if plan[1:]:
                write_json(folder / ALL_RESULTS_FILE, suite.by_task(results))
                _pack_glue(folder, results)
                for plot in figures.draw(
                    config.suite.compare, suite.finished(results), folder
                ):
                    say(f"Plot: {plot}")
    say(text)
    say(f"Results: {folder / TABLE_FILE}")


def _run_all(
    plan: list[Planned], sources: Mapping[str, TrainedRun]
) -> tuple[list[Result], dict[str, str]]:
    """Carries out all runs; returns their results and why tasks were skipped."""
    finished = {planned.folder: suite.read_result(planned) for planned in plan}
    results: list[Result] = []
    skipped: dict[str, str] = {}
    setting: Setting | None = None
    alone = len({planned.task.name for planned in plan}) == 1
    with suite.progress_bar(finished.values()) as bar:
        for planned in plan:
            result = finished[planned.folder]
            moved = result is not None and suite.has_moved(planned, result)
            if moved or (result is None and _has_work(planned, results, skipped)):
                source = sources[planned.config.init_from]
                if setting is None or setting.config != _shared(planned.config):
                    setting = None  # makes room
                    setting = _set_up(planned, source, skipped, alone=alone)
                    _check_finished(plan, finished, source, setting)
                if setting is not None and result is None:
                    result = _run_one(planned, source, setting)
                    bar.update()
            if result is not None:
                results.append((planned, result))
                if len(plan) > 1 and is_main_process():
                    _delete_checkpoints(planned)
            else:
                bar.total -= 1
                bar.refresh()
    return results, skipped


def _check_finished(
    plan: list[Planned],
    finished: Mapping[epath.Path, Mapping[str, Any] | None],
    source: TrainedRun,
    setting: Setting | None,
) -> None:
    """Refuses finished runs of a setting that were made from something else.

    Raises:
      UserError: naming what differs.
    """
    for planned in plan:
        result = finished[planned.folder]
        if setting is None or _shared(planned.config) != setting.config:
            continue
        if result is not None and saved_digests(result):
            identity = _identity(planned.config, source, setting)
            identity.check(result, planned.folder)


def _has_work(planned: Planned, results: list[Result], skipped: dict[str, str]) -> bool:
    """Whether a run can be done, and tells something new."""
    if planned.task.name in skipped:
        return False
    repeated = suite.find_repeated(planned, results)
    if repeated is not None:
        say(
            f"{planned.task.title} has no more than "
            f"{planned.config.data.max_train_examples:,} training examples, so that "
            f"{planned.folder.name} would repeat {repeated.folder.name}: left out."
        )
    return repeated is None


def _shared(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration without what runs of one setting may differ in."""
    return dataclasses.replace(config, seeds=(0,), transfer_layers="all")


def _summary(compare: str, results: list[Result], skipped: Mapping[str, str]) -> str:
    """The tables of `results.md`."""
    text = tables.results_table(suite.by_task(results), skipped)
    if compare == "ablations":
        return f"{ablations_table(suite.finished(results))}\n{text}"
    return text


def _pack_glue(folder: epath.Path, results: list[Result]) -> None:
    """Writes a zip for the leaderboard, of each task's run with the best dev score."""
    submitted = [each for each in results if (each[0].folder / "glue").exists()]
    if submitted:
        folders = [planned.folder / "glue" for planned in suite.best(submitted)]
        submission.write_glue_zip(folders, folder / "glue.zip")
        say(f"For the GLUE leaderboard: {folder / 'glue.zip'}")


def _set_up(
    planned: Planned, source: TrainedRun, skipped: dict[str, str], *, alone: bool
) -> Setting | None:
    """Reads a task's data and decides what its runs share.

    If data is missing, and there are other tasks, says so and returns None.
    """
    task, config = planned.task, planned.config
    mesh = make_mesh(config.mesh.sharding, config.mesh.tensor_parallelism)
    model = initial_state.finetuned_model(source, config.model)
    check_sharing(config.train, config.eval.batch_size, model, mesh)
    seq_lens = padded_lengths(config.data, model.max_seq_len)
    try:
        splits = load_task(task, config.data, source.tokenizer, seq_lens[-1])
    except MissingData as error:
        if alone:
            raise
        skipped[task.name] = str(error)
        say(f"Skipping {task.title}: {error}")
        return None
    if long := describe_long_examples(task, splits, seq_lens[-1]):
        say(f"{task.title}: {long}")
    examples = splits["train"]
    steps_per_epoch, num_steps = count_steps(config, len(examples))
    shortest = dataclasses.replace(model, max_seq_len=int(examples.lengths.min()))
    check_train_batch(config.train, shortest, mesh, examples.num_seqs)
    longest = padded_length(int(examples.lengths.max()), seq_lens)
    largest = dataclasses.replace(model, max_seq_len=longest)
    parts = accumulation_steps(config.train, largest, mesh, examples.num_seqs)
    head = make_head(task, config.head.dropout, source.tokenizer.vocab_size)
    predict = Predictor(model, head, mesh, config.eval.batch_size, seq_lens)
    number = config.eval.train_examples
    train_sample = examples.draw(number) if number else None
    for split in (splits["dev"], splits.get("test"), train_sample):
        if split is not None:
            predict.check_memory("config.eval.batch_size", split)
    optimizer = make_optimizer(config.optimizer, num_steps)
    step = make_finetune_step(
        model, head, optimizer, config.head.aux_lm_weight, parts, mesh
    )
    init = _init(model, head, optimizer, None)
    shapes = jax.eval_shape(init, jax.random.key(0), source.params)
    return Setting(
        config=_shared(config),
        splits=splits,
        train_sample=train_sample,
        model=model,
        head=head,
        mesh=mesh,
        optimizer=optimizer,
        steps_per_epoch=steps_per_epoch,
        num_steps=num_steps,
        accumulation_steps=parts,
        shapes=shapes,
        step=jit_step(step, mesh, shapes),
        predict=predict,
        origin=tree_digest(source.params),
    )


def count_steps(config: FinetuneConfig, num_examples: int) -> tuple[int, int]:
    """Updates per epoch, without its last partial batch, and in the whole run.

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
    return per_epoch, num_steps


def _init(
    model: ModelConfig, head: Head, optimizer: Optimizer, transfer_layers: int | None
):
    """Makes (key, pre-trained parameters) -> the state before the first step."""

    def init(key: jax.Array, pretrained: Params) -> TrainState:
        params = initial_state.start_params(
            model, head, pretrained, transfer_layers, key
        )
        return init_state(params, optimizer)

    return init


def _run_one(
    planned: Planned, source: TrainedRun, setting: Setting
) -> Mapping[str, Any]:
    """Takes one run to its end; returns its results."""
    folder = planned.folder
    clear_steps(folder)
    config = begin_run(folder, planned.config)
    run_folder.write(folder, config, source.tokenizer)
    say(_description(planned._replace(config=config), source, setting))
    say(f"Run folder: {folder}")
    fit(_plan(planned._replace(config=config), source, setting))
    result = _conclude(planned, source, setting)
    lock.check_owned()
    if is_main_process():
        figures.plot_loss(folder, "clf_loss", "nats per example")
        write_json(folder / RESULTS_FILE, result)
    return result


def _delete_checkpoints(planned: Planned) -> None:
    """Deletes the checkpoints of a finished run of a suite, unless they are kept.

    The run may have finished in an earlier session, which was killed before all were
    deleted; one that was made to keep them, or by itself, keeps them.
    """
    folder = planned.folder
    directory = folder / "checkpoints"
    by_itself = (folder / TABLE_FILE).exists()
    if not directory.exists() or by_itself or planned.config.suite.keep_checkpoints:
        return
    saved = folder / run_folder.CONFIG_FILE
    if not saved.exists() or load_saved(saved).suite.keep_checkpoints:
        return
    for step in saved_steps(folder):
        delete_checkpoint(directory / str(step))
    directory.rmtree()


def _plan(planned: Planned, source: TrainedRun, setting: Setting) -> Plan:
    config, task, splits = planned.config, planned.task, setting.splits
    model, mesh = setting.model, setting.mesh
    seed, batch_size = config.seeds[0], config.train.batch_size
    layers = initial_state.num_transferred(config.transfer_layers, model.depth)
    early = (
        step
        for step in config.eval.first_epoch_steps
        if step < setting.steps_per_epoch  # released code: only in the first epoch
    )
    return Plan(
        config=config,
        folder=planned.folder,
        identity=_identity(config, source, setting),
        mesh=mesh,
        seed=seed,
        num_steps=setting.num_steps,
        shapes=setting.shapes,
        init=_init(model, setting.head, setting.optimizer, layers),
        init_arguments=lambda: (jax.random.key(seed), source.params),
        step=setting.step,
        batches=TrainBatches(
            splits["train"],
            batch_size=batch_size,
            rows=host_rows(batch_size),
            seq_lens=padded_lengths(config.data, model.max_seq_len),
            devices=data_parallelism(mesh),
            parts=setting.accumulation_steps,
            sizes=config.data.packed_sizes,
            num_steps=setting.num_steps,
            seed=seed,
        ),
        evaluate=functools.partial(
            evaluate_dev, task, splits["dev"], setting.predict, say
        ),
        evaluate_every=setting.steps_per_epoch,
        evaluate_also=tuple(early),
        save_evaluated=True,
        best=Best(f"valid_{task.metrics[0]}", highest=True),
        throughput=Throughput("examples", batch_size),
    )


def _identity(config: FinetuneConfig, source: TrainedRun, setting: Setting) -> Identity:
    """What a run's checkpoints and results belong to."""
    splits = setting.splits
    return Identity(
        config.to_dict(),
        source.tokenizer.fingerprint,
        {
            "origin": setting.origin,
            "training examples": splits["train"].digest,
            "dev examples": splits["dev"].digest,
            **({"test examples": splits["test"].digest} if "test" in splits else {}),
        },
        older=splits["train"].digest,
    )


def _description(planned: Planned, source: TrainedRun, setting: Setting) -> str:
    """What is about to happen."""
    config, splits = planned.config, setting.splits
    start = f"step {source.step:,} of {source.folder}"
    if config.transfer_layers == "none":
        start = f"scratch, with the tokenizer of {source.folder}"
    test = f", {len(splits['test']):,} test" if "test" in splits else ""
    return (
        f"{planned.task.title}, seed {config.seeds[0]}, from {start}\n"
        f"{len(splits['train']):,} training and {len(splits['dev']):,} dev"
        f"{test} examples; {setting.num_steps:,} steps of {config.train.batch_size} "
        "examples"
    )


def _conclude(planned: Planned, source: TrainedRun, setting: Setting) -> dict[str, Any]:
    """Scores the best checkpoint of a run and writes its predictions."""
    config, task, splits = planned.config, planned.task, setting.splits
    best = read_params(planned.folder, BEST)
    train, dev = splits["train"].examples, splits["dev"].examples
    result: dict[str, Any] = {
        "task": task.name,
        "start": planned.variant,
        "seed": config.seeds[0],
        "init_from": config.init_from,
        "init_step": source.step,
        "best_step": best.step,
        "train_examples": len(train),
        "majority": majority_baseline(task, train, dev),
        **digests_record(_identity(config, source, setting).digests),
    }
    for name in ("dev", "test"):
        if name in splits:
            logits = setting.predict(best.params, splits[name])
            result[name] = _report(planned, name, splits[name].examples, logits)
    if sample := setting.train_sample:
        predictions, _ = read_outputs(task, setting.predict(best.params, sample))
        result["train"] = score_predictions(task, sample.examples, predictions)
    return result


def _report(
    planned: Planned, name: str, examples: Sequence[Example], logits: Any
) -> dict[str, Any]:
    """Writes the predictions for a split; returns its scores, if it has labels."""
    task = planned.task
    predictions, probabilities = read_outputs(task, logits)
    if is_main_process():
        submission.write_predictions(
            planned.folder / "predictions" / f"{name}.jsonl",
            task,
            examples,
            predictions,
            probabilities if task.labels else None,
        )
        if name == "test" and task.glue:
            submission.write_glue(planned.folder / "glue", task, examples, predictions)
    if any(example.label is None for example in examples):
        return {"n": len(examples), "scores": None}
    return score_predictions(task, examples, predictions)
