"""What was measured of saved steps: `measured.json` in the folder of each."""

from etils import epath

from gpt1_jax.config import read_json
from gpt1_jax.data.files import write_json
from gpt1_jax.runs.saved_steps import (
    LOWEST_LOSS,
    Best,
    best_first,
    read_metadata,
    saved_steps,
)

MEASURED_FILE = "measured.json"


def write(checkpoint: epath.Path, best: Best, score: float) -> None:
    """Notes the score of a saved step in its folder."""
    write_json(checkpoint / MEASURED_FILE, {**best._asdict(), "value": score})


def best_step(workdir: epath.Path) -> int:
    """The saved step with the best score; the newest if none was measured."""
    steps = saved_steps(workdir)
    scores: dict[Best, dict[int, float]] = {}
    for step in steps:
        for best, value in _read(workdir, step).items():
            scores.setdefault(best, {})[step] = value
    if not scores:
        return steps[-1]
    best, by_step = next(iter(scores.items()))
    return best_first(by_step, best.highest)[0]


def read_scores(workdir: epath.Path, metric: str) -> dict[int, float]:
    """A metric of all saved steps that have it; damage is dealt with later."""
    return {
        step: value
        for step in saved_steps(workdir)
        for best, value in _read(workdir, step).items()
        if best.metric == metric
    }


def _read(workdir: epath.Path, step: int) -> dict[Best, float]:
    """What was measured for one checkpoint; empty if that cannot be read."""
    file = workdir / "checkpoints" / str(step) / MEASURED_FILE
    try:
        if file.exists():
            record = read_json(file)
            best = Best(record["metric"], record["highest"])
            return {best: float(record["value"])}
        # Versions before 0.2 kept it in the metadata, without the direction.
        metrics = read_metadata(workdir, step)["metrics"]
        return {
            Best(name, highest=name != LOWEST_LOSS.metric): float(value)
            for name, value in metrics.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
