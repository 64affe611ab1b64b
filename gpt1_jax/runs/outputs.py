"""The files and folders that a job makes: checked before any work, named after it."""

import errno
import os
from collections.abc import Collection

from etils import epath

from gpt1_jax.config.checks import FIGURE_SUFFIXES
from gpt1_jax.config.saved import read_json
from gpt1_jax.data import files, owner
from gpt1_jax.data.files import is_remote, is_stream, locate
from gpt1_jax.errors import UserError
from gpt1_jax.runs import lock
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import CONFIG_FILE, NAMES

_DEPTH = 5  # of the files of a run, such as checkpoints/120/state/d/FILE


def refuse_used(folder: epath.Path, names: Collection[str]) -> None:
    """Refuses a folder for a new run or export if a job's files are in it.

    Files of other names may be there. Removes the leftovers of jobs that were killed
    before they wrote their first file.

    Args:
      folder: the folder; it may be missing and is not made.
      names: what the job writes at its top.

    Raises:
      FileExistsError: if it holds one of these, or is a file.
      FolderInUse: if another process owns it.
      OSError: if it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name another, as --workdir=DIR.")
    if not is_remote(folder):
        files.remove_partial(folder.parent, folder.name)
    held = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if used := sorted(set(held) & set(names)):
        raise FileExistsError(
            f"{folder} holds {', '.join(used[:5])}, and nothing there is overwritten; "
            "name another folder, for a job as --workdir=DIR."
        )
    check_output(folder / CONFIG_FILE, "--workdir=DIR")
    if any(name in lock.FILES or files.is_unfinished(name) for name in held):
        with lock.owned(folder):  # removes unfinished files
            (folder / owner.LOCK_FILE).unlink(missing_ok=True)


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
    replaced = source and os.path.realpath(path) == os.path.realpath(locate(source))
    if replaced and not is_stream(path):
        raise FileExistsError(
            f"{path} would replace {source}, which is read; name another file with "
            f"{option}."
        )
    for folder in path.absolute().parents[:_DEPTH]:
        try:
            keys = read_json(folder / CONFIG_FILE).keys()
        except UserError:  # there is none, or it is not a run's
            continue
        is_own = path.absolute().relative_to(folder).parts[0] in NAMES
        if "model_type" in keys or ("job" in keys and is_own):
            raise FileExistsError(
                f"{path} is a file of the run folder {folder}, and no such file is "
                f"overwritten; name another one with {option}."
            )


def check_figure(figure: str, source: str = "") -> None:
    """Refuses the files of a figure and its numbers as `check_output_file` does.

    Args:
      figure: the key `figure`; if it is a suffix alone, nothing is checked.
      source: the file that the job reads, if any.

    Raises:
      OSError: naming the path.
    """
    if figure not in FIGURE_SUFFIXES:
        path = locate(figure)
        for each in (path, path.with_suffix(".csv")):
            check_output_file(each, "--config.figure=FILE", source)


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
            files.try_writing(next(folder for folder in above if folder.exists()))
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
