"""What a run shows: lines that do not break a progress bar."""

import sys

import tqdm

from gpt1_jax.parallel.processes import is_main_process


def say(text: str) -> None:
    """Shows text, on the process that writes."""
    if is_main_process():
        tqdm.tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
