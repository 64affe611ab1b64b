"""Models and datasets on the Hugging Face Hub, and the files of them that are here.

All is asked and kept by the Hub's own client, which knows HF_TOKEN, HF_HOME,
HF_ENDPOINT and HF_HUB_OFFLINE. What it fetched is compared with the digests that the
Hub lists. If the Hub does not answer or refuses, the client's cache is read.
"""

import concurrent.futures
import contextlib
import errno
import glob
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data.files import files_below, make_folder, sha256, write_whole
from gpt1_jax.errors import FULL, UserError
from gpt1_jax.runs.folder import check_room, megabytes

COMMIT = re.compile("[0-9a-f]{40}")
_CONVERTED = re.compile(r".*/gpt1_jax/hub/([^/]+)--([^/]+)/([0-9a-f]{40})/?")
_SHA256, _SHA1 = 64, 40  # hexadecimal digits
# A path with an empty part, `.` or `..`, a control character or a backslash.
_NO_PATH = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\\\ud800-\udfff]")


class Repository(NamedTuple):
    """A model or a dataset on the Hub."""

    name: str  # ORG/NAME
    revision: str  # a branch, a tag or a commit
    kind: str = "model"  # or "dataset"

    @property
    def folder(self) -> Path:
        """The folder in our cache of what is made of a model."""
        return Path(default_cache_dir()) / "hub" / self.name.replace("/", "--")

    @property
    def address(self) -> str:
        """Its address, without a revision."""
        return f"hf://{'datasets/' if self.kind == 'dataset' else ''}{self.name}"


class Listed(NamedTuple):
    """A file as the Hub lists it."""

    size: int = 0  # bytes
    digest: str = ""  # SHA-256, or of a small file git's SHA-1; empty if unknown


class Listing(NamedTuple):
    """The files of a commit."""

    commit: str
    files: Mapping[str, Listed]  # by path
    problem: UserError | None = None  # why they are those of the client's cache
    is_whole: bool = True  # otherwise the Hub may have more


def is_path(name: object) -> bool:
    """Whether a value is a path that stays within its folder on every system."""
    return isinstance(name, str) and not _NO_PATH.search(name)


def describe_folder(folder: str) -> str:
    """The name of a run folder: hf://ORG/NAME@COMMIT, if it is a model of the Hub.

    Others are named by their path.
    """
    return _CONVERTED.sub(r"hf://\1/\2@\3", folder)


# --- what there is ------------------------------------------------------------------


def list_files(repository: Repository, named: str) -> Listing:
    """The commit of a revision, and its files.

    If the Hub cannot be asked, a line says why, and they are those that its client has
    in its cache.

    Args:
      repository: the repository.
      named: its address, as messages call it.

    Raises:
      UserError: if there is no such repository or revision, or it cannot be asked for,
        and nothing of it is in the cache.
    """
    import huggingface_hub  # 0.3 s

    try:
        with explained(repository, named):
            info = huggingface_hub.HfApi().repo_info(
                repository.name,
                revision=repository.revision,
                repo_type=repository.kind,
                files_metadata=True,
            )
            listing = _checked(repository, info)
    except UserError as error:
        kept = _kept_folder(repository)
        if kept is None:
            raise
        print(
            f"The Hub cannot be asked ({_first_line(error.__cause__ or error)}); "
            f"{repository.name} is read as commit {kept.name[:12]}, from the cache.",
            flush=True,
        )
        names, is_whole = _kept_names(repository, kept)
        files = {name: Listed() for name in sorted(names)}
        return Listing(kept.name, files, error, is_whole)
    before = _kept_folder(repository)
    if before and before.name != listing.commit:
        print(
            f"{repository.name} has moved since it was last read here: "
            f"{repository.revision} was commit {before.name} and is {listing.commit}; "
            f"{repository.address}@{before.name} is the earlier one.",
            flush=True,
        )
    return listing


def _checked(repository: Repository, info: Any) -> Listing:
    """What the Hub answered, if it can be true: a mirror may answer anything."""
    commit = info.sha
    if not (isinstance(commit, str) and COMMIT.fullmatch(commit)):
        raise _OddAnswer(f"the commit {commit!r:.60}")
    if COMMIT.fullmatch(repository.revision) and commit != repository.revision:
        raise _OddAnswer(f"another commit, {commit}")
    files = {}
    for each in info.siblings or ():
        name, large = each.rfilename, each.lfs
        if not is_path(name):
            raise _OddAnswer(f"a file with the name {name!r:.60}")
        digest = large.sha256 if large else each.blob_id
        files[name] = Listed(each.size or 0, (digest or "").lower())
    return Listing(commit, files)


class _OddAnswer(Exception):
    """The Hub names something that cannot be."""


