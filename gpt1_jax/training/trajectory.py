"""The trajectory of a pre-training run: its saved states, each bound to its step.

A checkpoint is saved with the content digest of its parameters (`params_digest`), which
does not depend on the format: it is that of our parameter tree, whatever file holds it.
Exports carry the table of `describe_trajectory`, so that they can be checked against
the training and not only against themselves.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.parallel.mesh import state_sharding
from gpt1_jax.runs.checkpoints import read_state
from gpt1_jax.runs.milestones import read_milestone
from gpt1_jax.runs.past_runs import Pretrained
from gpt1_jax.runs.resume import saved_digests
from gpt1_jax.training.fit import Run, batches_on_devices
from gpt1_jax.training.optimizer import make_schedule

TRAJECTORY_FILE = "trajectory.json"


def describe_trajectory(
    run: Pretrained, saved: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """What a run says of its saved steps, as JSON values.

    Args:
      run: the run.
      saved: the metadata of its saved steps, by step, in order.

    Returns:
      "kind" of model, "seed", the content digests "tokenizer" and "text", and "steps":
      for each saved step its "name" as an export, "params_digest" (None if an earlier
      version saved it), the tokens and words of "text_read", "valid_loss" (nats per
      token; None if it was not evaluated) and "learning_rate_sum", over all updates
      before it: states with the same sum have the same parameters.
    """
    newest = list(saved.values())[-1]
    losses = dict(zip(*run.series("valid_loss"), strict=True))
    sums = _learning_rate_sums(run)
    steps = {}
    for step, metadata in saved.items():
        milestone = read_milestone(metadata)
        steps[str(step)] = {
            "name": milestone.revision if milestone else f"step-{step}",
            "params_digest": metadata.get("params_digest"),
            "text_read": metadata.get("text_read"),
            "valid_loss": losses.get(step),
            "learning_rate_sum": float(sums[step]) if step < len(sums) else None,
        }
    return {
        "kind": run.config.model.kind,
        "seed": run.config.seed,
        "tokenizer": newest.get("tokenizer"),
        "text": saved_digests(newest).get("text"),
        "steps": steps,
    }


def _learning_rate_sums(run: Pretrained) -> np.ndarray:
    """By step, the sum of the learning rates of all updates before it."""
    if not run.num_steps:
        return np.zeros(0)
    schedule = make_schedule(run.config.optimizer, run.num_steps)
    rates = np.asarray(schedule(jnp.arange(run.num_steps)), np.float64)
    return np.concatenate([[0.0], np.cumsum(rates)])


def train_again(run: Run, first_step: int, last_step: int) -> Any:
    """Trains from a saved state, as the run did; writes nothing.

    Args:
      run: the run, prepared.
      first_step: the saved step to start from.
      last_step: the step to stop at.

    Returns:
      The parameters after `last_step`, a tree of numpy arrays.

    Raises:
      FileNotFoundError, UserError: as `read_state`.
    """
    state = jax.device_put(
        read_state(run.folder, first_step, run.shapes),
        state_sharding(run.mesh, run.shapes),
    )
    batches = batches_on_devices(run, first_step)
    for _ in range(first_step, last_step):
        state, _ = run.step(state, next(batches), jnp.uint32(run.seed))
    return jax.device_get(state.params)


def distance(one: Any, other: Any) -> float:
    """The Euclidean norm of the difference between two trees of parameters."""
    squares = jax.tree.map(
        lambda a, b: np.square(np.asarray(a, np.float64) - b).sum(), one, other
    )
    return float(np.sqrt(sum(jax.tree.leaves(squares))))
