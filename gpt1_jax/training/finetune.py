"""Fine-tuning: the step, and one run of one task (sec. 3.2, 4.1)."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from etils import epath

from gpt1_jax.config import FinetuneConfig, ModelConfig, OptimizerConfig
from gpt1_jax.data.batching import Batch, Groups, TrainBatches, bucket, read_ahead
from gpt1_jax.model import heads, language_model
from gpt1_jax.model.context import Context
from gpt1_jax.model.heads import Head
from gpt1_jax.ops.dropout import Noise, step_noise
from gpt1_jax.ops.losses import classification_loss, sequence_mean_weights
from gpt1_jax.ops.packing import Packing, make_packing, pack
from gpt1_jax.parallel import processes
from gpt1_jax.parallel.mesh import data_parallelism, make_mesh, to_global_batch
from gpt1_jax.tasks.loading import TaskData
from gpt1_jax.tasks.task import Task
from gpt1_jax.tasks.transforms import num_outputs
from gpt1_jax.training import loop, run_folder, setup, transfer
from gpt1_jax.training import records as records_lib
from gpt1_jax.training.checkpoint import Best, Checkpoints
from gpt1_jax.training.optimizer import Schedule, make_optimizer, make_schedule
from gpt1_jax.training.scoring import DevScores, Predictor
from gpt1_jax.training.state import (
    Metrics,
    TrainState,
    accumulated_gradients,
    apply_gradients,
    init_state,
)

FinetuneStep = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]


def make_head(task: Task, model: ModelConfig, dropout: float, score_loss: str) -> Head:
    """The head that a task needs; the extract token is the last of the vocabulary."""
    outputs = num_outputs(task, score_loss)
    per_choice = task.transform == "multiple_choice"
    return Head(outputs, per_choice, dropout, extract_token=model.vocab_size - 1)


def make_finetune_step(
    model: ModelConfig,
    head: Head,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: Schedule,
    *,
    aux_lm_weight: float,
    accumulation_steps: int = 1,
) -> FinetuneStep:
    """Builds the pure function of one fine-tuning update.

    Args:
      model: of the decoder.
      head: of the task.
      optimizer: gradients to updates.
      schedule: the optimizer's learning rate, to report it.
      aux_lm_weight: lambda of L3 = L2 + lambda L1 (eq. 5); 0 leaves L1 out.
      accumulation_steps: parts a batch is computed in.

    Returns:
      `finetune_step(state, batch, seed) -> (state, metrics)`. The seed, of the dropout
      masks, is an argument so that runs which differ in it share one compiled
      program. Metrics are scalars: `loss` (L3), `clf_loss` (L2, nats an example),
      `lm_loss` (L1, nats a token), `grad_norm`, `learning_rate` and the counts of
      `apply_gradients`.
    """

    def loss_fn(params: Any, batch: Batch, noise: Noise) -> tuple[jax.Array, Metrics]:
        packing = _packing(batch)
        context = Context(noise, packing)
        logits, output = heads.apply(model, head, params, batch.tokens, context)
        clf_loss = classification_loss(logits, batch.targets)
        if not aux_lm_weight:
            return clf_loss, {"clf_loss": clf_loss}
        tokens = batch.tokens.reshape(-1, batch.tokens.shape[-1])
        weights = sequence_mean_weights(batch.lengths.reshape(-1), tokens.shape[1])
        # Packed, a sequence's last token has the next one's first behind it: weight 0.
        tokens, weights = pack(tokens, packing), pack(weights, packing)
        lm_loss = language_model.next_token_loss(model, output, tokens, weights)
        loss = clf_loss + aux_lm_weight * lm_loss
        return loss, {"clf_loss": clf_loss, "lm_loss": lm_loss}

    def finetune_step(
        state: TrainState, batch: Batch, seed: jax.Array
    ) -> tuple[TrainState, Metrics]:
        noise = step_noise(seed, state.step, len(batch.tokens))
        (loss, losses), grads = accumulated_gradients(
            loss_fn, state.params, batch, noise, accumulation_steps
        )
        learning_rate = schedule(state.step - state.nonfinite_steps)
        state, counts = apply_gradients(state, grads, loss, optimizer)
        metrics = {"loss": loss, **losses, "learning_rate": learning_rate, **counts}
        return state, metrics

    return finetune_step


def _packing(batch: Batch) -> Packing | None:
    """How to leave out the padding of a batch, if it says where its real tokens are."""
    if batch.places is None:
        return None
    return make_packing(batch.places, batch.lengths.reshape(-1), batch.tokens.shape[-1])


def run(
    config: FinetuneConfig, workdir: str, source: transfer.TrainedRun, data: TaskData
) -> Predictor:
    """Fine-tunes on one task with one seed, or goes on with the run in the folder.

    Args:
      config: with one task and one seed.
      workdir: the run folder, made if need be.
      source: the pre-trained run.
      data: of the task.

    Returns:
      What applies the model; the best parameters are in the run folder.

    Raises:
      ValueError, OSError: what does not fit, before any long work.
      loop.Stopped: after a signal, once the state is saved.
      FloatingPointError: when training has broken down.
    """
    folder, task, say = run_folder.locate(workdir), data.task, setup.speaker()
    model = transfer.model_config(source, config.model)
    transfer_layers = transfer.num_transferred(model, config.transfer_layers)
    run_folder.check(folder, config)
    mesh = make_mesh()
    setup.check_batches(config.train, config.eval.batch_size, mesh)
    head = make_head(task, model, config.head.dropout, config.head.score_loss)
    predictor = make_predictor(config, model, head, mesh)
    per_epoch, num_steps = count_steps(config, len(data.train.encoded))
    parts = _accumulation_steps(config, model, data, mesh)
    run_folder.write(folder, config, source.tokenizer)

    best = Best(f"valid_{task.metrics[0]}", highest=True)
    checkpoints = Checkpoints(folder, config.checkpoint, say, best)
    identity = run_folder.Identity(
        config.to_dict(), source.tokenizer.fingerprint, data.train.encoded.fingerprint
    )
    optimizer = make_optimizer(config.optimizer, num_steps)

    def fresh(key: jax.Array, pretrained: language_model.Params) -> TrainState:
        params = transfer.start_params(model, head, pretrained, transfer_layers, key)
        return init_state(params, optimizer)

    arguments = (jax.random.key(config.seeds[0]), source.params)
    state = setup.start_state(fresh, arguments, mesh, checkpoints, identity)
    say(_description(config, source, data, num_steps, int(state.step)))
    scores = DevScores(task, data.dev, config.head.score_loss, predictor, say)
    records = _open_records(config, folder, int(state.step), num_steps)
    with contextlib.closing(checkpoints), contextlib.closing(records):
        pieces = loop.Run(
            train_step=_train_step(config, model, head, num_steps, parts),
            batches=_batches(config, model, data, num_steps, parts, int(state.step)),
            evaluate=scores,
            metadata=identity.metadata,
            checkpoints=checkpoints,
            records=records,
            profile_dir=str(folder / "profile"),
        )
        loop.train(pieces, state, _cadence(config, per_epoch, num_steps))
        records.plot("clf_loss", "nats per example")
    return predictor


def make_predictor(
    config: FinetuneConfig, model: ModelConfig, head: Head, mesh: jax.sharding.Mesh
) -> Predictor:
    """What applies the models of a run."""
    return Predictor(
        model,
        head,
        mesh,
        config.eval.batch_size,
        config.data.seq_len_buckets,
        config.data.longest(model.max_seq_len),
    )


def count_steps(config: FinetuneConfig, num_examples: int) -> tuple[int, int]:
    """Updates of an epoch, whose last partial batch is dropped, and of the run.

    Raises:
      ValueError: if there are fewer examples than a batch takes, or no update at all.
    """
    per_epoch = num_examples // config.train.batch_size
    if not per_epoch:
        raise ValueError(
            f"The training split holds {num_examples} examples, fewer than one batch: "
            f"config.train.batch_size={config.train.batch_size}. Use a smaller batch."
        )
    num_steps = config.train.num_steps or int(config.train.num_epochs * per_epoch)
    if not num_steps:
        raise ValueError(
            f"config.train.num_epochs={config.train.num_epochs} of {per_epoch} updates "
            "is not one update; train for longer."
        )
    return per_epoch, num_steps


def _accumulation_steps(
    config: FinetuneConfig,
    model: ModelConfig,
    data: TaskData,
    mesh: jax.sharding.Mesh,
) -> int:
    """Parts to compute a batch in, so that one of the longest examples fits."""
    examples = data.train.encoded
    longest = bucket(
        int(examples.lengths.max()),
        config.data.seq_len_buckets,
        config.data.longest(model.max_seq_len),
    )
    largest = dataclasses.replace(model, max_seq_len=longest)
    return setup.accumulation_steps(config.train, largest, mesh, examples.num_seqs)


def _train_step(
    config: FinetuneConfig,
    model: ModelConfig,
    head: Head,
    num_steps: int,
    parts: int,
) -> loop.TrainStep:
    """The jitted step with this run's seed."""
    weight, seed = config.head.aux_lm_weight, config.seeds[0]
    jitted = _jitted_step(model, head, config.optimizer, num_steps, weight, parts)
    return lambda state, batch: jitted(state, batch, jnp.uint32(seed))


