"""The limits of memory: refuses sizes that do not fit, and cuts batches into parts."""

import dataclasses
import functools

import jax

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.sections import OptimizerConfig, TrainConfig
from gpt1_jax.model import costs, language_model
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import check_batch_size, splits_state
from gpt1_jax.parallel.processes import gather
from gpt1_jax.runs.checkpoint_files import state_bytes
from gpt1_jax.training.optimizer import make_optimizer

_MEMORY_SHARE = 0.75  # of a device's memory, for the known needs of training


def check_sharing(train: TrainConfig, eval_size: int, mesh: jax.sharding.Mesh) -> None:
    """Checks that the devices can share batches evenly."""
    parts = max(1, train.accumulation_steps)
    check_batch_size("config.train.batch_size", train.batch_size, mesh, parts)
    check_batch_size("config.eval.batch_size", eval_size, mesh)


def train_state_bytes(
    optimizer: OptimizerConfig, model: ModelConfig, mesh: jax.sharding.Mesh
) -> float:
    """Memory of parameters, gradients and optimizer state on a device.

    An estimate: arrays too small to be split count as split, counters are ignored, and
    gradients and gathered parameters are whole for a part of every step.
    """
    params = costs.num_params(model)
    held = params * _optimizer_bytes(optimizer, model)
    return 2 * 4 * params + held / (mesh.size if splits_state(mesh) else 1)


@functools.cache  # called several times before a run begins
def _optimizer_bytes(optimizer: OptimizerConfig, model: ModelConfig) -> float:
    """Bytes that an optimizer holds for each parameter, asked for one layer.

    All layers are alike, and tracing each of a model that is much too deep never ends.
    """
    shallow = dataclasses.replace(model, num_layers=1)
    params = jax.eval_shape(
        lambda: language_model.init_params(shallow, jax.random.key(0))
    )
    state = jax.eval_shape(make_optimizer(optimizer, None).init, params)
    arrays = [array for array in jax.tree.leaves(state) if array.ndim]
    return state_bytes(arrays) / costs.num_params(shallow)


def check_memory(
    train: TrainConfig,
    optimizer: OptimizerConfig,
    eval_size: int,
    model: ModelConfig,
    mesh: jax.sharding.Mesh,
) -> None:
    """Refuses a model, training batch or evaluation that no device can hold.

    Args:
      train: the training batch and its parts.
      optimizer: the optimizer, whose state is kept.
      eval_size: sequences evaluated at a time, over all devices.
      model: configuration of the model to train.
      mesh: the device mesh.

    Raises:
      UserError: naming the size, the least memory it needs and the memory there is.
    """
    names = ["num_layers", "mlp_dim", "max_seq_len"]
    if model.kind == "lstm":
        names = ["lstm_units"]
    sizes = [f"config.model.{n}={getattr(model, n)}" for n in ("embed_dim", *names)]
    devices.require_memory(
        "Training this model",
        train_state_bytes(optimizer, model, mesh),
        "That is for parameters, gradients and optimizer alone; lower "
        f"{', '.join(sizes)} or config.tokenizer.vocab_size={model.vocab_size}.",
    )
    check_train_batch(train, model, mesh)
    states = model.max_seq_len * costs.forward_bytes(model)
    devices.require_memory(
        f"config.eval.batch_size={eval_size}",
        eval_size // mesh.size * (states + 4 * costs.num_logits(model)),
        "Lower it.",
    )


def check_train_batch(
    train: TrainConfig, model: ModelConfig, mesh: jax.sharding.Mesh, num_seqs: int = 1
) -> None:
    """Refuses a training batch that no device can hold.

    Args:
      train: the batch and its parts.
      model: the model's sizes, with the `max_seq_len` of the shortest sequence.
      mesh: the device mesh.
      num_seqs: sequences per example.

    Raises:
      UserError: naming the batch, the least memory it needs and the memory there is.
    """
    tokens = train.batch_size // mesh.size * num_seqs * model.max_seq_len
    read = costs.forward_bytes(model)
    parts = train.accumulation_steps  # 0: as many as needed
    devices.require_memory(
        f"config.train.batch_size={train.batch_size}",
        tokens * max(4, read // parts if parts else 0),  # an id has 4 bytes
        "Lower it, or compute it in more parts with config.train.accumulation_steps.",
    )


def accumulation_steps(
    train: TrainConfig,
    optimizer: OptimizerConfig,
    model: ModelConfig,
    mesh: jax.sharding.Mesh,
    num_seqs: int = 1,
) -> int:
    """The configured number of parts of a batch, or the fewest that fit in memory.

    All processes use the number that the device with the least memory needs.

    Args:
      train: the batch size and, if not 0, `accumulation_steps`.
      optimizer: the optimizer, whose state is kept.
      model: the model's sizes, with the `max_seq_len` of the longest batch.
      mesh: the device mesh.
      num_seqs: sequences per example.
    """
    if train.accumulation_steps:
        return train.accumulation_steps
    per_device = train.batch_size // mesh.size
    state = train_state_bytes(optimizer, model, mesh)
    room = _MEMORY_SHARE * min(map(int, gather(str(devices.memory_bytes())))) - state
    example_bytes = num_seqs * costs.train_activation_bytes(model)
    fitting = max(1, int(room // example_bytes))
    return next(
        parts
        for parts in range(1, per_device + 1)
        if per_device % parts == 0 and per_device // parts <= fitting
    )
