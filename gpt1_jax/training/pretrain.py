"""Pre-training: the step, and a run from text to a trained model (sec. 3.1)."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from etils import epath

from gpt1_jax.config import ModelConfig, PretrainConfig
from gpt1_jax.data import corpus as corpora
from gpt1_jax.data import windows
from gpt1_jax.data.batching import read_ahead
from gpt1_jax.data.shards import Corpus, open_split
from gpt1_jax.model import costs, language_model
from gpt1_jax.model.context import Context
from gpt1_jax.ops.dropout import Noise, step_noise
from gpt1_jax.parallel import devices, processes
from gpt1_jax.parallel.mesh import make_mesh, to_global_batch
from gpt1_jax.training import loop, run_folder, setup
from gpt1_jax.training import records as records_lib
from gpt1_jax.training.checkpoint import Checkpoints
from gpt1_jax.training.optimizer import Schedule, make_optimizer, make_schedule
from gpt1_jax.training.state import (
    Metrics,
    TrainState,
    accumulated_gradients,
    apply_gradients,
    init_state,
)
from gpt1_jax.training.validation import Validation

PretrainStep = Callable[
    [TrainState, jax.Array], tuple[TrainState, dict[str, jax.Array]]
]


def make_pretrain_step(
    model: ModelConfig,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: Schedule,
    *,
    seed: int,
    accumulation_steps: int = 1,
) -> PretrainStep:
    """Builds the pure function of one pre-training update.

    Args:
      model: sizes and dropout.
      optimizer: gradients to updates.
      schedule: the optimizer's learning rate, to report it.
      seed: of the dropout masks.
      accumulation_steps: parts a batch is computed in, one after another; the result
        is that of the whole batch.

    Returns:
      `pretrain_step(state, tokens [B, T]) -> (state, metrics)`; metrics are scalars:
      `loss` (eq. 1 as a mean, nats per token), `grad_norm`, `learning_rate` and the
      counts of `apply_gradients`.
    """

    def loss_fn(
        params: Any, tokens: jax.Array, noise: Noise
    ) -> tuple[jax.Array, Metrics]:
        output = language_model.apply(model, params, tokens, Context(noise))
        num_seqs, seq_len = tokens.shape
        weights = jnp.full(tokens.shape, 1 / (num_seqs * (seq_len - 1)))
        return language_model.next_token_loss(model, output, tokens, weights), {}

    def pretrain_step(
        state: TrainState, tokens: jax.Array
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        noise = step_noise(seed, state.step, tokens.shape[0])
        (loss, _), grads = accumulated_gradients(
            loss_fn, state.params, tokens, noise, accumulation_steps
        )
        learning_rate = schedule(state.step - state.nonfinite_steps)
        state, metrics = apply_gradients(state, grads, loss, optimizer)
        return state, {"loss": loss, "learning_rate": learning_rate, **metrics}

    return pretrain_step


def run(config: PretrainConfig, workdir: str) -> None:
    """Pre-trains in a run folder, or goes on with the run that is in it.

    Args:
      config: of the run.
      workdir: its folder, made if need be.

    Raises:
      ValueError, OSError: what does not fit, before any long work.
      loop.Stopped: after a signal, once the state is saved.
      FloatingPointError: when training has broken down.
    """
    folder = run_folder.locate(workdir)
    run_folder.check(folder, config)
    run_folder.configure_jax(config.train)
    mesh = make_mesh()
    setup.check_batches(config.train, config.eval.batch_size, mesh)
    say = setup.speaker()
    if config.data.source == "builtin" and config.preset.startswith("paper"):
        say(_BUILTIN_WARNING)
    corpus, tokenizer = corpora.prepare(
        config.data, config.tokenizer, progress=processes.is_main_process()
    )
    model = config.model_config(tokenizer.vocab_size)
    num_steps = _num_steps(config, corpus)
    validation = Validation(
        model, config.eval, corpus, tokenizer, mesh, config.seed, say
    )
    run_folder.write(folder, config, tokenizer)

    checkpoints = Checkpoints(folder, config.checkpoint, say)
    identity = run_folder.Identity(
        config.to_dict(), tokenizer.fingerprint, corpus.fingerprint
    )
    optimizer = make_optimizer(config.optimizer, num_steps)

    def fresh(key: jax.Array) -> TrainState:
        return init_state(language_model.init_params(model, key), optimizer)

    start = (jax.random.key(config.seed),)
    state = setup.start_state(fresh, start, mesh, checkpoints, identity)
    first_step = int(state.step)
    parts = setup.accumulation_steps(config.train, model, mesh)
    _describe(say, config, model, corpus, num_steps, first_step, parts, mesh, workdir)
    records = _open_records(config, model, workdir, first_step, num_steps)
    with contextlib.closing(checkpoints), contextlib.closing(records):
        pieces = loop.Run(
            train_step=_jit_step(config, model, optimizer, num_steps, parts, mesh),
            batches=_batches(config, model, corpus, num_steps, first_step, mesh),
            evaluate=validation,
            metadata=identity.metadata,
            checkpoints=checkpoints,
            records=records,
            profile_dir=str(folder / "profile"),
        )
        cadence = setup.cadence(config, num_steps, eval_every=config.eval.every_steps)
        loop.train(pieces, state, cadence)
        records.say(f"Done: {num_steps:,} steps. Loss curve: {records.plot()}")


_BUILTIN_WARNING = """\
WARNING: this is the paper's recipe on the built-in corpus, the documentation found on
this machine: good for a try, too small for GPT-1. Name a corpus with
  --config.data.source=text --config.data.train='books/train/*.txt'
  or --config.data.source=tfds --config.data.train=lm1b:train
