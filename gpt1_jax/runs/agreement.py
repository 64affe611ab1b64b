"""Checks that all processes of a command have one configuration and one run folder."""

import contextlib
import platform
import socket
import uuid

import jax
from etils import epath

import gpt1_jax
from gpt1_jax.config.saved import portable_values
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.data.files import create, make_folder
from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import agree, eventually, gather, is_main_process
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.resume import check_same


def check_processes(config: JobConfig, workdir: str) -> None:
    """Checks that all processes have the same configuration, versions and folder.

    If they differ, all of them raise the same error.

    Raises:
      ValueError: if configurations or versions differ, naming each difference; if the
        run folder is not the same, naming a process that has another one.
      PermissionError: if the main process cannot write there.
    """
    if jax.process_count() == 1:
        return
    versions = {
        "gpt1_jax": gpt1_jax.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    values = portable_values(config.to_dict())
    check_same({f"config.{key}": value for key, value in values.items()})
    check_same({f"the version of {name}": value for name, value in versions.items()})
    _check_shared(run_folder.locate_run(workdir))


def _check_shared(folder: epath.Path) -> None:
    """Checks that all processes see a file that the main one writes to the folder."""
    probe = folder / gather(f".shared-{uuid.uuid4().hex}")[0]
    written = False
    if is_main_process():
        with contextlib.suppress(OSError):
            make_folder(folder)
            create(probe, "")
            written = True
    if not agree(written):
        raise PermissionError(
            f"Process 0 cannot write to the run folder {folder}; name another with "
            "--workdir=DIR."
        )
    apart = "" if eventually(probe.exists) else f"{folder} on {socket.gethostname()}"
    found = gather(apart)
    if is_main_process():
        probe.unlink(missing_ok=True)
    for index, other in enumerate(found):
        if other:
            raise UserError(
                f"The run folder of process {index}, {other}, is not that of process "
                "0: it does not see a file written there. All processes need one "
                "folder; name one on a shared disk or in a bucket, "
                "--workdir=gs://BUCKET/RUN."
            )
