"""The run folder: its path, its names, its first files, and the room on its disk."""

import os
import shutil
from pathlib import Path

from etils import epath

from gpt1_jax.config.saved import saved_values
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.data import files
from gpt1_jax.data.files import is_remote, write_json
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import is_main_process

CONFIG_FILE = "config.json"
RESULTS_FILE = "results.json"  # written last, when all is finished
SCORES_FOLDER = "scores"  # scores of a study that has not finished
# All that jobs write at the top of a run folder; other names are the user's.
NAMES = {
    *(CONFIG_FILE, "tokenizer", "checkpoints", "damaged_checkpoints", "documents.json"),
    *("metrics.jsonl", "sessions.json", "tensorboard", "wandb", "profile", "plots"),
    *(RESULTS_FILE, "results.md", "all_results.json", "glue", "glue.zip"),
    *(SCORES_FOLDER, "predictions", "results"),
}

_ROOM = 1 << 20  # bytes


def locate_run(workdir: str) -> epath.Path:
    """The run folder as an absolute path, as orbax wants it; gs:// stays as it is.

    Raises:
      ValueError: as `files.locate`.
    """
    path = files.locate(workdir)
    return path if is_remote(path) else epath.Path(os.path.abspath(path))


def refuse_dead_ends(folder: epath.Path) -> None:
    """Refuses a run folder with a part that cannot be read or written.

    That is a link that leads nowhere, or to itself, and a device or a pipe, which may
    never end. Other links are as good as what they lead to.

    Raises:
      UserError: naming it.
    """
    if is_remote(folder):
        return
    for path in (Path(folder / name) for name in sorted(NAMES)):
        if path.is_symlink() and not path.exists():
            raise UserError(
                f"{path} is a link to {path.readlink()}, and nothing is there; mount "
                "its disk, or remove the link."
            )
        if path.exists() and not (path.is_dir() or path.is_file()):
            raise UserError(
                f"{path} is a device or a pipe, not a file of a run; remove it."
            )


def has_begun(folder: epath.Path) -> bool:
    """Whether the folder holds checkpoints, scores or results."""
    for name in ("checkpoints", SCORES_FOLDER):
        held = (folder / name).iterdir() if (folder / name).exists() else ()
        # A disk that is mounted there has a folder lost+found, and macOS .DS_Store.
        if any(path.name != "lost+found" and path.name[0] != "." for path in held):
            return True
    return (folder / RESULTS_FILE).exists()


def write_config(folder: epath.Path, config: JobConfig) -> None:
    """Writes the resolved configuration, which states the folder's format."""
    write_json(folder / CONFIG_FILE, saved_values(config))


def write_config_and_tokenizer(
    folder: epath.Path, config: JobConfig, tokenizer: Tokenizer
) -> None:
    """Writes the resolved configuration, and the tokenizer unless the run has one."""
    if not is_main_process():
        return
    check_room(folder, _ROOM, "the configuration with the tokenizer")
    write_config(folder, config)
    if own_tokenizer(folder) is None:
        if (folder / "tokenizer").exists():  # left by a run that never began
            files.remove(folder / "tokenizer")
        tokenizer.save(folder / "tokenizer")


def own_tokenizer(folder: epath.Path) -> epath.Path | None:
    """The folder of a run's own tokenizer; None until the run has begun."""
    tokenizer = folder / "tokenizer"
    return tokenizer if has_begun(folder) and tokenizer.exists() else None


def check_room(folder: epath.Path, num_bytes: int, what: str) -> None:
    """Checks that a disk has room for so many bytes; a bucket is assumed to have it.

    Raises:
      OSError: naming what is about to be written.
    """
    if not is_remote(folder) and shutil.disk_usage(folder).free < num_bytes:
        raise OSError(no_room(folder, what, megabytes(num_bytes)))


def megabytes(num_bytes: int) -> str:
    """A size, for messages."""
    return f"{num_bytes / 1e6:,.1f} MB"


def no_room(folder: epath.PathLike, what: str, needs: str) -> str:
    """The message for a full disk."""
    where = files.whole_path(folder)
    return (
        f"The disk of {where} is full: {what} needs {needs}. What is saved there is "
        "intact; make room and run the same command again to resume."
    )