and see configs/pretrain.py:quickstart for a run of minutes."""


def _num_steps(config: PretrainConfig, corpus: Corpus) -> int:
    """Updates of the whole run; also refuses a corpus or schedule that is too short."""
    seq_len = config.model["max_seq_len"]
    windows.check_long_enough(corpus, "train", seq_len)
    windows.check_long_enough(corpus, "valid", seq_len)
    per_epoch = windows.windows_per_epoch(corpus.train.tokens, seq_len)
    num_steps = config.train.num_steps or int(
        config.train.num_epochs * per_epoch / config.train.batch_size
    )
    warmup = config.optimizer.warmup_steps
    if num_steps <= warmup:
        raise ValueError(
            f"The run has {num_steps:,} updates ({corpus.train.tokens:,} tokens, "
            f"{per_epoch:,} windows an epoch), all within "
            f"config.optimizer.warmup_steps={warmup}; train longer or warm up for less."
        )
    return num_steps


def _jit_step(
    config: PretrainConfig,
    model: ModelConfig,
    optimizer: optax.GradientTransformationExtraArgs,
    num_steps: int,
    accumulation_steps: int,
    mesh: jax.sharding.Mesh,
) -> PretrainStep:
    """`pretrain_step` of a configuration, jitted."""
    step = make_pretrain_step(
        model,
        optimizer,
        make_schedule(config.optimizer, num_steps),
        seed=config.seed,
        accumulation_steps=accumulation_steps,
    )
    return setup.jit_step(step, mesh)


def _batches(
    config: PretrainConfig,
    model: ModelConfig,
    corpus: Corpus,
    num_steps: int,
    first_step: int,
    mesh: jax.sharding.Mesh,
) -> Iterator[jax.Array]:
    """Training batches [B, T] on the devices, from `first_step` on."""
    source = windows.TrainWindows(
        open_split(corpus, "train"),
        model.max_seq_len,
        config.train.batch_size,
        processes.host_rows(config.train.batch_size),
        num_steps,
        config.seed,
    )
    for local in read_ahead(source, first_step):
        yield to_global_batch(local, mesh)


def _open_records(
    config: PretrainConfig,
    model: ModelConfig,
    workdir: str,
    first_step: int,
    num_steps: int,
) -> records_lib.Records:
    peak = devices.peak_flops()
    flops = costs.train_flops_per_token(model, model.max_seq_len)
    return records_lib.Records(
        epath.Path(workdir),
        first_step,
        num_steps,
        unit="tokens",
        units_per_step=config.train.batch_size * model.max_seq_len,
        mfu_per_rate=flops / peak if peak else None,
        tensorboard=config.log.tensorboard,
        active=processes.is_main_process(),
    )


def _describe(
    say: Callable[[str], None],
    config: PretrainConfig,
    model: ModelConfig,
    corpus: Corpus,
    num_steps: int,
    first_step: int,
    parts: int,
    mesh: jax.sharding.Mesh,
    workdir: str,
) -> None:
    """Says what is about to happen."""
    shapes = jax.eval_shape(
        lambda: language_model.init_params(model, jax.random.key(0))
    )
    tokens_per_step = config.train.batch_size * model.max_seq_len
    epochs = num_steps * tokens_per_step / corpus.train.tokens
    in_parts = f", each in {parts} parts" if parts > 1 else ""
    say(
        f"Model: {model.num_layers} layers, {model.embed_dim} wide, "
        f"{costs.count_params(shapes):,} parameters, {model.dtype}\n"
        f"Corpus: {corpus.train.tokens:,} training and {corpus.valid.tokens:,} "
        f"validation tokens, vocabulary {model.vocab_size:,}\n"
        f"Run: {num_steps:,} steps of {tokens_per_step:,} tokens ({epochs:.2f} epochs)"
        f"{in_parts} on {mesh.size} x {jax.devices()[0].device_kind}, in {workdir}"
    )
    if first_step:
        say(f"Resuming from the checkpoint of step {first_step:,}.")
