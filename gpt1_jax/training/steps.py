"""The loss and the step of pre-training (eq. 1), and what every training step needs.

Losses and steps are pure functions; a step is `step(state, batch, seed) -> (state,
metrics)`. The seed of the dropout masks is an argument, so that runs that differ only
in the seed share one compiled program. `finetuning.steps` has those of fine-tuning.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import Execution, Wrap, unchanged
from gpt1_jax.ops import products
from gpt1_jax.ops.dropout import Noise, step_noise
from gpt1_jax.ops.settings import own_settings
from gpt1_jax.parallel import exchange
from gpt1_jax.parallel.exchange import gradients_by_device
from gpt1_jax.parallel.mesh import batch_sharding, replicated, state_sharding
from gpt1_jax.training.optimizer import Optimizer
from gpt1_jax.training.state import TrainState, apply_gradients

Metrics = dict[str, jax.Array]
# (params, batch, noise) -> the mean loss over the rows, and metrics that are means too;
# `wrap` is another argument, as in `pretrain_loss`
LossFn = Callable[..., tuple[jax.Array, Metrics]]
# (params, batch, noise) -> ((loss, metrics), gradients)
Gradients = Callable[[Any, Any, Noise], tuple[tuple[jax.Array, Metrics], Any]]
# (state, batch, seed of the dropout masks) -> (state, metrics)
Step = Callable[[TrainState, Any, jax.Array], tuple[TrainState, Metrics]]


def pretrain_loss(
    model: ModelConfig,
    params: Any,
    tokens: jax.Array,
    noise: Noise,
    wrap: Wrap = unchanged,
) -> tuple[jax.Array, Metrics]:
    """L1 (eq. 1) as a mean: nats per predicted token.

    Args:
      model: sizes and dropout.
      params: the language model's parameters.
      tokens: [B, T].
      noise: the step's dropout noise.
      wrap: changes the execution on devices that hold only parts of the parameters.

    Returns:
      The loss, and no further metrics.
    """
    how = wrap(Execution(model, noise))
    output = language_model.apply(model, params, tokens, how)
    num_seqs, seq_len = tokens.shape
    weights = jnp.full(tokens.shape, 1 / (num_seqs * (seq_len - 1)))
    return language_model.next_token_loss(model, output, tokens, weights), {}


def make_pretrain_step(
    model: ModelConfig,
    optimizer: Optimizer,
    accumulation_steps: int = 1,
    mesh: jax.sharding.Mesh | None = None,
) -> Step:
    """Builds the pure function of one pre-training update.

    Args:
      model: sizes and dropout.
      optimizer: turns gradients into updates.
      accumulation_steps: number of parts in which a batch is computed one by one; the
        result is that of the whole batch.
      mesh: the devices that share the batch, if there are several.

    Returns:
      `pretrain_step(state, tokens [B, T], seed)`. Its metrics are scalars: `loss`
      (see `pretrain_loss`), `grad_norm`, `learning_rate` and the counts of
      `apply_gradients`.
    """
    loss_fn = functools.partial(pretrain_loss, model)
    gradients = make_gradients(model, loss_fn, accumulation_steps, mesh)

    def pretrain_step(
        state: TrainState, batch: jax.Array, seed: jax.Array
    ) -> tuple[TrainState, Metrics]:
        noise = step_noise(seed, state.step, len(batch))
        return update(state, batch, noise, gradients, optimizer)

    return pretrain_step


def make_gradients(
    model: ModelConfig,
    loss_fn: LossFn,
    accumulation_steps: int,
    mesh: jax.sharding.Mesh | None,
) -> Gradients:
    """Builds (params, batch, noise) -> ((loss, metrics), gradients), means over rows.

    Each device computes the gradients of its rows, in `accumulation_steps` parts.
    """

    def of_rows(params: Any, rows: Any, key: jax.Array, wrap: Wrap = unchanged) -> Any:
        (batch, row_ids), loss = rows, functools.partial(loss_fn, wrap=wrap)
        noise = Noise(key, row_ids)
        return accumulated_gradients(loss, params, batch, noise, accumulation_steps)

    by_device = of_rows
    if mesh:
        rounded = functools.partial(language_model.rounded_dtype, model)
        # Gradients of parts of a batch are added up before they are exchanged.
        whole = accumulation_steps == 1
        by_layer = whole and language_model.has_layer_boundaries(model)
        by_device = gradients_by_device(mesh, of_rows, rounded, by_layer)
    return lambda params, batch, noise: by_device(
        params, (batch, noise.rows), noise.key
    )


def accumulated_gradients(
    loss_fn: LossFn, params: Any, batch: Any, noise: Noise, parts: int
) -> tuple[tuple[jax.Array, Metrics], Any]:
    """Loss and gradients of a batch, computed in parts one at a time to save memory.

    Part p takes rows p, p + parts, ..., so each device keeps its own.

    Args:
      loss_fn: see `LossFn`.
      params: the parameters to differentiate with respect to.
      batch: arrays whose first axis (examples, or groups of them) `parts` divides.
      noise: the whole batch's noise.
      parts: the number of parts; 1 computes the whole batch at once.

    Returns:
      ((mean loss, metrics), gradients), as for the whole batch.
    """
    gradients = jax.value_and_grad(loss_fn, has_aux=True)
    if parts == 1:
        return gradients(params, batch, noise)

    def split(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)

    def part_gradients(part: tuple[Any, jax.Array]) -> Any:
        batch, rows = part
        return gradients(params, batch, Noise(noise.key, rows))

    def add(sums: Any, part: tuple[Any, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, part_gradients(part)), None

    split_parts = jax.tree.map(split, (batch, noise.rows))
    shapes = jax.eval_shape(part_gradients, jax.tree.map(lambda x: x[0], split_parts))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    sums, _ = jax.lax.scan(add, zeros, split_parts)
    return jax.tree.map(lambda x: x / parts, sums)


@own_settings()
def update(
    state: TrainState,
    batch: Any,
    noise: Noise,
    gradients: Gradients,
    optimizer: Optimizer,
) -> tuple[TrainState, Metrics]:
    """Computes the gradients of a batch and applies their update."""
    (loss, losses), grads = gradients(state.params, batch, noise)
    learning_rate = optimizer.learning_rate(state.step - state.nonfinite_steps)
    state, counts = apply_gradients(state, grads, loss, optimizer)
    return state, {"loss": loss, **losses, "learning_rate": learning_rate, **counts}


def jit_step(step: Step, mesh: jax.sharding.Mesh, state: TrainState) -> Step:
    """Jits a training step over a mesh; it consumes (donates) the state.

    Args:
      step: from `make_pretrain_step`, or from `finetuning.steps`.
      mesh: the device mesh.
      state: the train state, as arrays or their shapes.
    """
    everywhere, states = replicated(mesh), state_sharding(mesh, state)
    return jax.jit(
        step,
        in_shardings=(states, batch_sharding(mesh), everywhere),
        out_shardings=(states, everywhere),
        donate_argnums=0,
        compiler_options={
            **products.compiler_options(mesh.devices.flat[0].platform),
            **exchange.compiler_options(mesh),
        },
    )
