"""What the user can mend, told apart from what is wrong with the program."""


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
