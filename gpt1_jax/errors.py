"""Errors that the user can fix, as opposed to bugs of the program."""

import contextlib
import errno
import pkgutil
from collections.abc import Iterator
from typing import Any

_MEMORY = (
    "allow this process more memory and threads (ulimit -v unlimited, ulimit -u), or "
    "lower the batch size"
)
# The way out of errors of the system, by their number: of a disk that is full, where
# nothing may be written, and when a process has used up what it is allowed.
FULL = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room within your quota",
    errno.EFBIG: "allow larger files (ulimit -f)",
}
DENIED = dict.fromkeys(
    (errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR),
    "allow that, or name another folder",
)
USED_UP = {
    errno.EMFILE: "allow this process to open more files (ulimit -n 1024)",
    errno.ENFILE: "close other programs: this machine can open no more files",
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: _MEMORY,  # no more threads
}
# The way out of errors of Python and of libraries, by the beginning of their text.
_TEXTS = {
    "RESOURCE_EXHAUSTED: ": (  # XLA's, whatever the class
        "a device has run out of memory; lower the batch size, or compute a training "
        "batch in more parts with config.train.accumulation_steps; for other ways see "
        "Memory in docs/pretraining.md"
    ),
    "can't start new thread": _MEMORY,
    "std::bad_alloc": _MEMORY,
}


class UserError(ValueError):
    """An error that the user can fix, printed as one line.

    It says what was found, what was expected and the way out. Any other exception is a
    bug and shows its traceback, except `OSError` and diverged training
    (`FloatingPointError`).
    """


class MissingPackage(UserError, ImportError):
    """An optional package is not installed."""


class MissingData(FileNotFoundError):
    """Data is missing; a job with several tasks continues without it."""


class TryAgain(OSError):
    """A temporary failure: the same command may succeed later (exit code 75)."""


def find_named(name: str, needed_by: str, otherwise: str = "") -> Any:
    """Imports what a table names.

    Args:
      name: MODULE, or MODULE:NAME for an object in it.
      needed_by: what needs it, such as a configuration key and its value.
      otherwise: how to do without it, for the message; empty if there is no way.

    Raises:
      MissingPackage: if the module is not in this copy of the package, or a package
        that it imports is not installed.
    """
    try:
        # Without a colon, a module that cannot be imported would be called missing.
        return pkgutil.resolve_name(name if ":" in name else f"{name}:")
    except ModuleNotFoundError as error:
        missing, way_out = str(error.name), "is not installed; install it"
        if missing.startswith("gpt1_jax."):
            way_out = "this copy of the package does not have; copy it, too"
        raise MissingPackage(
            f"{needed_by} needs {missing}, which {way_out}"
            f"{otherwise and ', or ' + otherwise}."
        ) from error


@contextlib.contextmanager
def from_extra(extra: str, needed_by: str, otherwise: str = "") -> Iterator[None]:
    """Around the import of packages that only an extra of setup.cfg installs.

    Args:
      extra: the extra.
      needed_by: what asks for the packages, such as a configuration key and its value.
      otherwise: how to do without, for the message; empty if there is no way.

    Raises:
      MissingPackage: if one is missing, with the command that installs them.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackage(
            f"{needed_by} needs the extra {extra} ({error}): pip install "
            f"'gpt1_jax[{extra}]'{otherwise and ', or ' + otherwise}."
        ) from error


def explain(error: BaseException) -> str:
    """What to do about an error of the system or of a library, which does not say so.

    Returns:
      A line with the error and the way out; empty for any other error.
    """
    line = str(error).partition("\n")[0]
    if isinstance(error, OSError) and error.strerror:
        way_out = {**FULL, **USED_UP}.get(error.errno or 0, "")
    elif isinstance(error, MemoryError):
        way_out, line = _MEMORY, line or "no memory is left"
    else:
        way_out = next((_TEXTS[text] for text in _TEXTS if line.startswith(text)), "")
    return way_out and f"{line:.300}: {way_out}, and run the same command again."
