"""Studies that score runs: what each declares, and how a report finds its results.

A study's module `job` has a `STUDY`; so may a module outside of this package that
`config.studies` of a report names. No module is imported because a results folder
names it.
"""

import dataclasses
import functools
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
      command: the file in configs/ and flags that score runs, for a report that has
        none to show.
    """

    title: str
    score: Callable[[Any, Any, Any, Any], tuple[Mapping[str, Any], Sequence[Any]]]
    rows: Rows
    table: "Callable[[pd.DataFrame, Any], str]"
    figure: "Callable[[pd.DataFrame], Figure | None] | None" = None
    suffix: str = ".jsonl"
    packages: Sequence[str] = ("jax", "numpy", "scikit-learn", "scipy")
    heading: str = ""
    note: str = ""
    command: Sequence[str] = ()


class Evaluation(NamedTuple):
    """The results of a study, read from their folder."""

    folder: epath.Path
    config: Any
    versions: Mapping[str, str]
    origins: Sequence[str]  # the folders of the runs that were scored
    scores: "pd.DataFrame"  # the long table

    def table(self, study: Study) -> str:
        """The study's Markdown of these scores."""
        return study.table(self.scores, self.config)
