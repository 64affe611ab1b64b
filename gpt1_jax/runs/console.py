"""What a run prints, on the main process."""

from gpt1_jax.data import progress
from gpt1_jax.data.files import is_stream
from gpt1_jax.parallel.processes import is_main_process


def say(text: str, end: str = "\n", *, beside_output: bool = False) -> None:
    """`progress.say`, on the main process."""
    if is_main_process():
        progress.say(text, end, beside_output=beside_output)


def say_wrote(path: str) -> None:
    """Says that a file is there, unless it is a stream such as /dev/stdout."""
    if not is_stream(path):
        say(f"Wrote {path}")
