"""What a training run carries from step to step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class TrainState(NamedTuple):
    """Parameters, optimizer and counters; all of it is checkpointed.

    No random key is stored: keys are derived from (seed, step).
    """

    step: jax.Array  # shape=(), dtype=int32, steps taken, also the data position
    params: Any  # nested dict of float32 arrays
    opt_state: optax.OptState
    nonfinite_steps: jax.Array  # shape=(), dtype=int32, updates skipped so far
    nonfinite_in_row: jax.Array  # shape=(), dtype=int32, skipped just now in a row


def init_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """A state before the first step."""
    zero = jnp.zeros([], jnp.int32)
    return TrainState(zero, params, optimizer.init(params), zero, zero)


def apply_gradients(
    state: TrainState,
    grads: Any,
    loss: jax.Array,
    optimizer: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update; skipped and counted when the loss or a gradient is not finite.

    A skipped step moves on in the data but leaves parameters, moments and the
    schedule's counter as they were.

    Args:
      state: before the step.
      grads: gradients, like `state.params`.
      loss: scalar, nats per token.
      optimizer: of the run.

    Returns:
      The state after the step, and the scalars `grad_norm` (before clipping),
      `nonfinite_steps` and `nonfinite_in_row`.
    """
    grad_norm = optax.global_norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)

    def update() -> tuple[Any, optax.OptState]:
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        return optax.apply_updates(state.params, updates), opt_state

    params, opt_state = jax.lax.cond(
        finite, update, lambda: (state.params, state.opt_state)
    )
    skipped = (~finite).astype(jnp.int32)
    state = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        nonfinite_steps=state.nonfinite_steps + skipped,
        nonfinite_in_row=(state.nonfinite_in_row + 1) * skipped,
    )
    return state, {
        "grad_norm": grad_norm,
        "nonfinite_steps": state.nonfinite_steps,
        "nonfinite_in_row": state.nonfinite_in_row,
    }
