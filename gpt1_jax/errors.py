"""Errors that the user can fix, as opposed to bugs of the program."""

import contextlib
import pkgutil
from collections.abc import Iterator
from typing import Any


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
