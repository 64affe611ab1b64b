"""Models on the Hugging Face Hub, by name: hf://ORG/NAME or hf://ORG/NAME@REVISION.

Of a tokenizer that is asked for by itself, only `tokenizer.json` is downloaded.

A model is downloaded to the Hub's own cache, by its own client, which knows HF_TOKEN,
HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE. Once for each commit it is converted to a run
folder in our cache, from which every job can start without the Hub.
"""

import contextlib
import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data.files import FULL, make_folder, write_json
from gpt1_jax.errors import UserError
from gpt1_jax.interop import hugging_face as folders
from gpt1_jax.interop.hugging_face_tokenizer import TOKENIZER_FILE
from gpt1_jax.runs.folder import CONFIG_FILE, check_room

ADDRESS = re.compile(r"hf://([\w.-]+)/([\w.-]+?)(?:@([\w./-]+))?")
_BESIDE_WEIGHTS = re.compile(  # what a model's folder holds besides
    r"config\.json|tokenizer\.json|vocab\.json|merges\.txt|"
    r"gpt1_jax_tokenizer/[\w.-]+"
)
_WEIGHTS = (  # the first kind that is there
    re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"),
)
_REVISIONS = "revisions.json"  # the commits that revisions had when they were read


class Repository(NamedTuple):
    """A model on the Hub."""

    name: str  # ORG/NAME
    revision: str  # a branch, a tag or a commit

    @property
    def folder(self) -> Path:
        """The folder of its commits, each a run folder, in our cache."""
        name = self.name.replace("/", "--")
        return Path(default_cache_dir()) / "hub" / name


def fetch(address: str, key: str = "", as_run: bool = True) -> str:
    """The folder of a model on the Hub, which is downloaded unless it is here.

    Args:
      address: hf://ORG/NAME or hf://ORG/NAME@REVISION.
      key: the key that holds it, for messages.
      as_run: whether a run folder is wanted, not one as it was published.

    Raises:
      UserError: if there is no such model, or it cannot be reached or read.
    """
    repository, named = _parse(address, key)
    run = repository.folder / repository.revision
    if as_run and (run / CONFIG_FILE).exists():  # a commit, which cannot move
        return os.fspath(run)
    commit, files = _find(repository, named)
    run = repository.folder / commit
    if as_run and (run / CONFIG_FILE).exists():
        return os.fspath(run)
    snapshot = _download(repository, commit, files, named)
    if not as_run:
        return snapshot
    _convert(snapshot, run, named)
    print(f"{address} is commit {commit[:12]}, converted to {run}.", flush=True)
    return os.fspath(run)


