"""Who worked on a run: the programs, their devices, versions and time.

`sessions.json` holds one entry for each program that trained in the run folder. It is
written with every checkpoint and evaluation, so a program that is killed leaves the
account of all but its last steps.
"""

import contextlib
import datetime
import importlib.metadata
import os
import platform
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

import gpt1_jax
from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import write_json
from gpt1_jax.errors import UserError
from gpt1_jax.parallel import devices
from gpt1_jax.runs.wall_time import PROGRAM

SESSIONS_FILE = "sessions.json"
_ENDLESS = 1e12  # seconds
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


class Session:
    """The work of this program on a run.

    Time counts from the start of the program, or from the end of the session before
    it in the same program, as in a suite.

    Args:
      path: the local `sessions.json`.
      first_step: the step that the run continues from.
      text: tokens and words of the training text; empty where they are not counted.

    Raises:
      ValueError: if the file that is there is damaged.
    """

    def __init__(self, path: epath.PathLike, first_step: int, text: Mapping[str, int]):
        self._path = path
        self._before = read_sessions(path)
        self._seconds: Counter[str] = Counter()
        self._began = datetime.datetime.now(datetime.UTC)
        self._text = dict(text)
        self._first_step = self.last_step = first_step

    def write(self) -> None:
        """Writes the file with what was done up to now."""
        self._seconds.update(PROGRAM.lap())
        session = {
            "began": self._began.isoformat(timespec="seconds"),
            "first_step": self._first_step,
            "last_step": self.last_step,
            "devices": devices.describe(),
            "processes": jax.process_count(),
            "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "versions": versions(),
            "text": self._text,
            "seconds": dict(self._seconds),
        }
        # On a full disk too, what a run says is why it stopped, and its next program
        # writes this file again.
        with contextlib.suppress(OSError):
            write_json(self._path, {"sessions": [*self._before, session]})


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what it computes with."""
    return {
        "gpt1_jax": gpt1_jax.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def read_sessions(path: epath.PathLike) -> list[Mapping[str, Any]]:
    """The sessions in a file, the first one first; none if there is no file.

    Raises:
      ValueError: if it holds something else.
    """
    if not epath.Path(path).exists():  # folders of 0.1.0 have none
        return []
    sessions = read_json(path).get("sessions")
    if not (isinstance(sessions, list) and all(map(_is_session, sessions))):
        raise UserError(
            f"{path} holds no list of sessions; it is damaged or was not written by "
            "this program. Move it away to start a new one."
        )
    return sessions


def _is_session(value: Any) -> bool:
    match value:
        case {
            "began": str(),
            "first_step": int(),
            "last_step": int(),
            "devices": str(),
            "host": str(),
            "versions": dict(),
            "text": dict(),
            "seconds": dict(seconds),
        }:
            return all(
                isinstance(each, int | float) and 0 <= each < _ENDLESS
                for each in seconds.values()
            )
    return False
