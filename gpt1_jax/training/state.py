"""The state that training carries from step to step, and its update."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt1_jax.training.optimizer import Optimizer


class TrainState(NamedTuple):
    """Parameters, optimizer state and counters; checkpoints hold all of it.

    It holds no random key: keys are derived from (seed, step).
    """

    step: jax.Array  # shape=(), dtype=int32, steps taken, also the data position
    params: Any  # nested dict of float32 arrays
    opt_state: optax.OptState
    nonfinite_steps: jax.Array  # shape=(), dtype=int32, updates skipped so far
    nonfinite_in_row: jax.Array  # shape=(), dtype=int32, skipped in a row up to now


def init_state(params: Any, optimizer: Optimizer) -> TrainState:
    """The state before the first step."""
    step, skipped, in_row = (jnp.zeros([], jnp.int32) for _ in range(3))
    return TrainState(step, params, optimizer.init(params), skipped, in_row)


def apply_gradients(
    state: TrainState,
    grads: Any,
    loss: jax.Array,
    optimizer: Optimizer,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update; skipped and counted when the loss or a gradient is not finite.

    A skipped step consumes its batch but leaves parameters and the optimizer's
    state, its schedule's counter included, as they were.

    Args:
      state: the state before the step.
      grads: gradients, like `state.params`.
      loss: scalar.
      optimizer: as returned by `make_optimizer`; its `update` takes `finite`.

    Returns:
      The state after the step, and the scalars `grad_norm` (before clipping),
      `nonfinite_steps` and `nonfinite_in_row`.
    """
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)

    updates, opt_state = optimizer.update(
        grads, state.opt_state, state.params, finite=finite
    )
    skipped = (~finite).astype(jnp.int32)
    state = TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
        nonfinite_steps=state.nonfinite_steps + skipped,
        nonfinite_in_row=(state.nonfinite_in_row + 1) * skipped,
    )
    return state, {
        "grad_norm": grad_norm,
        "nonfinite_steps": state.nonfinite_steps,
        "nonfinite_in_row": state.nonfinite_in_row,
    }
