"""The files and folders that a job makes: checked before any work, named after it."""

import errno
import os

from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data import files, owner
from gpt1_jax.data.files import is_remote, is_stream, locate
from gpt1_jax.errors import UserError
from gpt1_jax.runs import lock
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import CONFIG_FILE

_DEPTH = 5  # of the files of a run, such as checkpoints/120/state/d/FILE


def refuse_used(folder: epath.Path) -> None:
    """Refuses a folder for a new run if it is not empty or cannot be written.

    Removes the leftovers of jobs that were killed before they wrote their first file.

    Raises:
      FileExistsError: if it is not empty.
      FolderInUse: if another process owns it.
      OSError: if it cannot be written.
    """
    if not is_remote(folder):
        files.remove_partial(folder.parent, folder.name)
    held = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if not all(map(is_left, held)) or (folder.exists() and not folder.is_dir()):
        raise FileExistsError(
            f"{folder} is not empty, and nothing in it is overwritten; name another "
            "folder, for a job as --workdir=DIR."
        )
    check_output(folder / CONFIG_FILE, "--workdir=DIR")
    if held:
        with lock.owned(folder):
            (folder / owner.LOCK_FILE).unlink(missing_ok=True)


def is_left(name: str) -> bool:
    """Whether a killed job may leave a file of this name that it does not need."""
    return name in lock.FILES or files.is_unfinished(name)


def check_output_file(path: epath.Path, option: str, source: str = "") -> None:
    """Refuses an output that cannot be written, or would replace something else.

    That is the input, or a file of a run or an export.

    Args:
      path: the file, as `locate` returns it. Its folder may be missing and is not made.
      option: the option that names another file, for the message.
      source: the file that the job reads, if any.

    Raises:
      OSError: naming the path.
    """
    check_output(path, option)
    if not path.exists():
        return
    read = os.path.realpath(locate(source)) if source else ""
    if not is_stream(path) and os.path.realpath(path) == read:
        raise FileExistsError(
            f"{path} would replace {source}, which is read; name another file with "
            f"{option}."
        )
    for folder in path.absolute().parents[:_DEPTH]:
        try:
            keys = read_json(folder / CONFIG_FILE).keys()
        except UserError:  # there is none, or it is not a run's
            continue
        if keys & {"job", "model_type"}:
            raise FileExistsError(
                f"{path} is in the run folder {folder}, and nothing in it is "
                f"overwritten; name another file with {option}."
            )


def check_output(path: epath.PathLike, option: str) -> None:
    """Refuses an output that cannot be written, before any work.

    Args:
      path: the file, as `locate` returns it. Its folder may be missing and is not made.
      option: the option that names another file, for the message.

    Raises:
      OSError: naming the path.
    """
    path = epath.Path(path)
    try:
        if is_remote(path):
            files.check_writable(path.parent)
        elif path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif not is_stream(path):
            above = path.absolute().parents
            folder = next(folder for folder in above if folder.exists())
            files.try_writing(folder)
        elif path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror}); name another with {option}."
        ) from error


def say_wrote(path: str) -> None:
    """Says that a file was written, unless it is a stream such as /dev/stdout."""
    if not is_stream(path):
        say(f"Wrote {path}")
