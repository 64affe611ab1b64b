"""The entry point: `python -m gpt1_jax.main --config=configs/NAME.py[:preset]`.

All other imports are in `program`, so that Ctrl-C is caught before they begin, and
worker processes, which import this file again, start fast.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import NoReturn

# Settings of glibc's malloc: nothing is mapped apart from the heap (M_MMAP_MAX), which
# never shrinks (M_TRIM_THRESHOLD) and serves all threads (M_ARENA_MAX).
_MALLOC = ((-4, 0), (-1, -1), (-8, 1))
_KEPT_SECONDS = 20


def _quit(number: int, frame: "types.FrameType | None") -> None:
    """Ends the program at once; a KeyboardInterrupt could be lost in an import."""
    del number, frame
    try:
        os.write(2, b"gpt1_jax: interrupted.\n")
    finally:
        os._exit(1)


def keep_freed_memory() -> None:
    """Has glibc keep large arrays that are freed, for the next ones.

    On a CPU, XLA allocates a program's memory at each call. glibc would take it from
    the system and give it back each time, and the system clears each page that it hands
    out: an eighth of the time of a small model's step. Threads that have allocated
    before keep heaps of their own, which are given back all the same, so this runs
    before anything else.

    Small arrays may be placed where a large one was, and the next large one then needs
    new memory. So free memory is returned to the system every `_KEPT_SECONDS`.
    """
    with contextlib.suppress(OSError, TypeError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOC:
            libc.mallopt(parameter, value)
        threading.Thread(
            target=_give_back, args=[libc.malloc_trim], daemon=True
        ).start()


def _give_back(malloc_trim: Callable[[int], object]) -> NoReturn:
    while True:
        time.sleep(_KEPT_SECONDS)
        malloc_trim(0)


def run() -> None:
    """Entry point of `python -m gpt1_jax.main` and of the command `gpt1_jax`."""
    if sys.version_info < (3, 11):  # noqa: UP036 - of a copy that is not installed
        sys.exit("gpt1_jax: error: Python 3.11 or newer is needed to run this.")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _quit)
    keep_freed_memory()
    from gpt1_jax import program

    program.run()


if __name__ == "__main__":
    run()
