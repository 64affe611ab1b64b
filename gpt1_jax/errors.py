"""What the user can mend, told apart from what is wrong with the program."""

import contextlib
import pkgutil
from collections.abc import Iterator
from typing import Any


class UserError(ValueError):
    """Says what was found, what was expected and the way out; printed as one line.

    Any other exception but those of the system (`OSError`) and of training that broke
    down (`FloatingPointError`) is a bug, and its traceback is shown.
    """


class MissingPackage(UserError, ImportError):
    """An optional package is not installed."""


class MissingData(FileNotFoundError):
    """Data is not where it should be; a job of several tasks goes on without it."""


class TryAgain(OSError):
    """A passing state of the machine: the same command may well succeed (code 75)."""


def find_named(name: str, needed_by: str, otherwise: str) -> Any:
    """Imports what a table has under MODULE:NAME.

    Args:
      name: the module and the name in it.
      needed_by: what asks for it, such as a configuration key and its value.
      otherwise: how to do without, for the message.

    Raises:
      MissingPackage: if the module, or a package that it imports, is not there.
    """
    try:
        return pkgutil.resolve_name(name)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"{needed_by} needs {error.name}, which is not there; install it, or "
            f"{otherwise}."
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
