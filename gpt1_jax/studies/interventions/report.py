"""Interventions in a report: effects of heads, layers and positions."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from gpt1_jax.report.markdown import escape
from gpt1_jax.report.page import Block, Picture, ReportSection
from gpt1_jax.report.runs import ReportedRuns
from gpt1_jax.report.studies import Evaluation, StudyReport
from gpt1_jax.studies.interventions.figure import draw_effects
from gpt1_jax.studies.interventions.table import effect_scores, effects_tables


def read_scores(runs: Sequence[Mapping[str, Any]]) -> Any:
    """The effects of an evaluation, as `effect_scores` returns them.

    Args:
      runs: of its results.json.

    Raises:
      KeyError, TypeError, ValueError, ..: if the section could not show them.
    """
    scores = effect_scores(runs)
    effects_tables(scores, "zero")  # as the section will
    if (scores["step"] < 0).any():
        raise ValueError("a step is below 0")
    return scores


def make_section(
    runs: ReportedRuns, evaluations: Sequence[Evaluation]
) -> ReportSection | None:
    """Tables and figures of each evaluation; None if there is none."""
    del runs
    if not evaluations:
        return None
    blocks: list[Block] = []
    for evaluation in evaluations:
        folder = escape(str(evaluation.folder))
        picture = Picture(
            "interventions",
            "Effects of heads, layers and positions on the choice between two "
            "answers; the numbers are in the tables.",
            functools.partial(draw_effects, evaluation.drawn),
        )
        heading = f"### Of {' and '.join(evaluation.origins)}, in {folder}"
        table = effects_tables(evaluation.scores, evaluation.config.method)
        blocks += [heading, picture, table.replace("### ", "#### ")]
    return ReportSection("Interventions", blocks)


REPORT = StudyReport("interventions", read_scores, make_section)
