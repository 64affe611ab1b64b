"""What a run prints, on the main process."""

from gpt1_jax.data import progress
from gpt1_jax.parallel.processes import is_main_process


def say(text: str, end: str = "\n") -> None:
    """Prints a line without breaking a progress bar; control characters are escaped."""
    if is_main_process():
        progress.say(text, end)