def _kept_folder(repository: Repository) -> Path | None:
    """Where the client keeps files of the commit that a revision had when last read."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            repository.name,
            revision=repository.revision,
            repo_type=repository.kind,
            local_files_only=True,
            allow_patterns=[],  # whichever files there are
        )
    except (OSError, ValueError):  # it keeps nothing, or no such name can be kept
        return None
    return Path(folder) if COMMIT.fullmatch(Path(folder).name) else None


def _kept_names(repository: Repository, folder: Path) -> tuple[set[str], bool]:
    """The known files of a commit without the Hub, and whether these are all.

    Newer clients keep the list of all; otherwise those that were fetched are known.
    """
    import huggingface_hub

    tree = []
    if hasattr(huggingface_hub, "get_cached_repo_tree"):
        with contextlib.suppress(Exception):  # it keeps none, or a damaged one
            tree = huggingface_hub.get_cached_repo_tree(
                repository.name, repo_type=repository.kind, revision=folder.name
            )
    here = (path for path in files_below(folder) if path.exists())
    names = {path.relative_to(folder).as_posix() for path in here}
    names |= {each.path for each in tree}
    return set(filter(is_path, names)), bool(tree)


# --- fetching -----------------------------------------------------------------------


def fetch_files(
    repository: Repository, listing: Listing, wanted: Sequence[str], named: str
) -> Path:
    """The folder of a commit in the client's cache, with files as the Hub lists them.

    A file that is damaged there is fetched again.

    Args:
      repository: the repository.
      listing: its files.
      wanted: the paths of those to fetch.
      named: its address, as messages call it.

    Raises:
      UserError: if a file cannot be fetched, or what arrives is another.
      OSError: if the disk lacks room.
    """
    for _ in range(2):
        folder = _kept_folder(repository._replace(revision=listing.commit))
        missing = [n for n in wanted if not (folder and (folder / n).is_file())]
        if missing or not folder:
            folder = _download(repository, listing, missing, named)
        damaged = _find_damaged(folder, listing, wanted)
        if not damaged:
            _note_commit(repository, folder)
            return folder
        if listing.problem:
            raise UserError(
                f"{named}: {folder / damaged[0]} is damaged; run the same command "
                "where the Hub can be reached, and it is fetched again."
            ) from listing.problem
        for name in damaged:
            _remove(folder / name)
    raise UserError(
        f"{named}: {damaged[0]} did not arrive as the Hub lists it, by its checksum; "
        "run the same command again."
    )


def _download(
    repository: Repository, listing: Listing, missing: Sequence[str], named: str
) -> Path:
    """Has the client fetch files; the folder of their commit."""
    import huggingface_hub
    from huggingface_hub import constants

    if listing.problem:
        raise UserError(
            f"{listing.problem} Of its files, {missing[0]} was not downloaded before."
        ) from listing.problem.__cause__
    make_folder(constants.HF_HUB_CACHE)
    size = sum(listing.files[name].size for name in missing)
    check_room(epath.Path(constants.HF_HUB_CACHE), size, named)
    with explained(repository, named):
        folder = huggingface_hub.snapshot_download(
            repository.name,
            revision=listing.commit,
            repo_type=repository.kind,
            allow_patterns=[glob.escape(name) for name in missing],
        )
    print(
        f"Downloaded {len(missing):,} file{'s' * (len(missing) > 1)} "
        f"({megabytes(size)}) of {repository.address}, commit {listing.commit[:12]}.",
        flush=True,
    )
    return Path(folder)


def _note_commit(repository: Repository, folder: Path) -> None:
    """Notes the commit of a branch where the client does, for lack of a Hub later."""
    note = folder.parents[1] / "refs" / repository.revision
    with contextlib.suppress(OSError):  # the cache may be another user's
        if folder.name != repository.revision and _kept_folder(repository) != folder:
            write_whole(note, folder.name)


def _find_damaged(folder: Path, listing: Listing, names: Sequence[str]) -> list[str]:
    """The files that are lacking, or not those that the Hub lists."""
    from huggingface_hub.utils.sha import git_hash

    def is_damaged(name: str) -> bool:
        path, digest = folder / name, listing.files[name].digest
        if not path.is_file():  # old clients give up without a word
            return True
        if not digest and path.is_symlink():  # a large file's blob has its SHA-256
            blob = path.readlink().name
            digest = blob if len(blob) == _SHA256 else ""
        if len(digest) == _SHA256:
            return sha256(path) != digest
        return len(digest) == _SHA1 and git_hash(path.read_bytes()) != digest

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(itertools.compress(names, pool.map(is_damaged, names)))


def _remove(path: Path) -> None:
    """Removes a file from the client's cache, and the blob that it links to."""
    blob = path.parent / path.readlink() if path.is_symlink() else path
    path.unlink(missing_ok=True)
    if blob.parent.name == "blobs":  # otherwise not the client's
        blob.unlink(missing_ok=True)


# --- errors -------------------------------------------------------------------------


def is_unreachable(error: BaseException | None) -> bool:
    """Whether the Hub did not answer, is ill, or asks to come back later."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status == 429 or status >= 500


@contextlib.contextmanager
def explained(repository: Repository, named: str) -> Iterator[None]:
    """Raises errors of the Hub's client as one line with a way out."""
    from huggingface_hub import errors

    name = repository.name
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (*FULL, errno.EACCES):
            raise  # of this machine
        first = _first_line(error)
        if isinstance(error, errors.GatedRepoError):
            why = (
                "is for those who accept its terms: do so on its page, then set "
                "HF_TOKEN."
            )
        elif isinstance(error, errors.RepositoryNotFoundError):
            why = (
                f"is no {repository.kind} that you may read: {name} does not exist on "
                "the Hub, or it is private; then set HF_TOKEN, or log in with `hf auth "
                "login`."
            )
        elif isinstance(error, errors.RevisionNotFoundError):
            why = (
                f"does not exist: {name} has no revision {repository.revision!r}. "
                "Without @REVISION, its branch main is read."
            )
        elif isinstance(error, errors.HFValidationError):
            why = f"is no name of the Hub ({first})."
        elif isinstance(error, _OddAnswer):
            why = (
                f"cannot be fetched: what answers for the Hub names {first}. Is "
                "HF_ENDPOINT set to a mirror that is out of order?"
            )
        elif is_unreachable(error):
            why = (
                f"cannot be fetched: the Hub does not answer ({first}). Once fetched, "
                "it is read without; or name a "
                f"{'folder' if repository.kind == 'model' else 'local file'}."
            )
        else:
            why = f"cannot be fetched: {first}"
        raise UserError(f"{named} {why}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
