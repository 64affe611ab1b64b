"""The entry point: `python -m gpt1_jax.main --config=configs/NAME.py[:preset]`.

All imports are in `program`, so that Ctrl-C is caught before they begin, and worker
processes, which import this file again, start fast.
"""

import os
import signal
import sys
import types


def _quit(number: int, frame: "types.FrameType | None") -> None:
    """Ends the program at once; a KeyboardInterrupt could be lost in an import."""
    del number, frame
    try:
        os.write(2, b"gpt1_jax: interrupted.\n")
    finally:
        os._exit(1)


def run() -> None:
    """Entry point of `python -m gpt1_jax.main` and of the command `gpt1_jax`."""
    if sys.version_info < (3, 11):  # noqa: UP036 - of a copy that is not installed
        sys.exit("gpt1_jax: error: Python 3.11 or newer is needed to run this.")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _quit)
    from gpt1_jax import program

    program.run()


if __name__ == "__main__":
    run()
