"""Files of datasets on the Hugging Face Hub: hf://datasets/ORG/NAME[@REVISION]/PATTERN.

They are downloaded to the Hub's own cache, by its own client, once for each commit.
What was downloaded is read again without the Hub. A dataset's code is never run, nor
downloaded unless the pattern names it.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.interop import repository as hub
from gpt1_jax.interop.repository import Listing, Repository
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
      OSError: if the disk lacks room.
    """
    named = f"{key}={address!r}" if key else repr(address)
    repository, pattern = _parse(address, named)
    listing = hub.list_files(repository, named)
    folder = _download(repository, listing, {pattern: named})
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
    listings: dict[Repository, Listing] = {}
    found, missing = {}, {}
    for task in tasks:
        try:
            found[task.name] = _fetch_task(task, listings)
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


def _fetch_task(task: Task, listings: dict[Repository, Listing]) -> Task:
    """A task with local paths; adds the listings that the Hub was asked for."""
    terms = task.published.terms
    if not task.published.hub:
        raise UserError(
            f"{task.title} is not on the Hub{terms and ': '}{terms}; read its files "
            f"from a folder with --config.tasks={task.name} "
            "--config.data.source=official --config.data.dir=DIR."
        )
    named: dict[str, str] = {}
    patterns: dict[str, dict[str, str]] = {}
    optional = []
    for split, subsets in task.published.hub.items():
        for subset, address in subsets.items():
            name = f"{task.title} at {address!r}"
            repository, pattern = _parse(address, name)  # the same for all
            named[pattern] = name
            patterns.setdefault(split, {})[subset] = pattern
            if subset in task.published.optional:
                optional.append(pattern)
    if repository not in listings:
        listings[repository] = hub.list_files(repository, next(iter(named.values())))
    folder = _download(repository, listings[repository], named, optional)
    paths = {
        split: {subset: f"{folder}/{pattern}" for subset, pattern in subsets.items()}
        for split, subsets in patterns.items()
    }
    published = dataclasses.replace(task.published, hub=paths)
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
    repository = Repository(parts[1], parts[2] or "main", "dataset")
    return repository, parts[3].rstrip("/")


def _require_reader(names: Iterable[str]) -> None:
    """Raises a MissingPackage if files are Parquet, and nothing here reads it."""
    if any(name.endswith(".parquet") for name in names):
        import gpt1_jax.data.parquet  # noqa: F401


def _download(
    repository: Repository,
    listing: Listing,
    named: Mapping[str, str],
    optional: Collection[str] = (),
) -> str:
    """The folder of a commit in the Hub's cache, with the files that match.

    `named` says what messages call each pattern; those in `optional` may match nothing.
    """
    wanted: dict[str, None] = {}
    for pattern, each in named.items():
        found = [name for name in listing.files if _fits(name, pattern)]
        if not (found or pattern in optional):
            raise _nothing(listing, each)
        if found and not (listing.is_whole or pattern in found):
            print(
                f"WARNING: {each} may name more than the {len(found):,} files that are "
                "here: the list of its files is not.",
                flush=True,
            )
        wanted |= dict.fromkeys(found)
    _require_reader(wanted)
    first = next(iter(named.values()))
    return str(hub.fetch_files(repository, listing, list(wanted), first))


def _nothing(listing: Listing, named: str) -> UserError:
    """The error if no file matches."""
    if listing.problem:
        return UserError(
            f"{named} names none of the files that were downloaded before, and the Hub "
            "cannot be reached; run the same command once where it can."
        )
    some = ", ".join(sorted(listing.files)[:5])
    more = ", .." * (len(listing.files) > 5)
    return UserError(
        f"{named} names none of its {len(listing.files):,} files: {some}{more}. If it "
        "holds only code, which is never run, @refs/convert/parquet may have its data."
    )


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
