"""Tables of how well surprisal predicts reading times."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpt1_jax.report.markdown import markdown_table

TASK = "reading_times"


def describe_gain(scores: Mapping[str, Any]) -> str:
    """The gain of a step as a line."""
    return (
        f"gain {1000 * scores['gain']:6.2f} ± {1000 * scores['gain_error']:.2f} "
        f"thousandths of a nat per word, R² {scores['r2_without']:.4f} to "
        f"{scores['r2_with']:.4f} ({scores['n']:,} words)"
    )


def gains_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line for each run and step.

    Args:
      runs: as `StepScores.of_runs` returns them, all texts escaped.
    """
    header = ["run", "step", "words", "gain x 1000", "R² without", "R² with"]
    rows = [
        [
            run["init_from"],
            f"{step:,}",
            f"{scores['n']:,}",
            f"{1000 * scores['gain']:.2f} ± {1000 * scores['gain_error']:.2f}",
            f"{scores['r2_without']:.4f}",
            f"{scores['r2_with']:.4f}",
        ]
        for run in runs
        for step, scores in steps_of_run(run)
    ]
    return (
        "The gain in log-likelihood, nats per word, of a model of reading times with "
        "surprisal over one without, on stories that neither was fitted to; the "
        "standard error is that over stories.\n\n"
        f"{markdown_table(header, rows, text_columns=1)}\n"
    )


def steps_of_run(
    run: Mapping[str, Any],
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The steps of a run, and the scores of each."""
    for checkpoint in run["checkpoints"]:
        yield checkpoint["step"], checkpoint["tasks"][TASK]
