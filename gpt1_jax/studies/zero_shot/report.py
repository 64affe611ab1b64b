"""Zero-shot evaluations in a report: Figure 2, right."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpt1_jax.report.markdown import escape
from gpt1_jax.report.page import Block, Picture, ReportSection
from gpt1_jax.report.runs import ReportedRuns
from gpt1_jax.report.studies import Evaluation, StudyReport
from gpt1_jax.studies.zero_shot.figure import relative_scores
from gpt1_jax.studies.zero_shot.table import zero_shot_scores, zero_shot_table

_HUGE = 1e15  # beyond it, a figure does not tell numbers apart
_PAPER = (
    "The paper's curves end, as others have read them off its figure, at relative "
    "scores of about 0.68 in sentiment (SST-2), 0.55 in Winograd schemas (DPR), 0.43 "
    "in acceptability (CoLA) and 0.25 in questions (RACE); the LSTM's lie lower and "
    "vary more."
)


def read_scores(runs: Sequence[Mapping[str, Any]]) -> Any:
    """The scores of an evaluation, as `zero_shot_scores` returns them.

    Args:
      runs: of its results.json.

    Raises:
      KeyError, TypeError, ValueError, ..: if the section could not show them.
    """
    scores = zero_shot_scores(runs)
    _check_scores(scores)
    zero_shot_table(scores)  # as the section will
    names = [run[key] for run in runs for key in ("init_from", "kind")]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"names {names}")
    return scores


def _check_scores(scores: Any) -> None:
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


def make_section(
    runs: ReportedRuns, evaluations: Sequence[Evaluation]
) -> ReportSection:
    """Figure 2 (right), for each evaluation."""
    del runs
    blocks: list[Block] = []
    headings = Counter(tuple(evaluation.origins) for evaluation in evaluations)
    for evaluation in evaluations:
        several = headings[tuple(evaluation.origins)] > 1
        where = f", in {escape(str(evaluation.folder))}" if several else ""
        picture = Picture(
            "zero_shot",
            "Relative zero-shot scores over updates, 0 at chance and 1 at the best "
            "published before; the numbers are in the table.",
            functools.partial(relative_scores, evaluation.drawn),
        )
        heading = f"### Of {' and '.join(evaluation.origins)}{where}"
        blocks += [heading, picture, zero_shot_table(evaluation.scores)]
    return ReportSection("Zero-shot over updates (Figure 2, right)", [*blocks, _PAPER])


REPORT = StudyReport("zero-shot", read_scores, make_section)
