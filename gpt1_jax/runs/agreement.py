"""Whether the processes that have joined make up one run, asked before any work."""

import contextlib
import json
import platform
import socket
import uuid
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

import gpt1_jax
from gpt1_jax.config import JobConfig
from gpt1_jax.config.saved import flatten, without_local
from gpt1_jax.data.files import create, make_folder
from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import eventually, gather, is_main_process
from gpt1_jax.runs import folder as run_folder

_LISTED = 5  # differences in a message


def check(config: JobConfig, workdir: str) -> None:
    """Refuses processes that differ in what makes up a run; all of them refuse.

    Args:
      config: this process's configuration.
      workdir: its run folder, local or gs://.

    Raises:
      ValueError: if configurations or versions differ; names each difference. If the
        run folder is not one and the same; names who has another.
      PermissionError: if the main process cannot write there.
    """
    if jax.process_count() == 1:
        return
    versions = {
        "gpt1_jax": gpt1_jax.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    values = flatten(without_local(config.to_dict()))
    check_same({f"config.{key}": value for key, value in values.items()})
    check_same({f"the version of {name}": value for name, value in versions.items()})
    folder = run_folder.locate(workdir)
    _check_shared(folder)


def check_same(facts: Mapping[str, Any]) -> None:
    """Refuses processes that know different facts; all of them refuse.

    Args:
      facts: JSON values by their names; every process calls this with its own.

    Raises:
      ValueError: naming each difference.
    """
    first, *others = map(json.loads, gather(json.dumps(facts)))
    differences = [
        f"{key} is {other.get(key)!r} on process {index}, {first.get(key)!r} on "
        "process 0"
        for index, other in enumerate(others, 1)
        for key in sorted(first.keys() | other.keys())
        if other.get(key) != first.get(key)
    ]
    if differences:
        more = len(differences) - _LISTED
        raise UserError(
            f"The processes of this run differ: {'; '.join(differences[:_LISTED])}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Start the same command on every host, with the same installation and "
            "the same text."
        )


def _check_shared(folder: epath.Path) -> None:
    """Raises on all processes unless all see what the main one writes to the folder."""
    name = gather(_write(folder) if is_main_process() else "")[0]
    if not name:
        raise PermissionError(
            f"Process 0 cannot write to the run folder {folder}; name another with "
            "--workdir=DIR."
        )
    seen = eventually(lambda: _holds_its_name(folder / name))
    apart = "" if seen else f"{folder} on {socket.gethostname()}"
    found = gather(apart)
    if is_main_process():
        (folder / name).unlink(missing_ok=True)
    for index, other in enumerate(found):
        if other:
            raise UserError(
                f"The run folder of process {index}, {other}, is not that of process "
                "0: a file written there is not seen. All processes need one folder; "
                "name one on a shared disk or in a bucket, --workdir=gs://BUCKET/RUN."
            )


def _write(folder: epath.Path) -> str:
    """The name of a new file that holds its own name; empty if it cannot be made."""
    name = f".shared-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):
        make_folder(folder)
        create(folder / name, name)
        return name
    return ""


def _holds_its_name(path: epath.Path) -> bool:
    """Whether there is a file as `_write` makes them."""
    with contextlib.suppress(OSError):
        return path.read_text() == path.name
    return False
