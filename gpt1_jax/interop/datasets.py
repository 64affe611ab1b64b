"""Files of datasets on the Hugging Face Hub: hf://datasets/ORG/NAME[@REVISION]/PATTERN.

They are downloaded to the Hub's own cache, by its own client, once for each commit.
What was downloaded is read again without the Hub. A dataset's code is never run, nor
downloaded unless the pattern names it.
"""

import dataclasses
import fnmatch
import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from etils import epath

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
from gpt1_jax.runs.folder import check_room, megabytes
from gpt1_jax.tasks.task import Task

_REVISION = r"refs/convert/[\w.-]+|refs/pr/\d+|[\w.-]+"  # as in the Hub's file system
ADDRESS = re.compile(rf"hf://datasets/([\w.-]+/[\w.-]+?)(?:@({_REVISION}))?(?:/(.*))?")
_COMMIT = re.compile("[0-9a-f]{40}")
_CONVERTED = "refs/convert/parquet"  # the branch on which the Hub makes Parquet


class _Commit(NamedTuple):
    """A commit of a dataset."""

    repository: Repository
    name: str  # the commit
    files: Mapping[str, int]  # sizes in bytes, by path; empty if the Hub never said
    is_reached: bool = True  # whether the Hub has just answered


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
    _require_reader([pattern])
    folder = _download(_find(repository, named), {pattern: named})
    return f"{folder}/{pattern}"


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
    commits: dict[Repository, _Commit] = {}
    found, missing = {}, {}
    for task in tasks:
        try:
            found[task.name] = _fetch_task(task, commits)
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


def _fetch_task(task: Task, commits: dict[Repository, _Commit]) -> Task:
    """A task with local paths; adds the commits that the Hub was asked for."""
    terms = task.published.terms
    if not task.published.hub:
        raise UserError(
            f"{task.title} is not on the Hub{terms and ': '}{terms}; read its files "
            f"from a folder with --config.tasks={task.name} "
            "--config.data.source=official --config.data.dir=DIR."
        )
    named: dict[Repository, dict[str, str]] = {}
    places: dict[tuple[str, str], tuple[Repository, str]] = {}
    for split, subsets in task.published.hub.items():
        for subset, address in subsets.items():
            name = f"{task.title} at {address!r}"
            repository, pattern = _parse(address, name)
            if repository not in commits:
                commits[repository] = _find(repository, name)
            is_there = bool(_matching(commits[repository], pattern))
            if is_there or subset not in task.published.optional:
                named.setdefault(repository, {})[pattern] = name
                places[split, subset] = repository, pattern
    folders = {each: _download(commits[each], names) for each, names in named.items()}
    local: dict[str, dict[str, str]] = {}
    for (split, subset), (repository, pattern) in places.items():
        local.setdefault(split, {})[subset] = f"{folders[repository]}/{pattern}"
    published = dataclasses.replace(task.published, hub=local)
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


def _find(repository: Repository, named: str) -> _Commit:
    """The present commit and its files; without the Hub, those known from before."""
    record = repository.folder / f"{repository.revision}.json"
    if _COMMIT.fullmatch(repository.revision) and record.exists():  # it cannot move
        return _Commit(repository, repository.revision, read_json(record))
    commit, files = find_commit(repository, named)
    record = repository.folder / f"{commit}.json"
    if not files:
        files = read_json(record) if record.exists() else {}
        return _Commit(repository, commit, files, is_reached=False)
    make_folder(repository.folder)
    write_json(record, files)
    return _Commit(repository, commit, files)


def _require_reader(names: Iterable[str]) -> None:
    """Raises a MissingPackage if files are Parquet, and nothing here reads it."""
    if any(name.endswith(".parquet") for name in names):
        import gpt1_jax.data.parquet  # noqa: F401


