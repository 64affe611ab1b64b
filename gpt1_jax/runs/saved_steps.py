"""The saved steps of a run: which there are, the best, and the one asked for."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import read_json
from gpt1_jax.errors import UserError

NEWEST, BEST = -1, -2  # in place of a step


class Best(NamedTuple):
    """The metric that ranks checkpoints."""

    metric: str
    highest: bool  # whether the highest value is the best, or the lowest


LOWEST_LOSS = Best("valid_loss", highest=False)


def saved_steps(workdir: epath.Path) -> list[int]:
    """The steps that a run folder holds, in order."""
    checkpoints = workdir / "checkpoints"
    return sorted(
        int(path.name)
        for path in (checkpoints.iterdir() if checkpoints.exists() else ())
        if path.name.isdigit()
    )


def read_metadata(workdir: epath.Path, step: int) -> dict[str, Any]:
    """What was saved beside the state of a step: what it belongs to, how far it is.

    Raises:
      ValueError: if it cannot be read.
    """
    # Where orbax puts a JSON item of that name.
    return read_json(workdir / "checkpoints" / str(step) / "metadata" / "metadata")


def best_first(scores: Mapping[int, float], highest: bool) -> list[int]:
    """Steps by score, best first; of equally good ones, the earliest first."""
    sign = -1 if highest else 1
    return sorted(scores, key=lambda step: (sign * scores[step], step))


def find_step(step: int | str) -> int:
    """A step as `read_params` takes it, from "newest", "best" or a number.

    Raises:
      ValueError: if it is anything else.
    """
    named = {"newest": NEWEST, "best": BEST}
    if str(step).isdecimal():
        return int(step)
    if step not in named:
        raise UserError(
            f"step={step!r} must be newest, best or the number of a saved step, for "
            "example --config.step=1200."
        )
    return named[str(step)]
