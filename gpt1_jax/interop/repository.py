"""Repositories of models and datasets on the Hugging Face Hub: their commits and files.

All is asked by the Hub's own client, which knows HF_TOKEN, HF_HOME, HF_ENDPOINT and
HF_HUB_OFFLINE.
"""

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data.files import FULL, make_folder, write_json
from gpt1_jax.errors import UserError

_REVISIONS = "revisions.json"  # the commits that revisions had when they were read
_CONVERTED = re.compile(r".*/gpt1_jax/hub/([^/]+)--([^/]+)/([0-9a-f]{40})/?")


class Repository(NamedTuple):
    """A model or a dataset on the Hub."""

    name: str  # ORG/NAME
    revision: str  # a branch, a tag or a commit
    kind: str = "model"  # or "dataset"

    @property
    def folder(self) -> Path:
        """The folder in our cache of what is known of it."""
        name = self.address.removeprefix("hf://").replace("/", "--")
        return Path(default_cache_dir()) / "hub" / name

    @property
    def address(self) -> str:
        """Its address, without a revision."""
        return f"hf://{'datasets/' if self.kind == 'dataset' else ''}{self.name}"


def describe_folder(folder: str) -> str:
    """The name of a run folder: hf://ORG/NAME@COMMIT, if it is a model of the Hub.

    Others are named by their path.
    """
    return _CONVERTED.sub(r"hf://\1/\2@\3", folder)


def find_commit(repository: Repository, named: str) -> tuple[str, dict[str, int]]:
    """The commit of a revision, and its files with their sizes in bytes.

    Without the Hub, they are the commit that the revision had before, and no files.

    Args:
      repository: the repository.
      named: its address, as messages call it.

    Raises:
      UserError: if there is no such repository or revision, or it cannot be reached.
    """
    import huggingface_hub  # 0.3 s

    record = repository.folder / _REVISIONS
    known = read_json(record) if record.exists() else {}
    before = known.get(repository.revision)
    try:
        with explained(repository, named):
            info = huggingface_hub.HfApi().repo_info(
                repository.name,
                revision=repository.revision,
                repo_type=repository.kind,
                files_metadata=True,
            )
    except UserError as error:
        if not before or not is_unreachable(error.__cause__):
            raise
        print(
            f"The Hub cannot be reached; {named} is read as commit {before[:12]}, as "
            "before.",
            flush=True,
        )
        return before, {}
    commit = str(info.sha)
    if before and before != commit:
        print(
            f"{repository.name} has moved since it was last read here: "
            f"{repository.revision} was commit {before} and is {commit}; "
            f"{repository.address}@{before} is the earlier one.",
            flush=True,
        )
    if before != commit:
        make_folder(repository.folder)
        write_json(record, {**known, repository.revision: commit})
    return commit, {
        each.rfilename: each.size or 0 for each in getattr(info, "siblings", None) or ()
    }


# --- errors -------------------------------------------------------------------------


def is_unreachable(error: BaseException | None) -> bool:
    """Whether the Hub did not answer, or is ill."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status >= 500


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
        first = str(error).strip().partition("\n")[0]
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
        elif is_unreachable(error):
            why = (
                f"cannot be fetched: the Hub does not answer ({first}). Once fetched, "
                "it is read without; or name a "
                f"{'folder' if repository.kind == 'model' else 'local file'}."
            )
        else:
            why = f"cannot be fetched: {first}"
        raise UserError(f"{named} {why}") from error
