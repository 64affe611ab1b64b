"""Formats of the files that the program writes and reads back, and their numbers.

A file with a format states its number and the version of the program that wrote it.
Another number, or none, is refused: a guess might misread the file. The number rises
only when files can no longer be read as before. A new key in a configuration does not
raise it: its default is what run folders without it did.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import gpt1_jax
from gpt1_jax.errors import UserError

FORMAT, VERSION = "format", "gpt1_jax"  # the keys of number and version
_FIRST = "1.0.0"  # earlier versions wrote neither
_SHORT = re.compile(r"[0-9][0-9A-Za-z.+-]{0,30}")  # anyone may have written a version


def is_newer(version: Any) -> bool:
    """Whether a version of the program, as a file states it, is later than this one."""

    def numbers(text: str) -> list[int]:
        return [int(each) for each in re.findall(r"\d{1,9}", text)[:3]]

    return isinstance(version, str) and numbers(version) > numbers(gpt1_jax.__version__)


class Format(NamedTuple):
    """A kind of file or folder, and the number of the format that is read."""

    name: str
    number: int
    again: str  # how to get it in this version's format

    def stamp(self) -> dict[str, Any]:
        """The first entries of such a file: its format's number and this version."""
        return {FORMAT: self.number, VERSION: gpt1_jax.__version__}

    def check(self, values: Mapping[str, Any], where: Any) -> None:
        """Refuses a file with another number, or without one.

        Args:
          values: the values in the file.
          where: the file or folder, for the message.

        Raises:
          UserError: naming the number, the version that wrote it, and the way out.
        """
        number, version = values.get(FORMAT), values.get(VERSION)
        if number == self.number and type(number) is int:
            return
        known = isinstance(version, str) and _SHORT.fullmatch(version)
        writer = f"gpt1_jax {version}" if known else "an unknown version of gpt1_jax"
        which = f"of format {number!r:.20}"
        if number is None:
            which = "without the number of its format"
            writer = f"a version of gpt1_jax before {_FIRST}"
        use = writer if number is not None and known else "the version that wrote it"
        raise UserError(
            f"{where} is {self.name} {which}, written by {writer}; gpt1_jax "
            f"{gpt1_jax.__version__} reads format {self.number}. Use {use}, or "
            f"{self.again}."
        )


# All that a run, or a job, writes to its folder; `config.json` holds the number.
RUN_FOLDER = Format(
    "a run folder", 1, "make it again with this version, in another --workdir"
)
RESULTS = Format(
    "a file of results", 1, "remove it and run the command that writes it again"
)
KEPT_SCORE = Format("a kept score", 1, "let this command score again")
TOKENIZER = Format("a saved tokenizer", 1, "name one that this version saved")
# Its number is part of the name of a corpus, so that the cache may hold several.
CORPUS = Format("a prepared corpus", 2, "remove it, and the next run makes it again")
EXPORT = Format("the table of an export", 1, "export the run again with convert")
VERIFICATION = Format("a table of verify", 1, "run verify again with this version")
