"""Files of datasets on the Hugging Face Hub: hf://datasets/ORG/NAME[@REVISION]/PATTERN.

A dataset's code is never run, nor downloaded unless the pattern names it.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.interop import repository as hub
from gpt1_jax.interop.repository import Commit, Repository
from gpt1_jax.runs.console import say
from gpt1_jax.tasks.task import Task

_REVISION = r"refs/convert/[\w.-]+|refs/pr/\d+|[\w.-]+"  # as in the Hub's file system
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
    """
    named = f"{key}={address!r}" if key else repr(address)
    repository, pattern = _parse(address, named)
    folder = _download(hub.find_commit(repository), {pattern: named})
    return f"{folder}/{pattern}"


def fetch_tasks(tasks: Sequence[Task]) -> tuple[dict[str, Task], dict[str, str]]:
    """Downloads the files of published tasks, which `published.hub` of each names.

    Returns:
      By name, the tasks with the files' local paths; and why others cannot be read,
      which is also printed.

    Raises:
      MissingData: if no task can be read.
      MissingPackage: if what reads Parquet is not installed.
      UserError: if the Hub does not answer.
    """
    _require_reader([".parquet"])  # as all of them are
    commits: dict[str, Commit] = {}
    found, missing = {}, {}
    for task in tasks:
        try:
            found[task.name] = _fetch_task(task, commits)
        except UserError as error:
            if error.__cause__ and hub.is_unreachable(error.__cause__):
                raise
            missing[task.name] = str(error)
    if not found:
        raise MissingData(next(iter(missing.values()), "No task was named."))
    for task in tasks:
        if task.name in missing:
            say(f"Skipping {task.title}: {missing[task.name]}")
    return found, missing


def _fetch_task(task: Task, commits: dict[str, Commit]) -> Task:
    """A task with local paths; adds the commit that the Hub was asked for."""
    published, terms = task.published, task.published.terms
    if not published.hub:
        raise UserError(
            f"{task.title} is not on the Hub{terms and ': '}{terms}; read its files "
            f"from a folder with --config.tasks={task.name} "
            "--config.data.source=official --config.data.dir=DIR."
        )
    named: dict[str, str] = {}
    optional: set[str] = set()
    places: dict[str, dict[str, str]] = {}
    for split, subsets in published.hub.items():
        for subset, address in subsets.items():
            # One repository for all.
            repository, pattern = _parse(address, f"{task.title} at {address!r}")
            named[pattern] = repository.named
            optional |= {pattern} if subset in published.optional else set()
            places.setdefault(split, {})[subset] = pattern
    place = f"{repository.name}@{repository.revision}"
    if place not in commits:
        commits[place] = hub.find_commit(repository)
    folder = _download(commits[place], named, optional)
    local = {
        split: {subset: f"{folder}/{pattern}" for subset, pattern in subsets.items()}
        for split, subsets in places.items()
    }
    published = dataclasses.replace(published, hub=local)
    return dataclasses.replace(task, published=published)


def _parse(address: str, named: str) -> tuple[Repository, str]:
    """The repository and the pattern of an address."""
    parts = ADDRESS.fullmatch(address)
    if not (parts and parts[3] and hub.is_path(parts[2] or "main")):
        raise UserError(
            f"{named} must be hf://datasets/ORG/NAME/FILES or "
            "hf://datasets/ORG/NAME@REVISION/FILES, with a file, a folder or a pattern "
            "such as data/*.parquet or **/*.parquet."
        )
    repository = Repository(parts[1], parts[2] or "main", "dataset", named)
    return repository, parts[3].rstrip("/")


def _require_reader(names: Iterable[str]) -> None:
    """Raises a MissingPackage if files are Parquet, and nothing here reads it."""
    if any(name.endswith(".parquet") for name in names):
        import gpt1_jax.data.parquet  # noqa: F401


def _download(
    commit: Commit, named: Mapping[str, str], optional: Collection[str] = ()
) -> str:
    """The folder of a commit in the Hub's cache, with the files that match.

    `named` says what messages call each pattern; those in `optional` may match nothing.
    """
    wanted: dict[str, None] = {}
    for pattern, each in named.items():
        parts = pattern.split("/")
        found = [name for name in commit.digests if _fits(name.split("/"), parts)]
        if not (found or pattern in optional):
            raise _nothing(commit, each)
        if found and not (commit.is_whole or pattern in found):
            say(
                f"WARNING: {each} may name more than the {len(found):,} files that are "
                "here: there is no list of all its files here."
            )
        wanted |= dict.fromkeys(found)
    _require_reader(wanted)
    return str(hub.fetch_files(commit, list(wanted)))


def _nothing(commit: Commit, named: str) -> UserError:
    """The error if no file matches."""
    if commit.problem:
        return UserError(
            f"{named} names none of the files that were downloaded before, and the Hub "
            "cannot be reached; run the same command once where it can."
        )
    some = ", ".join(sorted(commit.digests)[:5])
    more = ", .." * (len(commit.digests) > 5)
    return UserError(
        f"{named} names none of its {len(commit.digests):,} files: {some}{more}. If it "
        "holds only code, which is never run, @refs/convert/parquet may have its data."
    )


def _fits(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a file's path matches a glob, or lies in a folder that does."""
    if not patterns:
        return True
    first, *others = patterns
    if first == "**":
        return any(_fits(parts[start:], others) for start in range(len(parts)))
    matches = bool(parts) and fnmatch.fnmatchcase(parts[0], first)
    return matches and _fits(parts[1:], others)