def fetch_tokenizer(address: str, key: str = "") -> str:
    """The `tokenizer.json` of a repository on the Hub, in the Hub's cache.

    Args:
      address: hf://ORG/NAME or hf://ORG/NAME@REVISION, a model of any architecture.
      key: the key that holds it, for messages.

    Raises:
      UserError: if there is no such repository or file, or it cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub import constants

    repository, named = _parse(address, key)
    commit, files = _find(repository, named)
    if files and TOKENIZER_FILE not in files:
        raise UserError(
            f"{named} holds no {TOKENIZER_FILE}, of the `tokenizers` library. It "
            f"has {', '.join(sorted(files)[:5])}."
        )
    make_folder(constants.HF_HUB_CACHE)
    check_room(epath.Path(constants.HF_HUB_CACHE), files.get(TOKENIZER_FILE, 0), named)
    with _explained(repository, named):
        return huggingface_hub.hf_hub_download(
            repository.name, TOKENIZER_FILE, revision=commit
        )


def _parse(address: str, key: str) -> tuple[Repository, str]:
    """The repository at an address, and what messages call it."""
    named = f"{key}={address!r}" if key else repr(address)
    parts = ADDRESS.fullmatch(address)
    if not parts:
        raise UserError(f"{named} must be hf://ORG/NAME or hf://ORG/NAME@REVISION.")
    return Repository(f"{parts[1]}/{parts[2]}", parts[3] or "main"), named


def _find(repository: Repository, named: str) -> tuple[str, dict[str, int]]:
    """The commit of a revision, and its files with their sizes in bytes.

    Without the Hub, they are the commit that the revision had before, and no files.
    """
    import huggingface_hub  # 0.3 s

    record = repository.folder / _REVISIONS
    known = read_json(record) if record.exists() else {}
    before = known.get(repository.revision)
    try:
        with _explained(repository, named):
            info = huggingface_hub.HfApi().model_info(
                repository.name, revision=repository.revision, files_metadata=True
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
            f"hf://{repository.name}@{before} is the earlier one.",
            flush=True,
        )
    if before != commit:
        make_folder(repository.folder)
        write_json(record, {**known, repository.revision: commit})
    return commit, {each.rfilename: each.size or 0 for each in info.siblings or ()}


def _download(
    repository: Repository, commit: str, files: dict[str, int], named: str
) -> str:
    """Downloads what a model consists of; the folder in the Hub's cache."""
    import huggingface_hub
    from huggingface_hub import constants

    wanted = _wanted(list(files))
    if folders.CONFIG_FILE in files:
        with _explained(repository, named):
            config = huggingface_hub.hf_hub_download(
                repository.name, folders.CONFIG_FILE, revision=commit
            )
        check_architecture(epath.Path(config), named)
    if files and not wanted:
        raise UserError(
            f"{named} holds no model that can be read: it has none of "
            f"{folders.WEIGHTS_FILE} and {folders.BIN_FILE}, whole or in parts. "
            f"It has {', '.join(sorted(files)[:5])}."
        )
    make_folder(constants.HF_HUB_CACHE)
    size = sum(files.get(name, 0) for name in wanted)
    check_room(epath.Path(constants.HF_HUB_CACHE), size, named)
    with _explained(repository, named):
        return str(
            huggingface_hub.snapshot_download(
                repository.name, revision=commit, allow_patterns=wanted or None
            )
        )


def _wanted(files: Sequence[str]) -> list[str]:
    """The files to download; none if there are no weights."""
    for kind in _WEIGHTS:
        if weights := [name for name in files if kind.fullmatch(name)]:
            return weights + [name for name in files if _BESIDE_WEIGHTS.fullmatch(name)]
    return []


def check_architecture(config: epath.Path, named: str) -> None:
    kind = read_json(config).get("model_type")
    if kind != folders.MODEL_TYPE:
        raise UserError(
            f"{named} holds a model of the type {kind!r}; only GPT-1's, "
            f"{folders.MODEL_TYPE!r}, can be read."
        )


def _convert(snapshot: str, target: Path, named: str) -> None:
    """Makes a run folder in a process of its own, which needs no accelerator."""
    command = (
        *(sys.executable, "-m", "gpt1_jax.main", "--config=configs/convert.py:run"),
        *(f"--config.init_from={snapshot}", f"--workdir={target}", "--distributed=off"),
    )
    done = subprocess.run(
        command,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        text=True,
        capture_output=True,
    )
    if done.returncode and not (target / CONFIG_FILE).exists():
        lines = [line for line in done.stderr.splitlines() if "error: " in line]
        why = lines[-1].partition("error: ")[2] if lines else done.stderr[-500:]
        raise UserError(f"{named} cannot be read: {why}")
    notes = [line for line in done.stdout.splitlines() if "left out" in line]
    if notes:
        print("\n".join(notes), flush=True)


# --- errors -------------------------------------------------------------------------


def is_unreachable(error: BaseException | None) -> bool:
    """Whether the Hub did not answer, or is ill."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status >= 500


@contextlib.contextmanager
def _explained(repository: Repository, named: str) -> Iterator[None]:
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
                f"is no model that you may read: {name} does not exist on the Hub, or "
                "it is private; then set HF_TOKEN, or log in with `hf auth login`."
            )
        elif isinstance(error, errors.RevisionNotFoundError):
            why = (
                f"does not exist: {name} has no revision {repository.revision!r}. "
                "Without @REVISION, its branch main is read."
            )
        elif is_unreachable(error):
            why = (
                f"cannot be fetched: the Hub does not answer ({first}). Once fetched, "
                "it is read without; or name a folder."
            )
        else:
            why = f"cannot be fetched: {first}"
        raise UserError(f"{named} {why}") from error
