"""Models on the Hugging Face Hub, by name: hf://ORG/NAME or hf://ORG/NAME@REVISION.

Of a tokenizer that is asked for by itself, only `tokenizer.json` is downloaded.

A model is downloaded to the Hub's own cache, by its own client, which knows HF_TOKEN,
HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE. Once for each commit it is converted to a run
folder in our cache, from which every job can start without the Hub.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.config.usage import CONFIGS
from gpt1_jax.data.files import make_folder, remove, remove_partial
from gpt1_jax.data.owner import exclusive
from gpt1_jax.errors import UserError
from gpt1_jax.interop import hugging_face as folders
from gpt1_jax.interop.hugging_face_tokenizer import TOKENIZER_FILE
from gpt1_jax.interop.repository import (
    COMMIT,
    Listing,
    Repository,
    fetch_files,
    is_path,
    list_files,
)
from gpt1_jax.runs.checkpoint_files import Damaged, check_files, write_manifest
from gpt1_jax.runs.folder import CONFIG_FILE

ADDRESS = re.compile(r"hf://([\w.-]+)/([\w.-]+?)(?:@([\w./-]+))?")
_BESIDE_WEIGHTS = re.compile(  # what a model's folder holds besides
    r"config\.json|tokenizer\.json|vocab\.json|merges\.txt|"
    r"gpt1_jax_tokenizer/[\w.-]+"
)
_WEIGHTS = (  # the first kind that is there
    re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"),
)


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
    if as_run and COMMIT.fullmatch(run.name) and _is_sound(run):  # it cannot move
        return os.fspath(run)
    listing = list_files(repository, named)
    run = repository.folder / listing.commit
    if as_run and _is_sound(run):
        return os.fspath(run)
    snapshot = _download(repository, listing, named)
    if not as_run:
        return snapshot
    make_folder(repository.folder)
    with exclusive(repository.folder, print):  # one of a job's processes converts
        if not _is_sound(run):
            remove_partial(repository.folder, run.name, older_than=0)
            if run.exists():
                remove(run)  # damaged, or half made
            _convert(snapshot, run, named)
            write_manifest(epath.Path(run))
            commit = listing.commit[:12]
            print(f"{address} is commit {commit}, converted to {run}.", flush=True)
    return os.fspath(run)


def _is_sound(run: Path) -> bool:
    """Whether a model was converted to this folder, and nothing in it has changed."""
    try:
        check_files(epath.Path(run))
    except Damaged:
        return False
    return True


def fetch_tokenizer(address: str, key: str = "") -> str:
    """The `tokenizer.json` of a repository on the Hub, in the Hub's cache.

    Args:
      address: hf://ORG/NAME or hf://ORG/NAME@REVISION, a model of any architecture.
      key: the key that holds it, for messages.

    Raises:
      UserError: if there is no such repository or file, or it cannot be reached.
    """
    repository, named = _parse(address, key)
    listing = list_files(repository, named)
    if not (TOKENIZER_FILE in listing.files or listing.problem):
        raise UserError(
            f"{named} holds no {TOKENIZER_FILE}, of the `tokenizers` library. It "
            f"has {', '.join(sorted(listing.files)[:5])}."
        )
    folder = fetch_files(repository, listing, [TOKENIZER_FILE], named)
    return os.fspath(folder / TOKENIZER_FILE)


def _parse(address: str, key: str) -> tuple[Repository, str]:
    """The repository at an address, and what messages call it."""
    named = f"{key}={address!r}" if key else repr(address)
    parts = ADDRESS.fullmatch(address)
    if not (parts and is_path(parts[3] or "main")):
        raise UserError(f"{named} must be hf://ORG/NAME or hf://ORG/NAME@REVISION.")
    return Repository(f"{parts[1]}/{parts[2]}", parts[3] or "main"), named


def _download(repository: Repository, listing: Listing, named: str) -> str:
    """Downloads what a model consists of; the folder in the Hub's cache."""
    wanted = _wanted(list(listing.files))
    if folders.CONFIG_FILE in listing.files:
        only = fetch_files(repository, listing, [folders.CONFIG_FILE], named)
        check_architecture(epath.Path(only / folders.CONFIG_FILE), named)
    if not wanted:
        if listing.problem:
            raise listing.problem
        raise UserError(
            f"{named} holds no model that can be read: it has none of "
            f"{folders.WEIGHTS_FILE} and {folders.BIN_FILE}, whole or in parts. "
            f"It has {', '.join(sorted(listing.files)[:5])}."
        )
    return os.fspath(fetch_files(repository, listing, wanted, named))


def _wanted(files: Sequence[str]) -> list[str]:
    """The files to download; none if there are no weights."""
    for kind in _WEIGHTS:
        if weights := [name for name in files if kind.fullmatch(name)]:
            return weights + [name for name in files if _BESIDE_WEIGHTS.fullmatch(name)]
    return []


def check_architecture(config: epath.Path, named: str) -> None:
    """Refuses the `config.json` of another model than GPT-1."""
    kind = read_json(config).get("model_type")
    if kind != folders.MODEL_TYPE:
        raise UserError(
            f"{named} holds a model of the type {kind!r}; only GPT-1's, "
            f"{folders.MODEL_TYPE!r}, can be read."
        )


def _convert(snapshot: str, target: Path, named: str) -> None:
    """Makes a run folder in a process of its own, which needs no accelerator."""
    job = CONFIGS / "convert.py"
    command = (
        *(sys.executable, "-m", "gpt1_jax.main", f"--config={job}:run"),
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
