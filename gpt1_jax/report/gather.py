"""What a report is about: the runs in the folders that it is given."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import ZeroShotConfig, load
from gpt1_jax.config.saved import read_json, upgrade, without_local
from gpt1_jax.errors import UserError
from gpt1_jax.report import zero_shot
from gpt1_jax.report.commands import Models
from gpt1_jax.report.markdown import escape_strings
from gpt1_jax.runs.folder import RESULTS_FILE, locate_run
from gpt1_jax.runs.past_runs import (
    Finished,
    Pretrained,
    find_folders,
    read_finished,
    read_pretrained,
)

_HUGE = 1e15  # beyond it, figures do not tell numbers apart
_DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    ArithmeticError,
)


class ZeroShot(NamedTuple):
    """A zero-shot evaluation; its texts are escaped."""

    folder: epath.Path
    config: ZeroShotConfig
    versions: Mapping[str, str]
    runs: Sequence[Mapping[str, Any]]  # see `gpt1_jax.report.zero_shot`


@dataclasses.dataclass(frozen=True)
class Material:
    """All that a report is about, each folder once, in the order of the folders."""

    pretrained: Sequence[Pretrained]
    finished: Sequence[Finished]
    zero_shot: Sequence[ZeroShot]

    @property
    def models(self) -> Models:
        """What more can be made from: the first of each kind that was fine-tuned."""
        known = [(run.kind, run.config.init_from) for run in self.finished]
        known += [(run.model.kind, str(run.folder)) for run in self.pretrained]
        first = {kind: folder for kind, folder in reversed(known) if folder}
        return Models(**first)


def gather(places: Sequence[str]) -> Material:
    """Reads the runs in folders and below them.

    Raises:
      FileNotFoundError: if a folder is missing, or holds nothing for a report.
      ValueError: naming the file that is damaged.
    """
    roots = [locate_run(place) for place in places]
    for root in roots:
        if not root.is_dir():
            raise FileNotFoundError(
                f"config.runs names {root}, which is no folder; name folders of runs, "
                "or folders above them, as in --config.runs=runs/pretrain,runs/finetune"
            )
    found = dict.fromkeys(folder for root in roots for folder in find_folders(root))
    material = Material(
        [run for folder in found if (run := read_pretrained(folder))],
        [tuned for folder in found if (tuned := read_finished(folder))],
        [each for folder in found if (each := _read_zero_shot(folder))],
    )
    used = [each.folder for each in material.pretrained]
    used += [each.folder for each in material.finished]
    used += [each.folder for each in material.zero_shot]
    for root in roots:
        if not any(folder.is_relative_to(root) for folder in used):
            raise FileNotFoundError(
                f"{root} holds neither a pre-trained run, nor a finished fine-tuned "
                "one, nor a zero-shot evaluation; leave it out of config.runs."
            )
    return material


def _read_zero_shot(folder: epath.Path) -> ZeroShot | None:
    file = folder / RESULTS_FILE
    if not file.exists():
        return None
    result = read_json(file)
    values = result.get("config")
    if not (isinstance(values, dict) and values.get("job") == "zero_shot"):
        return None
    try:
        config = load(without_local(upgrade(values)))
        runs = escape_strings(result.get("runs") or [_single(result, config)])
        zero_shot.results_table(runs)  # as the report will
        _check_drawable(zero_shot.curves(runs))
        names = [run[key] for run in runs for key in ("init_from", "kind")]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"names {names}")
        versions = {str(k): str(v) for k, v in result.get("versions", {}).items()}
    except _DAMAGE as error:
        raise UserError(
            f"{file} holds no zero-shot scores ({error!r:.80}); it is damaged. Remove "
            "the folder and run the evaluation again, or name other folders."
        ) from error
    return ZeroShot(folder, config, versions, runs)


def _check_drawable(curves: Sequence[zero_shot.Curve]) -> None:
    """Refuses curves that are not of steps, scores and standard errors."""
    if not curves:
        raise ValueError("no task has a score")
    for curve in curves:
        for value in (*curve.steps, *curve.scores, *curve.standard_errors):
            if not -_HUGE < value < _HUGE:
                raise ValueError(f"{value!r:.40} is no score, error or step")
        if min(*curve.steps, *curve.standard_errors) < 0:
            raise ValueError("a step or a standard error is below 0")


def _single(result: Mapping[str, Any], config: ZeroShotConfig) -> dict[str, Any]:
    """The run of a folder of 0.2, which had one only."""
    return {
        "init_from": config.init_from,
        "kind": "transformer",
        "checkpoints": result.get("checkpoints"),
    }
