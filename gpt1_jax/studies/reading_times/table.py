"""Tables and the figure of how much surprisal says about reading times."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt1_jax.report import figures
from gpt1_jax.report.markdown import escape, markdown_table
from gpt1_jax.report.scores import run_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
      runs: as `StepScores.of_runs` returns them.
    """
    header = ["run", "step", "words", "gain x 1000", "R² without", "R² with"]
    rows = [
        [
            escape(run["init_from"]),
            f"{step:,}",
            f"{scores['n']:,}",
            f"{1000 * scores['gain']:.2f} ± {1000 * scores['gain_error']:.2f}",
            f"{scores['r2_without']:.4f}",
            f"{scores['r2_with']:.4f}",
        ]
        for run in runs
        for step, scores in _steps(run)
    ]
    return (
        "The gain in log-likelihood, nats per word, of a model of reading times with "
        "surprisal over one without, on stories that neither was fitted to; the "
        "standard error is that over stories.\n\n"
        f"{markdown_table(header, rows, text_columns=1)}\n"
    )


def draw_gains(runs: Sequence[Mapping[str, Any]]) -> "Figure":
    """The gain over updates, or the stories' gains if there is one step alone.

    Args:
      runs: as `StepScores.of_runs` returns them.
    """
    figure = figures.new_figure(7, 4.2)
    axes = figure.subplots()
    several = any(len(list(_steps(run))) > 1 for run in runs)
    for number, (run, name) in enumerate(zip(runs, run_names(runs), strict=True)):
        style: dict[str, Any] = {"color": f"C{number}", "marker": "o", "markersize": 4}
        style["linestyle"] = "--" if number else "-"
        steps, scores = zip(*_steps(run), strict=True)
        if several:
            gains = [1000 * each["gain"] for each in scores]
            errors = [1000 * each["gain_error"] for each in scores]
            axes.errorbar(steps, gains, errors, capsize=2, label=name, **style)
        else:
            by_story = scores[0]["by_story"]
            gains = [1000 * gain for gain in by_story.values()]
            style["linestyle"] = ""
            axes.plot(list(by_story), gains, label=name, **style)
            axes.axhline(1000 * scores[0]["gain"], color=f"C{number}", linewidth=1)
    axes.axhline(0, color=figures.GUIDE, linewidth=0.6)
    if several:
        steps = [step for run in runs for step, _ in _steps(run)]
        figures.scale_updates(axes, steps)
        axes.set_xlabel("updates")
    else:
        axes.set_xlabel("story")
    axes.set_ylabel("gain, nats per word x 1000")
    axes.grid(alpha=0.3)
    for text in axes.legend().get_texts():
        text.set_parse_math(False)
    return figure


def _steps(run: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for checkpoint in run["checkpoints"]:
        yield checkpoint["step"], checkpoint["tasks"][TASK]
