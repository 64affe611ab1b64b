"""Pre-training: the step, and a run from text to a trained model (sec. 3.1)."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from etils import epath

from gpt1_jax.config import ModelConfig, PretrainConfig
from gpt1_jax.data import corpus as corpora
from gpt1_jax.data import windows
from gpt1_jax.data.shards import Corpus, open_split
from gpt1_jax.model import transformer
from gpt1_jax.model.dropout import Noise, step_noise
from gpt1_jax.parallel import mesh as parallel
from gpt1_jax.training import loop, run_folder
from gpt1_jax.training import records as records_lib
from gpt1_jax.training.checkpoint import Checkpoints, abstract_state
from gpt1_jax.training.losses import next_token_loss
from gpt1_jax.training.optimizer import Schedule, make_optimizer, make_schedule
from gpt1_jax.training.state import (
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

    def loss_fn(params: Any, tokens: jax.Array, noise: Noise) -> jax.Array:
        output = transformer.apply(model, params, tokens, noise)
        num_seqs, seq_len = tokens.shape
        weights = jnp.full(tokens.shape, 1 / (num_seqs * (seq_len - 1)))
        dtype = jnp.dtype(model.dtype)
        return next_token_loss(*output, tokens, weights, dtype, model.loss_chunk)

    def pretrain_step(
        state: TrainState, tokens: jax.Array
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        noise = step_noise(seed, state.step, tokens.shape[0])
        loss, grads = accumulated_gradients(
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
    run_folder.configure_jax(config)
    mesh = parallel.make_mesh()
    _check_batches(config, mesh)
    say = records_lib.say if parallel.is_main_process() else _say_nothing
    if config.data.source == "builtin" and config.preset.startswith("paper"):
        say(_BUILTIN_WARNING)
    corpus, tokenizer = corpora.prepare(
        config.data, config.tokenizer, progress=parallel.is_main_process()
    )
    model = config.model_config(tokenizer.vocab_size)
    num_steps = _num_steps(config, corpus)
    validation = Validation(
        model, config.eval, corpus, tokenizer, mesh, config.seed, say
    )
    run_folder.write(folder, config, tokenizer)

    checkpoints = Checkpoints(folder, config.checkpoint, say)
    identity = run_folder.Identity(config.to_dict(), tokenizer.fingerprint, corpus)
    optimizer = make_optimizer(config.optimizer, num_steps)
    state = _start_state(config, model, optimizer, mesh, checkpoints, identity)
    first_step = int(state.step)
    _describe(say, config, model, corpus, num_steps, first_step, mesh, workdir)
    records = _open_records(config, model, workdir, first_step, num_steps)
    try:
        pieces = loop.Run(
            train_step=_jit_step(config, model, optimizer, num_steps, mesh),
            batches=_batches(config, model, corpus, num_steps, first_step, mesh),
            evaluate=validation,
            metadata=identity.metadata,
            checkpoints=checkpoints,
            records=records,
            profile_dir=str(folder / "profile"),
        )
        loop.train(pieces, state, _cadence(config, num_steps))
        records.say(f"Done: {num_steps:,} steps. Loss curve: {records.plot()}")
    finally:
        records.close()
        checkpoints.close()


_BUILTIN_WARNING = """\
WARNING: this is the paper's recipe on the built-in corpus, the documentation found on
this machine: good for a try, too small for GPT-1. Name a corpus with
  --config.data.source=text --config.data.train='books/train/*.txt'
  or --config.data.source=tfds --config.data.train=lm1b:train
