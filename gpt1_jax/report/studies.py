"""Studies that score runs: what each declares, and how a report finds its results.

A study's module `job` has a `STUDY`; so may a module outside of this package that
`config.studies` of a report names. No module is imported because a results folder
names it.
"""

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from etils import epath

from gpt1_jax.config import STUDIES, find_job
from gpt1_jax.config.saved import load_values, read_json
from gpt1_jax.errors import UserError
from gpt1_jax.formats import RESULTS, VERSION
from gpt1_jax.report.markdown import escape
from gpt1_jax.report.study_scores import Rows, long_table
from gpt1_jax.runs.folder import RESULTS_FILE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclasses.dataclass(frozen=True)
class Study:
    """A study that scores runs; `studies.engine.score_steps` does the rest.

    Attributes:
      title: names it in a sentence, as in "2 zero-shot evaluations".
      score: scores one task: from the configuration, the task's items, a `Scorer` and
        the parameters, to its scores, ready for JSON, and a prediction for each item.
      rows: the rows of a task in the long table (`report.study_scores.long_table`).
      table: Markdown, from the long table and the configuration.
      figure: a figure, from the long table; None draws nothing.
      suffix: of the files of predictions, ".jsonl" or ".csv".
      packages: packages whose versions results.json notes, beside ours.
      heading: of its section in a report; empty: the title.
      note: what a report says below its tables, Markdown: the paper's scores.
    """

    title: str
    score: Callable[[Any, Any, Any, Any], tuple[Mapping[str, Any], Sequence[Any]]]
    rows: Rows
    table: "Callable[[pd.DataFrame, Any], str]"
    figure: "Callable[[pd.DataFrame], Figure] | None" = None
    suffix: str = ".jsonl"
    packages: Sequence[str] = ("jax", "numpy", "scikit-learn", "scipy")
    heading: str = ""
    note: str = ""

    @property
    def picture(self) -> str:
        """The name of its pictures in a report."""
        return re.sub(r"\W+", "_", self.title)


class Evaluation(NamedTuple):
    """The results of a study, read from their folder."""

    folder: epath.Path
    study: Study
    config: Any
    versions: Mapping[str, str]
    origins: Sequence[str]  # the folders of the runs that were scored, escaped
    scores: "pd.DataFrame"  # the long table


def find_studies(modules: Sequence[str] = ()) -> dict[str, Study]:
    """The studies outside of this package, by job.

    Args:
      modules: their modules, each the job's name.

    Raises:
      UserError: if there is no such module, or it declares no study.
    """
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise
            raise UserError(
                f"config.studies names {name!r}, but there is no such module here; "
                "name modules that Python finds, such as one in this folder or in "
                "PYTHONPATH."
            ) from error
        if not isinstance(getattr(module, "STUDY", None), Study):
            raise UserError(
                f"config.studies names {name!r}, which has no STUDY, a "
                "gpt1_jax.report.studies.Study, so there is nothing to add; leave it "
                "out, or give it one."
            )
        find_job(name, may_import=True)
    return {name: sys.modules[name].STUDY for name in modules}


def read_evaluation(
    folder: epath.Path, others: Mapping[str, Study]
) -> Evaluation | None:
    """The results of a study in a folder; None if it holds none.

    Args:
      folder: any folder.
      others: studies outside of this package, by job.

    Raises:
      UserError: if they are damaged, or of another format.
    """
    job = job_of_results(folder)
    study = others.get(job) or find_study(job)
    if study is None:
        return None
    file = folder / RESULTS_FILE
    result = read_json(file)
    RESULTS.check(result, file)
    try:
        config = load_values(result["config"])
        scores = long_table(result["runs"], study.rows)
        if (scores["step"] < 0).any():
            raise ValueError("a step is below 0")
        study.table(scores, config)  # as the report will
        origins = [escape(run["init_from"]) for run in result["runs"]]
        packages = {VERSION: result[VERSION], **result["versions"]}
        versions = {str(name): str(version) for name, version in packages.items()}
    except _DAMAGE as error:
        raise UserError(
            f"{file} holds no {study.title} scores ({error!r:.80}); it is damaged. "
            "Remove the folder and run the evaluation again, or name other folders."
        ) from error
    return Evaluation(folder, study, config, versions, origins, scores)


def find_study(job: str) -> Study | None:
    """The study of a job of this package; None if the job scores nothing."""
    if job not in STUDIES:
        return None
    declared = getattr(find_job(job).import_module(), "STUDY", None)
    return declared[job] if isinstance(declared, Mapping) else declared


def job_of_results(folder: epath.Path) -> str:
    """The job that a folder's results name; "" if there are none, or they name none."""
    file = folder / RESULTS_FILE
    values = read_json(file).get("config") if file.exists() else None
    job = values.get("job") if isinstance(values, dict) else None
    return job if isinstance(job, str) else ""