def _download(commit: _Commit, named: Mapping[str, str]) -> str:
    """Downloads the files that match, unless they are here.

    Args:
      commit: the commit.
      named: what messages call each pattern, by pattern.

    Returns:
      The commit's folder.
    """
    import huggingface_hub
    from huggingface_hub import constants

    repository, all_named = commit.repository, next(iter(named.values()))
    wanted: dict[str, None] = {}
    for pattern, each in named.items():
        found = _matching(commit, pattern)
        if not found:
            raise UserError(f"{each} {_why_nothing(commit, each)}")
        wanted |= dict.fromkeys(found)
    _require_reader(wanted)
    missing = [name for name in wanted if not _is_here(commit, name)]
    if missing and not commit.is_reached:
        raise UserError(
            f"{all_named} needs {missing[0]}, which was not downloaded before, and the "
            "Hub cannot be reached; run the same command once where it can."
        )
    if missing:
        make_folder(constants.HF_HUB_CACHE)
        size = sum(commit.files[name] for name in missing)
        check_room(epath.Path(constants.HF_HUB_CACHE), size, all_named)
        with explained(repository, all_named):
            huggingface_hub.snapshot_download(
                repository.name,
                repo_type=repository.kind,
                revision=commit.name,
                allow_patterns=[glob.escape(name) for name in missing],
            )
        if lost := [name for name in missing if not _is_here(commit, name)]:
            raise UserError(
                f"{all_named}: the Hub lists {lost[0]}, but did not send it; run the "
                "same command again."
            )
        print(
            f"Downloaded {len(missing):,} file{'s' * (len(missing) > 1)} "
            f"({megabytes(size)}) of {repository.address}, commit {commit.name[:12]}.",
            flush=True,
        )
    first = next(iter(wanted))
    return _is_here(commit, first).removesuffix(first).rstrip("/")


def _matching(commit: _Commit, pattern: str) -> list[str]:
    """The files of a commit that match."""
    return [name for name in commit.files if _fits(name, pattern)]


def _fits(name: str, pattern: str) -> bool:
    """Whether a file's path matches a glob, or lies in a folder that does."""

    def fits(parts: list[str], patterns: list[str]) -> bool:
        if not patterns:
            return True
        first, *others = patterns
        if first == "**":
            return any(fits(parts[start:], others) for start in range(len(parts)))
        return (
            bool(parts)
            and fnmatch.fnmatchcase(parts[0], first)
            and fits(parts[1:], others)
        )

    return fits(name.split("/"), pattern.split("/"))


def _is_here(commit: _Commit, name: str) -> str:
    """The path of a file in the Hub's cache; "" if it was not downloaded."""
    import huggingface_hub

    repository = commit.repository
    path = huggingface_hub.try_to_load_from_cache(
        repository.name, name, revision=commit.name, repo_type=repository.kind
    )
    return path if isinstance(path, str) and Path(path).exists() else ""


def _why_nothing(commit: _Commit, named: str) -> str:
    """Why no file matches, and the way out."""
    repository, files = commit.repository, sorted(commit.files)
    if not files:
        return (
            "was never downloaded here, and the Hub cannot be reached; run the same "
            "command once where it can."
        )
    has = f"{', '.join(files[:5])}{', ..' * (len(files) > 5)}"
    has_code = f"{repository.name.partition('/')[2]}.py" in files
    if not has_code or any(name.endswith(".parquet") for name in files):
        return f"names none of its {len(files):,} files: {has}."
    found = _converted_files(repository, named)
    if not found:
        return (
            f"holds only code that makes the data ({has}), which is never run, and has "
            f"no branch {_CONVERTED}; make the data with it, and name local files."
        )
    return (
        f"holds only code that makes the data ({has}), which is never run; the Hub has "
        f"made Parquet of it: {repository.address}@{_CONVERTED}/{found[0]}, in place "
        f"of {named}, is one of {len(found):,} files."
    )


def _converted_files(repository: Repository, named: str) -> list[str]:
    """The files of Parquet that the Hub itself has made of a dataset."""
    from huggingface_hub import HfApi, errors

    branch = repository._replace(revision=_CONVERTED)
    try:
        with explained(branch, named):
            info = HfApi().repo_info(
                branch.name, revision=branch.revision, repo_type=branch.kind
            )
    except UserError as error:
        missing = isinstance(error.__cause__, errors.RevisionNotFoundError)
        if missing or is_unreachable(error.__cause__):
            return []
        raise
    names = [each.rfilename for each in getattr(info, "siblings", None) or ()]
    return sorted(name for name in names if name.endswith(".parquet"))
