"""What was measured of saved steps: `measured.json` in the folder of each."""

import math

from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import json_digest, write_json
from gpt1_jax.errors import UserError
from gpt1_jax.runs.saved_steps import (
    LOWEST_LOSS,
    Best,
    best_first,
    read_metadata,
    saved_steps,
)

MEASURED_FILE = "measured.json"


def write(checkpoint: epath.Path, best: Best, score: float) -> None:
    """Notes the score of a saved step in its folder, with a checksum."""
    record = {**best._asdict(), "value": score}
    write_json(checkpoint / MEASURED_FILE, {**record, "sha256": json_digest(record)})


def best_step(workdir: epath.Path) -> int:
    """The saved step with the best score; the newest if none was measured.

    Raises:
      ValueError: if a score is not as it was written.
    """
    steps = saved_steps(workdir)
    scores: dict[Best, dict[int, float]] = {}
    for step in steps:
        for best, value in read(workdir, step).items():
            scores.setdefault(best, {})[step] = value
    if not scores:
        return steps[-1]
    best, by_step = next(iter(scores.items()))
    return best_first(by_step, best.highest)[0]


def read(workdir: epath.Path, step: int) -> dict[Best, float]:
    """What was measured of one checkpoint; empty if nothing was.

    Raises:
      ValueError: if its file is not as it was written.
    """
    file = workdir / "checkpoints" / str(step) / MEASURED_FILE
    if not file.exists():
        return _read_metrics(workdir, step)
    try:
        record = read_json(file)
        # Versions before 24 November 2026 wrote no checksum.
        intact = record.pop("sha256", None) in (None, json_digest(record))
        value = float(record["value"])
        if intact and math.isfinite(value) and isinstance(record["metric"], str):
            return {Best(record["metric"], bool(record["highest"])): value}
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    raise UserError(
        f"{file} is damaged, which says how good step {step} is. Name a step by its "
        "number, or run the training command again: it has the score elsewhere too."
    )


def _read_metrics(workdir: epath.Path, step: int) -> dict[Best, float]:
    """Versions before 0.2 kept scores in the metadata, without the direction."""
    try:
        return {
            Best(name, highest=name != LOWEST_LOSS.metric): float(value)
            for name, value in read_metadata(workdir, step)["metrics"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}
