"""Models and datasets on the Hugging Face Hub, and the files of them that are here.

The Hub's own client fetches and keeps them; it knows HF_TOKEN, HF_HOME, HF_ENDPOINT and
HF_HUB_OFFLINE. What it fetched is compared with the digests that the Hub lists. If the
Hub does not answer or refuses, the client's cache is read.
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

from gpt1_jax.data.files import files_below, sha256, write_whole
from gpt1_jax.errors import FULL, UserError
from gpt1_jax.runs.console import say

COMMIT = re.compile("[0-9a-f]{40}")
_CONVERTED = re.compile(r".*/gpt1_jax/hub/([^/]+)--([^/]+)/([0-9a-f]{40})/?")
_SHA256, _SHA1 = 64, 40  # hexadecimal digits
# A path with an empty part, `.` or `..`, a control character or a backslash.
_NO_PATH = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\\\ud800-\udfff]")


class Repository(NamedTuple):
    """A model or a dataset on the Hub."""

    name: str  # ORG/NAME
    revision: str  # a branch, a tag or a commit
    kind: str  # "model" or "dataset"
    named: str  # its address, as messages call it


class Commit(NamedTuple):
    """A commit of a repository, and its files."""

    repository: Repository
    name: str
    # By path: the SHA-256 of a file, of a small one git's SHA-1; empty if unknown.
    digests: Mapping[str, str]
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


def find_commit(repository: Repository) -> Commit:
    """The commit of a revision.

    If the Hub cannot be asked, a line says why, and the commit in the client's cache is
    returned.

    Raises:
      UserError: if there is no such repository or revision, or it cannot be asked for,
        and nothing of it is in the cache.
    """
    import huggingface_hub  # 0.3 s

    try:
        with explained(repository):
            info = huggingface_hub.HfApi().repo_info(
                repository.name,
                revision=repository.revision,
                repo_type=repository.kind,
                files_metadata=True,
            )
            commit = _checked(repository, info)
    except UserError as error:
        kept = _kept_folder(repository, repository.revision)
        if kept is None:
            raise
        say(
            f"The Hub cannot be asked ({describe(error.__cause__ or error)}); "
            f"{repository.name} is read as commit {kept.name[:12]}, from the cache."
        )
        names, is_whole = _kept_names(repository, kept)
        unknown = dict.fromkeys(sorted(names), "")
        return Commit(repository, kept.name, unknown, error, is_whole)
    before = _kept_folder(repository, repository.revision)
    if before and before.name != commit.name:
        say(
            f"{repository.name} has moved since it was last read here: "
            f"{repository.revision} was commit {before.name} and is {commit.name}."
        )
    return commit


class _OddAnswer(Exception):
    """The Hub names something that cannot be."""


def _checked(repository: Repository, info: Any) -> Commit:
    """The Hub's answer, refused if it cannot be true: a mirror may answer anything."""
    commit = info.sha
    if not (isinstance(commit, str) and COMMIT.fullmatch(commit)):
        raise _OddAnswer(f"the commit {commit!r:.60}")
    if COMMIT.fullmatch(repository.revision) and commit != repository.revision:
        raise _OddAnswer(f"another commit, {commit}")
    digests = {}
    for each in info.siblings or ():
        if not is_path(each.rfilename):
            raise _OddAnswer(f"a file with the name {each.rfilename!r:.60}")
        digest = each.lfs.sha256 if each.lfs else each.blob_id
        digests[each.rfilename] = (digest or "").lower()
    return Commit(repository, commit, digests)