@functools.lru_cache(maxsize=1)  # the next seed's run compiles nothing
def _jitted_step(
    model: ModelConfig,
    head: Head,
    optimizer: OptimizerConfig,
    num_steps: int,
    aux_lm_weight: float,
    parts: int,
) -> FinetuneStep:
    step = make_finetune_step(
        model,
        head,
        make_optimizer(optimizer, num_steps),
        make_schedule(optimizer, num_steps),
        aux_lm_weight=aux_lm_weight,
        accumulation_steps=parts,
    )
    return setup.jit_step(step, make_mesh(), num_scalars=1)


def _batches(
    config: FinetuneConfig,
    model: ModelConfig,
    data: TaskData,
    num_steps: int,
    parts: int,
    first_step: int,
) -> Iterator[Batch]:
    """Training batches on the devices, from `first_step` on."""
    mesh = make_mesh()
    source = TrainBatches(
        data.train.encoded,
        config.train.batch_size,
        processes.host_rows(config.train.batch_size),
        num_steps,
        config.seeds[0],
        config.data.seq_len_buckets,
        config.data.longest(model.max_seq_len),
        Groups(data_parallelism(mesh), parts, config.data.packed_sizes),
    )
    for local in read_ahead(source, first_step):
        yield to_global_batch(local, mesh)


