"""The trajectory of a pre-training run: its saved states, each bound to its step.

A checkpoint is saved with the content digest of its parameters (`params_digest`), which
does not depend on the format: it is that of our parameter tree, whatever file holds it.
Exports carry the table of `describe_trajectory`. It can be changed together with them,
so it proves which training they come from only if it agrees with a copy kept elsewhere.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from gpt1_jax.formats import EXPORT
from gpt1_jax.runs.milestones import read_milestone
from gpt1_jax.runs.pretrained import Pretrained
from gpt1_jax.runs.resume import saved_digests
from gpt1_jax.training.optimizer import make_schedule

TRAJECTORY_FILE = "trajectory.json"

_CHUNK = 1 << 20  # updates whose learning rates are computed at once
_MOST_UPDATES = 10**8  # whose learning rates are added up


def describe_trajectory(
    run: Pretrained, saved: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Describes the saved steps of a run, whose metadata by step are `saved`, in order.

    Returns:
      JSON values: the format; "kind" of model, "seed", the content digests "tokenizer"
      and "text", and "steps": for each saved step its "name" as an export,
      "params_digest", the tokens and words of "text_read", "valid_loss" (nats per
      token; None if it was not evaluated) and "learning_rate_sum", over all updates
      before it: states with the same sum have the same parameters.
    """
    newest = list(saved.values())[-1]
    losses = dict(zip(*run.series("valid_loss"), strict=True))
    sums = _learning_rate_sums(run, max(saved))
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
        **EXPORT.stamp(),
        "kind": run.config.model.kind,
        "seed": run.config.seed,
        "tokenizer": newest.get("tokenizer"),
        "text": saved_digests(newest).get("text"),
        "steps": steps,
    }


def _learning_rate_sums(run: Pretrained, last_step: int) -> np.ndarray:
    """By step, the sum of the learning rates of all updates before it.

    Empty if the number of updates is not known, or more than anybody has made.
    """
    # The folder's maker chose these numbers.
    count = min(run.num_steps or 0, last_step)
    if not run.num_steps or count > _MOST_UPDATES:
        return np.zeros(0)
    schedule = make_schedule(run.config.optimizer, run.num_steps)
    rates = [
        np.asarray(schedule(jnp.arange(first, min(first + _CHUNK, count))), np.float64)
        for first in range(0, count, _CHUNK)
    ]
    return np.cumsum(np.concatenate([[0.0], *rates]))
