"""Files of datasets on the Hugging Face Hub: hf://datasets/ORG/NAME[@REVISION]/PATTERN.

They are downloaded to the Hub's own cache, by its own client, once for each commit.
What was downloaded is read again without the Hub. A dataset's code is never run, nor
downloaded unless the pattern names it.
"""

import dataclasses
import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import make_folder, write_json
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.interop.repository import (
    Repository,
    explained,
    find_commit,
    is_unreachable,
)
from gpt1_jax.runs.console import say
from gpt1_jax.tasks.task import Task

_REVISION = r"refs/convert/[\w.-]+|refs/pr/\d+|[\w.-]+"  # as in the Hub's file system
_COMMIT = re.compile("[0-9a-f]{40}")
ADDRESS = re.compile(rf"hf://datasets/([\w.-]+/[\w.-]+?)(?:@({_REVISION}))?(?:/(.*))?")


def fetch_files(address: str, key: str = "") -> str:
    """The files that a pattern names on the Hub, downloaded unless they are here.

    Args:
      address: hf://datasets/ORG/NAME/PATTERN or hf://datasets/ORG/NAME@REVISION/PATTERN;
        the pattern is a file, a folder or a glob, in which `**` stands for any folders.
      key: the key that holds it, for messages.

    Returns:
      FOLDER/PATTERN, with the folder of the commit in the Hub's cache. It holds every
      file that matches, and perhaps some that were downloaded for another pattern.

    Raises:
      MissingPackage: if they are Parquet, and what reads it is not installed.
      UserError: if there is no such dataset, revision or file; it is private, or has
        only code; or it cannot be reached, and not all files are here.
      OSError: if the disk lacks room.
    """
    named = f"{key}={address!r}" if key else repr(address)
    repository, pattern = _parse(address, named)
    return f"{_download(repository, [pattern], named)}/{pattern}"


def fetch_tasks(tasks: Sequence[Task]) -> tuple[dict[str, Task], dict[str, str]]:
    """Downloads the files of published tasks.

    Args:
      tasks: the tasks, whose `published.hub` names files on the Hub.

    Returns:
      By name, the tasks with the files' local paths; and why others cannot be read,
      which is also printed.

    Raises:
      MissingData: if no task can be read.
      MissingPackage: if what reads Parquet is not installed.
      UserError: if the Hub does not answer.
      OSError: if the disk lacks room.
    """
    _require_reader([".parquet"])  # as all of them are
    found, missing = {}, {}
    for task in tasks:
        try:
            found[task.name] = _fetch_task(task)
        except UserError as error:
            if error.__cause__ and is_unreachable(error.__cause__):
                raise
            missing[task.name] = str(error)
    if not found:
        raise MissingData(next(iter(missing.values()), "No task was named."))
    for task in tasks:
        if task.name in missing:
            say(f"Skipping {task.title}: {missing[task.name]}")
    return found, missing


def _fetch_task(task: Task) -> Task:
    """A task with local paths."""
    terms = task.published.terms
    if not task.published.hub:
        raise UserError(
            f"{task.title} is not on the Hub{terms and ': '}{terms}; read its files "
            f"from a folder with --config.tasks={task.name} "
            "--config.data.source=official --config.data.dir=DIR."
        )
    places: dict[Repository, list[str]] = {}
    for subsets in task.published.hub.values():
        for subset, address in subsets.items():
            repository, pattern = _parse(address, task.title)
            places.setdefault(repository, []).append(pattern)
    optional = task.published.optional
    folders = {
        repository: _download(repository, patterns, task.title, optional)
        for repository, patterns in places.items()
    }

    def local(address: str) -> str:
        repository, pattern = _parse(address, task.title)
        return f"{folders[repository]}/{pattern}"

    hub = {
        split: {subset: local(address) for subset, address in subsets.items()}
        for split, subsets in task.published.hub.items()
    }
    published = dataclasses.replace(task.published, hub=hub)
    return dataclasses.replace(task, published=published)


def _parse(address: str, named: str) -> tuple[Repository, str]:
    """The repository and the pattern of an address."""
    parts = ADDRESS.fullmatch(address)
    if not (parts and parts[3]):
        raise UserError(
            f"{named} must be hf://datasets/ORG/NAME/FILES or "
            "hf://datasets/ORG/NAME@REVISION/FILES, with a file, a folder or a pattern "
            "such as data/*.parquet or **/*.parquet."
        )
    repository = Repository(parts[1], parts[2] or "main", "dataset")
    return repository, parts[3].rstrip("/")


def _require_reader(names: Iterable[str]) -> None:
    """Raises a MissingPackage if files are Parquet, and nothing here reads it."""
    if any(name.endswith(".parquet") for name in names):
        import gpt1_jax.data.parquet  # noqa: F401


def _download(
    repository: Repository, patterns: Sequence[str], named: str, optional: object = ()
) -> str:
    """The folder of a commit in the Hub's cache, with the files that match.

    Args:
      repository: the dataset.
      patterns: globs of its files.
      named: what messages call it.
      optional: whether some of the patterns may match nothing.
    """
    import huggingface_hub

    commit, files = repository.revision, {}
    record = repository.folder / f"{commit}.json"  # the files of a commit
    if not (_COMMIT.fullmatch(commit) and record.exists()):  # it may have moved
        commit, files = find_commit(repository, named)
        record = repository.folder / f"{commit}.json"
    if files:
        make_folder(repository.folder)
        write_json(record, files)
    elif record.exists():  # the Hub cannot be reached
        files = read_json(record)
    found = {pattern: _matching(files, pattern) for pattern in patterns}
    if not (all(found.values()) or (optional and any(found.values()))):
        some = ", ".join(sorted(files)[:5]) or "none are known, and no Hub is reached"
        raise UserError(
            f"{named} names none of its {len(files):,} files: {some}. If it holds only "
            "code, which is never run, @refs/convert/parquet may have its data."
        )
    wanted = [name for names in found.values() for name in names]
    _require_reader(wanted)
    with explained(repository, named):
        folder = huggingface_hub.snapshot_download(
            repository.name,
            repo_type=repository.kind,
            revision=commit,
            allow_patterns=[glob.escape(name) for name in wanted],
        )
    if missing := [n for n in wanted if not os.path.exists(os.path.join(folder, n))]:
        raise UserError(
            f"{named} needs {missing[0]}, which was not downloaded; run the same "
            "command again where the Hub can be reached."
        )
    return folder


def _matching(files: Mapping[str, int], pattern: str) -> list[str]:
    """The files that match a glob, or lie in a folder that does."""
    parts = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern)
    regex = "".join(
        parts.get(token, token if token.startswith("[") else re.escape(token))
        for token in tokens
    )
    return [name for name in files if re.fullmatch(f"{regex}(/.*)?", name)]