def _cadence(config: FinetuneConfig, per_epoch: int, num_steps: int) -> loop.Cadence:
    """Evaluates at the end of each epoch, and in the first one as released."""
    early = (step for step in config.eval.first_epoch_steps if step < per_epoch)
    return setup.cadence(
        config,
        num_steps,
        eval_every=per_epoch,
        eval_also=tuple(early),
        save_evaluated=True,
    )


def _open_records(
    config: FinetuneConfig, folder: epath.Path, first_step: int, num_steps: int
) -> records_lib.Records:
    return records_lib.Records(
        folder,
        first_step,
        num_steps,
        unit="examples",
        units_per_step=config.train.batch_size,
        mfu_per_rate=None,  # lengths differ from batch to batch
        tensorboard=config.log.tensorboard,
        active=processes.is_main_process(),
    )


def _description(
    config: FinetuneConfig,
    source: transfer.TrainedRun,
    data: TaskData,
    num_steps: int,
    first_step: int,
) -> str:
    start = f"step {source.step:,} of {source.folder}"
    if config.transfer_layers == "none":
        start = f"scratch, with the tokenizer of {source.folder}"
    test = f", {len(data.test.examples):,} test" if data.test else ""
    resuming = f"; resuming from step {first_step:,}" if first_step else ""
    return (
        f"{data.task.title}, seed {config.seeds[0]}, from {start}\n"
        f"{len(data.train.examples):,} training and {len(data.dev.examples):,} dev"
        f"{test} examples; {num_steps:,} steps of {config.train.batch_size} examples"
        f"{resuming}"
    )


def resolved(config: FinetuneConfig, source: transfer.TrainedRun) -> FinetuneConfig:
    """The configuration with the sizes of the pre-trained model written out."""
    model = dataclasses.asdict(transfer.model_config(source, config.model))
    del model["vocab_size"]  # the tokenizer's, and three
    return dataclasses.replace(config, model=model)
