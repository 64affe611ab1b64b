"""What every training job sets up alike."""

from collections.abc import Callable
from typing import Any, Protocol

import jax

from gpt1_jax.config import CheckpointConfig, LogConfig, ModelConfig, TrainConfig
from gpt1_jax.model import costs
from gpt1_jax.parallel import devices, processes
from gpt1_jax.parallel.mesh import (
    batch_sharding,
    check_batch_size,
    data_parallelism,
    replicated,
)
from gpt1_jax.training import loop, records, run_folder
from gpt1_jax.training.checkpoint import Checkpoints, abstract_state
from gpt1_jax.training.state import TrainState

_MEMORY_SHARE = 0.5  # of a device, for activations; the rest is for all else


class TrainingConfig(Protocol):
    """The sections that every training job has."""

    @property
    def train(self) -> TrainConfig: ...
    @property
    def checkpoint(self) -> CheckpointConfig: ...
    @property
    def log(self) -> LogConfig: ...


def speaker() -> Callable[[str], None]:
    """Shows text to the user on the main process, and nothing elsewhere."""

    def say_nothing(text: str) -> None:
        del text

    return records.say if processes.is_main_process() else say_nothing


def check_batches(train: TrainConfig, eval_size: int, mesh: jax.sharding.Mesh) -> None:
    """Refuses batches that the devices cannot share evenly."""
    parts = max(1, train.accumulation_steps)
    check_batch_size("config.train.batch_size", train.batch_size, mesh, parts)
    check_batch_size("config.eval.batch_size", eval_size, mesh)


def accumulation_steps(
    train: TrainConfig, model: ModelConfig, mesh: jax.sharding.Mesh, num_seqs: int = 1
) -> int:
    """The configured parts of a batch, or the fewest whose activations fit.

    Args:
      train: batch size and, if not 0, the parts.
      model: sizes; `max_seq_len` that of the longest batch.
      mesh: of the run.
      num_seqs: sequences of an example.
    """
    if train.accumulation_steps:
        return train.accumulation_steps
    per_device = train.batch_size // data_parallelism(mesh)
    room = _MEMORY_SHARE * devices.memory_bytes()
    example_bytes = num_seqs * costs.train_activation_bytes(model)
    fitting = max(1, int(room // example_bytes))
    return next(
        parts
        for parts in range(1, per_device + 1)
        if per_device % parts == 0 and per_device // parts <= fitting
    )


def start_state(
    fresh: Callable[..., TrainState],
    arguments: tuple[Any, ...],
    mesh: jax.sharding.Mesh,
    checkpoints: Checkpoints,
    identity: run_folder.Identity,
) -> TrainState:
    """The state of the newest sound checkpoint, or a fresh one.

    Args:
      fresh: makes a state before the first step.
      arguments: its arrays.
      mesh: of the run.
      checkpoints: of the run.
      identity: of the run; a checkpoint of another one is refused.
    """
    sharding = replicated(mesh)
    target = abstract_state(jax.eval_shape(fresh, *arguments), sharding)
    restored = checkpoints.restore(target, identity.check)
    if restored is not None:
        return restored
    return jax.jit(fresh, out_shardings=sharding)(*arguments)


def jit_step(
    step: Callable[..., Any], mesh: jax.sharding.Mesh, num_scalars: int = 0
) -> Callable[..., Any]:
    """A training step, jitted: state replicated and donated, batch split.

    Args:
      step: (state, batch, scalars ..) -> (state, metrics).
      mesh: of the run.
      num_scalars: arguments after the batch, replicated.
    """
    everywhere = replicated(mesh)
    scalars = (everywhere,) * num_scalars
    return jax.jit(
        step,
        in_shardings=(everywhere, batch_sharding(mesh), *scalars),
        out_shardings=everywhere,
        donate_argnums=0,
    )


def cadence(
    config: TrainingConfig, num_steps: int, *, eval_every: int, **more: Any
) -> loop.Cadence:
    """The cadence of a configuration's sections."""
    return loop.Cadence(
        num_steps=num_steps,
        log_every=config.log.every_steps,
        eval_every=eval_every,
        checkpoint_every=config.checkpoint.every_steps,
        max_nonfinite_steps=config.train.max_nonfinite_steps,
        profile_first_step=config.log.profile_first_step,
        profile_steps=config.log.profile_steps,
        **more,
    )
