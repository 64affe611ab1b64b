"""Reads the runs for a report from folders."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from etils import epath

from gpt1_jax.config.saved import load_values, read_json
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.results import Finished, read_finished
from gpt1_jax.report.markdown import escape_strings
from gpt1_jax.report.scores import zero_shot_scores, zero_shot_table
from gpt1_jax.runs.folder import RESULTS_FILE, locate_run
from gpt1_jax.runs.past_runs import Pretrained, find_folders, read_pretrained
from gpt1_jax.studies.zero_shot.config import ZeroShotConfig

if TYPE_CHECKING:
    import pandas as pd

_HUGE = 1e15  # beyond it, a figure does not tell numbers apart
_DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    ArithmeticError,
)


class ZeroShotEvaluation(NamedTuple):
    """A zero-shot evaluation, read from its folder."""

    folder: epath.Path
    config: ZeroShotConfig
    versions: Mapping[str, str]
    origins: Sequence[str]  # the folders of the run and the baseline, escaped
    scores: "pd.DataFrame"  # as `zero_shot_scores` returns them, texts escaped


class ReportedRuns(NamedTuple):
    """The runs in a report, in the order of their folders, each folder once."""

    pretrained: Sequence[Pretrained]
    finetuned: Sequence[Finished]
    zero_shot: Sequence[ZeroShotEvaluation]


def read_runs(places: Sequence[str]) -> ReportedRuns:
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
    folders = dict.fromkeys(folder for root in roots for folder in find_folders(root))
    runs = ReportedRuns(
        [run for folder in folders if (run := read_pretrained(folder))],
        [tuned for folder in folders if (tuned := read_finished(folder))],
        [each for folder in folders if (each := read_zero_shot(folder))],
    )
    used = [run.folder for of_kind in runs for run in of_kind]
    for root in roots:
        if not any(folder.is_relative_to(root) for folder in used):
            raise FileNotFoundError(
                f"{root} holds neither a pre-trained run, nor a finished fine-tuned "
                "one, nor a zero-shot evaluation; leave it out of config.runs."
            )
    return runs


def read_zero_shot(folder: epath.Path) -> ZeroShotEvaluation | None:
    """The zero-shot evaluation in a folder; None if it holds none.

    Raises:
      UserError: if its results are damaged.
    """
    file = folder / RESULTS_FILE
    if not file.exists():
        return None
    result = read_json(file)
    values = result.get("config")
    if not (isinstance(values, dict) and values.get("job") == "zero_shot"):
        return None
    try:
        config = load_values(values)
        runs = escape_strings(result.get("runs") or [_single_run(result, config)])
        scores = zero_shot_scores(runs)
        _check_scores(scores)
        zero_shot_table(scores)  # as the report will
        names = [run[key] for run in runs for key in ("init_from", "kind")]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"names {names}")
        versions = {str(k): str(v) for k, v in result.get("versions", {}).items()}
    except _DAMAGE as error:
        raise UserError(
            f"{file} holds no zero-shot scores ({error!r:.80}); it is damaged. Remove "
            "the folder and run the evaluation again, or name other folders."
        ) from error
    origins = [run["init_from"] for run in runs]
    return ZeroShotEvaluation(folder, config, versions, origins, scores)


def _check_scores(scores: "pd.DataFrame") -> None:
    """Refuses scores that cannot be drawn.

    Raises:
      ValueError: if there are none, or a step, score or standard error is no number
        of its kind.
    """
    if scores.empty:
        raise ValueError("no task has a score")
    drawn = scores[scores["metric"] != "auc"]
    steps_and_errors = [*drawn["step"], *drawn["relative_standard_error"]]
    for value in [*drawn["relative"], *steps_and_errors]:
        if not -_HUGE < value < _HUGE:
            raise ValueError(f"{value!r:.40} is no score, error or step")
    if min(steps_and_errors) < 0:
        raise ValueError("a step or a standard error is below 0")


def _single_run(result: Mapping[str, Any], config: ZeroShotConfig) -> dict[str, Any]:
    """The run of a folder of 0.2, which had one only."""
    return {
        "init_from": config.init_from,
        "kind": "transformer",
        "checkpoints": result.get("checkpoints"),
    }
