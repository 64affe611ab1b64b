"""Prints lines on the main process of a run."""

from gpt1_jax.data import progress
from gpt1_jax.parallel.processes import is_main_process


def say(text: str, end: str = "\n", *, beside_output: bool = False) -> None:
    """Shows a line on the main process; see `progress.show_line`."""
    if is_main_process():
        progress.show_line(text, end, beside_output=beside_output)


def about(seconds: float) -> str:
    """A rough duration: "36 minutes", "5 hours", "124 days"."""
    units = {"minutes": 60, "hours": 3600, "days": 86_400}
    fitting = [name for name, each in units.items() if seconds >= 2 * each]
    unit = fitting[-1] if fitting else "minutes"
    number = max(1, round(seconds / units[unit]))
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"
