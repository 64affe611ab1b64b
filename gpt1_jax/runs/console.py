"""What a run shows, on the process that writes."""

from gpt1_jax.data import progress
from gpt1_jax.parallel.processes import is_main_process


def say(text: str) -> None:
    """Shows a line that does not break a progress bar."""
    if is_main_process():
        progress.say(text)
