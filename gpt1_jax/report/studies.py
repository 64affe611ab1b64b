"""The sections that studies add to a report: the one hook that each may offer.

A study that wants a section has a `REPORT`, a `StudyReport`: in the module `report` of
its folder, or, outside of this package, in the module that `config.studies` names. No
module is imported because a results folder names it.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from etils import epath

from gpt1_jax.config import JOBS, STUDIES, find_job
from gpt1_jax.config.saved import load_values, read_json
from gpt1_jax.errors import UserError
from gpt1_jax.formats import RESULTS, VERSION
from gpt1_jax.report.markdown import escape_strings
from gpt1_jax.report.page import ReportSection
from gpt1_jax.runs.folder import RESULTS_FILE

if TYPE_CHECKING:
    from gpt1_jax.report.runs import ReportedRuns

_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class Evaluation(NamedTuple):
    """The results of a study, read from their folder."""

    folder: epath.Path
    config: Any
    versions: Mapping[str, str]
    origins: Sequence[str]  # the folders of the runs that were scored, escaped
    scores: Any  # as `StudyReport.read_scores` returns them from escaped texts
    drawn: Any  # the same from texts as they are, for figures


class StudyReport(NamedTuple):
    """A study's part of a report, besides its configurations and versions.

    Attributes:
      name: names it in a sentence: "zero-shot" is counted as "2 zero-shot evaluations".
      read_scores: turns the runs of a results.json (`studies.engine.score_steps`) into
        what the section shows. It is called twice: with all texts escaped, but not the
        keys of objects, for Markdown (`Evaluation.scores`), as the engine calls
        `table`; and with texts as they are, for figures (`Evaluation.drawn`). It raises
        an error, such as a KeyError, if they are damaged.
      make_section: makes the section from all runs of the report and the study's
        evaluations, in order; None for no section. The report names the pictures, and
        counts a study that has evaluations or a section.
    """

    name: str
    read_scores: Callable[[Sequence[Mapping[str, Any]]], Any]
    make_section: "Callable[[ReportedRuns, Sequence[Evaluation]], ReportSection | None]"

    @property
    def picture(self) -> str:
        """The name of its first picture."""
        return re.sub(r"\W+", "_", self.name)


def find_studies(modules: Sequence[str] = ()) -> dict[str, StudyReport]:
    """The parts that studies add to a report, by job: this package's, then others.

    Args:
      modules: the modules of studies outside of this package, each the job's name.

    Raises:
      UserError: if there is no such module, or it adds nothing to a report.
    """
    found = {}
    for name in STUDIES:
        module = f"{JOBS[name].module.rpartition('.')[0]}.report"
        if importlib.util.find_spec(module):
            found[name] = importlib.import_module(module).REPORT
    for name in modules:
        try:
            study = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise
            raise UserError(
                f"config.studies names {name!r}, but there is no such module here; "
                "name modules that Python finds, such as one in this folder or in "
                "PYTHONPATH."
            ) from error
        if not isinstance(getattr(study, "REPORT", None), StudyReport):
            raise UserError(
                f"config.studies names {name!r}, which has no REPORT, a "
                "gpt1_jax.report.studies.StudyReport, so there is nothing to add; "
                "leave it out, or give it one."
            )
        find_job(name, may_import=True)
        found[name] = study.REPORT
    return found


def read_evaluation(
    folder: epath.Path, studies: Mapping[str, StudyReport]
) -> tuple[StudyReport, Evaluation] | None:
    """The results of a study in a folder; None if it holds none of these studies.

    Raises:
      UserError: if they are damaged, or of another format.
    """
    job = job_of_results(folder)
    if job not in studies:
        return None
    study, file = studies[job], folder / RESULTS_FILE
    result = read_json(file)
    RESULTS.check(result, file)
    try:
        config = load_values(result["config"])
        runs = result["runs"]
        escaped = escape_strings(runs)
        scores = study.read_scores(escaped)
        drawn = study.read_scores(runs)
        origins = [run["init_from"] for run in escaped]
        packages = {VERSION: result[VERSION], **result["versions"]}
        versions = {str(name): str(version) for name, version in packages.items()}
    except _DAMAGE as error:
        raise UserError(
            f"{file} holds no {study.name} scores ({error!r:.80}); it is damaged. "
            "Remove the folder and run the evaluation again, or name other folders."
        ) from error
    return study, Evaluation(folder, config, versions, origins, scores, drawn)


def job_of_results(folder: epath.Path) -> str:
    """The job that a folder's results name; "" if there are none, or they name none."""
    file = folder / RESULTS_FILE
    values = read_json(file).get("config") if file.exists() else None
    job = values.get("job") if isinstance(values, dict) else None
    return job if isinstance(job, str) else ""