and see configs/pretrain.py:quickstart for a run of minutes."""


def _say_nothing(text: str) -> None:
    """Processes other than the main one keep silent."""


_MEMORY_SHARE = 0.5  # of a device, for activations; the rest is for all else


def _accumulation_steps(
    config: PretrainConfig, model: ModelConfig, mesh: jax.sharding.Mesh
) -> int:
    """The configured parts of a batch, or the fewest whose activations fit."""
    if config.train.accumulation_steps:
        return config.train.accumulation_steps
    per_device = config.train.batch_size // mesh.size
    room = _MEMORY_SHARE * parallel.memory_bytes()
    fitting = max(1, int(room // transformer.train_activation_bytes(model)))
    return next(
        parts
        for parts in range(1, per_device + 1)
        if per_device % parts == 0 and per_device // parts <= fitting
    )


def _check_batches(config: PretrainConfig, mesh: jax.sharding.Mesh) -> None:
    train = config.train
    parallel.check_batch_size(
        "config.train.batch_size",
        train.batch_size,
        mesh,
        max(1, train.accumulation_steps),
    )
    parallel.check_batch_size("config.eval.batch_size", config.eval.batch_size, mesh)


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


def _start_state(
    config: PretrainConfig,
    model: ModelConfig,
    optimizer: optax.GradientTransformationExtraArgs,
    mesh: jax.sharding.Mesh,
    checkpoints: Checkpoints,
    identity: run_folder.Identity,
) -> TrainState:
    """The state of the newest sound checkpoint, or a fresh one."""

    def fresh() -> TrainState:
        params = transformer.init_params(model, jax.random.key(config.seed))
        return init_state(params, optimizer)

    sharding = parallel.replicated(mesh)
    target = abstract_state(jax.eval_shape(fresh), sharding)
    restored = checkpoints.restore(target, identity.check)
    return jax.jit(fresh, out_shardings=sharding)() if restored is None else restored


def _jit_step(
    config: PretrainConfig,
    model: ModelConfig,
    optimizer: optax.GradientTransformationExtraArgs,
    num_steps: int,
    mesh: jax.sharding.Mesh,
) -> PretrainStep:
    """`pretrain_step`, jitted: state replicated and donated, tokens split."""
    step = make_pretrain_step(
        model,
        optimizer,
        make_schedule(config.optimizer, num_steps),
        seed=config.seed,
        accumulation_steps=_accumulation_steps(config, model, mesh),
    )
    everywhere = parallel.replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(everywhere, parallel.batch_sharding(mesh)),
        out_shardings=everywhere,
        donate_argnums=0,
    )


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
        parallel.host_rows(config.train.batch_size),
        num_steps,
        config.seed,
    )
    for local in windows.train_batches(source, first_step):
        yield parallel.to_global_batch(local, mesh)


def _open_records(
    config: PretrainConfig,
    model: ModelConfig,
    workdir: str,
    first_step: int,
    num_steps: int,
) -> records_lib.Records:
    peak = parallel.peak_flops()
    flops = transformer.train_flops_per_token(model, model.max_seq_len)
    return records_lib.Records(
        epath.Path(workdir),
        first_step,
        num_steps,
        tokens_per_step=config.train.batch_size * model.max_seq_len,
        mfu_per_token_rate=flops / peak if peak else None,
        tensorboard=config.log.tensorboard,
        active=parallel.is_main_process(),
    )


def _cadence(config: PretrainConfig, num_steps: int) -> loop.Cadence:
    return loop.Cadence(
        num_steps=num_steps,
        log_every=config.log.every_steps,
        eval_every=config.eval.every_steps,
        checkpoint_every=config.checkpoint.every_steps,
        max_nonfinite_steps=config.train.max_nonfinite_steps,
        profile_first_step=config.log.profile_first_step,
        profile_steps=config.log.profile_steps,
    )


def _describe(
    say: Callable[[str], None],
    config: PretrainConfig,
    model: ModelConfig,
    corpus: Corpus,
    num_steps: int,
    first_step: int,
    mesh: jax.sharding.Mesh,
    workdir: str,
) -> None:
    """Says what is about to happen."""
    shapes = jax.eval_shape(lambda: transformer.init_params(model, jax.random.key(0)))
    tokens_per_step = config.train.batch_size * model.max_seq_len
    epochs = num_steps * tokens_per_step / corpus.train.tokens
    parts = _accumulation_steps(config, model, mesh)
    in_parts = f", each in {parts} parts" if parts > 1 else ""
    say(
        f"Model: {model.num_layers} layers, {model.embed_dim} wide, "
        f"{transformer.count_params(shapes):,} parameters, {model.dtype}\n"
        f"Corpus: {corpus.train.tokens:,} training and {corpus.valid.tokens:,} "
        f"validation tokens, vocabulary {model.vocab_size:,}\n"
        f"Run: {num_steps:,} steps of {tokens_per_step:,} tokens ({epochs:.2f} epochs)"
        f"{in_parts} on {mesh.size} x {jax.devices()[0].device_kind}, in {workdir}"
    )
    if first_step:
        say(f"Resuming from the checkpoint of step {first_step:,}.")