def _kept_folder(repository: Repository, revision: str) -> Path | None:
    """Where the client keeps files of the commit that a revision had when last read."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            repository.name,
            revision=revision,
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
    with contextlib.suppress(Exception):  # an old client; or none is kept, or damaged
        tree = huggingface_hub.get_cached_repo_tree(
            repository.name, repo_type=repository.kind, revision=folder.name
        )
    here = (path for path in files_below(folder) if path.exists())
    names = {path.relative_to(folder).as_posix() for path in here}
    names |= {each.path for each in tree}
    return set(filter(is_path, names)), bool(tree)


# --- fetching -----------------------------------------------------------------------


def fetch_files(commit: Commit, names: Sequence[str]) -> Path:
    """The folder of a commit in the client's cache, with files as the Hub lists them.

    A file that is damaged there is fetched again.

    Raises:
      UserError: if a file cannot be fetched, or what arrives is another.
    """
    import huggingface_hub

    repository, problem = commit.repository, commit.problem
    folder = _kept_folder(repository, commit.name)
    for _ in range(2):
        missing = [n for n in names if not (folder and (folder / n).is_file())]
        if missing and problem:
            raise UserError(
                f"{problem} Of its files, {missing[0]} was not downloaded before."
            ) from problem.__cause__
        if missing or not folder:
            with explained(repository):
                folder = Path(
                    huggingface_hub.snapshot_download(
                        repository.name,
                        revision=commit.name,
                        repo_type=repository.kind,
                        allow_patterns=[glob.escape(name) for name in missing],
                    )
                )
        damaged = _find_damaged(commit, folder, names)
        if not damaged:
            _note_commit(repository, folder)
            return folder
        if problem:
            raise UserError(
                f"{repository.named}: {folder / damaged[0]} is damaged; run the same "
                "command where the Hub can be reached, and it is fetched again."
            ) from problem
        for name in damaged:
            _remove(folder / name)
    raise UserError(
        f"{repository.named}: {damaged[0]} did not arrive as the Hub lists it, by its "
        "checksum; run the same command again."
    )


def _note_commit(repository: Repository, folder: Path) -> None:
    """Notes the commit of a branch where the client does, for lack of a Hub later."""
    revision = repository.revision
    with contextlib.suppress(OSError):  # the cache may be another user's
        if folder.name != revision and _kept_folder(repository, revision) != folder:
            write_whole(folder.parents[1] / "refs" / revision, folder.name)


def _find_damaged(commit: Commit, folder: Path, names: Sequence[str]) -> list[str]:
    """The files that are lacking, or not those that the Hub lists."""
    from huggingface_hub.utils.sha import git_hash

    def is_damaged(name: str) -> bool:
        path, digest = folder / name, commit.digests[name]
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
    """Whether the Hub did not answer, failed, or asks to be called again later."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status == 429 or status >= 500


def describe(error: BaseException) -> str:
    """An error's first line, and what the Hub says of its cause."""
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    cause = getattr(error, "server_message", None) or ""
    whole = first if cause in first else f"{first.rstrip(':')}: {cause}"
    return " ".join(whole.split())


@contextlib.contextmanager
def explained(repository: Repository) -> Iterator[None]:
    """Raises errors of the Hub's client as one line with a way out."""
    from huggingface_hub import errors

    name, kind = repository.name, repository.kind
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (*FULL, errno.EACCES):
            raise  # of this machine
        said = describe(error)
        known: Mapping[type[Exception], str] = {
            errors.GatedRepoError: "is for those who accept its terms: do so on its "
            "page, then set HF_TOKEN.",
            errors.RepositoryNotFoundError: f"is no {kind} that you may read: {name} "
            "does not exist on the Hub, or it is private; then set HF_TOKEN, or log in "
            "with `hf auth login`.",
            errors.RevisionNotFoundError: f"does not exist: {name} has no revision "
            f"{repository.revision!r}. Without @REVISION, its branch main is read.",
            errors.HFValidationError: f"is no name of the Hub ({said}).",
            _OddAnswer: "cannot be fetched: what answers for the Hub names "
            f"{error}. Is HF_ENDPOINT set to a mirror that is out of order?",
        }
        why = f"cannot be fetched: {said}"
        if is_unreachable(error):
            instead = "folder" if kind == "model" else "local file"
            why = (
                f"cannot be fetched: the Hub does not answer ({said}). Once fetched, "
                f"it is read without; or name a {instead}."
            )
        found = (text for each, text in known.items() if isinstance(error, each))
        raise UserError(f"{repository.named} {next(found, why)}") from error
