"""Models on the Hugging Face Hub, by name: hf://ORG/NAME or hf://ORG/NAME@REVISION.

A model is converted, once for each commit, to a run folder in our cache, from which
every job can start without the Hub. For a tokenizer without a model, only
`tokenizer.json` is downloaded.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

from etils import epath

from gpt1_jax import config as config_lib
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data.files import make_folder, remove, remove_partial
from gpt1_jax.data.owner import exclusive
from gpt1_jax.errors import UserError
from gpt1_jax.interop import foreign
from gpt1_jax.interop import hugging_face as folders
from gpt1_jax.interop.hugging_face_tokenizer import TOKENIZER_FILE
from gpt1_jax.interop.repository import (
    COMMIT,
    Commit,
    Repository,
    fetch_files,
    find_commit,
    is_path,
)
from gpt1_jax.runs.checkpoint_files import Damaged, check_files, write_manifest
from gpt1_jax.runs.console import say

ADDRESS = re.compile(r"hf://([\w.-]+)/([\w.-]+?)(?:@([\w./-]+))?")
_BESIDE_WEIGHTS = (  # what a model's folder holds besides, as patterns
    *(folders.CONFIG_FILE, TOKENIZER_FILE, *foreign.HUGGING_FACE_BPE_FILES),
    f"{foreign.TOKENIZER_FOLDER}/*",
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
    repository = _parse(address, key)
    runs = Path(default_cache_dir()) / "hub" / repository.name.replace("/", "--")
    run = runs / repository.revision
    if as_run and COMMIT.fullmatch(run.name) and _is_sound(run):  # it cannot move
        return os.fspath(run)
    commit = find_commit(repository)
    run = runs / commit.name
    if as_run and _is_sound(run):
        return os.fspath(run)
    snapshot = _download(commit)
    if not as_run:
        return os.fspath(snapshot)
    make_folder(runs)
    with exclusive(runs, say):  # one of a job's processes converts
        if not _is_sound(run):
            remove_partial(runs, run.name, older_than=0)
            if run.exists():
                remove(run)  # damaged, or half made
            _convert(snapshot, run, repository.named)
            write_manifest(epath.Path(run))
            say(f"{address} is commit {run.name[:12]}, converted to {run}.")
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
    commit = find_commit(_parse(address, key))
    if not (TOKENIZER_FILE in commit.digests or commit.problem):
        raise UserError(
            f"{commit.repository.named} holds no {TOKENIZER_FILE}, of the `tokenizers` "
            f"library. It has {', '.join(sorted(commit.digests)[:5])}."
        )
    return os.fspath(fetch_files(commit, [TOKENIZER_FILE]) / TOKENIZER_FILE)


def _parse(address: str, key: str) -> Repository:
    """The repository at an address."""
    named = f"{key}={address!r}" if key else repr(address)
    parts = ADDRESS.fullmatch(address)
    if not (parts and is_path(parts[3] or "main")):
        raise UserError(f"{named} must be hf://ORG/NAME or hf://ORG/NAME@REVISION.")
    return Repository(f"{parts[1]}/{parts[2]}", parts[3] or "main", "model", named)


def _download(commit: Commit) -> Path:
    """Downloads a model's files; returns their folder in the Hub's cache."""
    named, files = commit.repository.named, commit.digests
    if folders.CONFIG_FILE in files:
        check_architecture(commit)
    if wanted := _wanted(files):
        return fetch_files(commit, wanted)
    if commit.problem:
        raise commit.problem
    raise UserError(
        f"{named} holds no model that can be read: it has none of "
        f"{folders.WEIGHTS_FILE} and {folders.BIN_FILE}, whole or in parts. It has "
        f"{', '.join(sorted(files)[:5])}."
    )


def _wanted(files: Collection[str]) -> list[str]:
    """The files to download; none if there are no weights."""
    from huggingface_hub import utils

    for whole, index in folders.KINDS:
        if whole in files or index in files:
            weights = whole if whole in files else whole.replace(".", "-*.")
            patterns = [weights, index, *_BESIDE_WEIGHTS]
            return list(utils.filter_repo_objects(files, allow_patterns=patterns))
    return []


def check_architecture(commit: Commit) -> None:
    """Refuses another model than GPT-1, by the commit's `config.json`."""
    folder = epath.Path(fetch_files(commit, [folders.CONFIG_FILE]))
    kind = read_json(folder / folders.CONFIG_FILE).get("model_type")
    if kind != folders.MODEL_TYPE:
        raise UserError(
            f"{commit.repository.named} holds a model of the type {kind!r}; only "
            f"GPT-1's, {folders.MODEL_TYPE!r}, can be read."
        )


def _convert(snapshot: Path, target: Path, named: str) -> None:
    """Makes a run folder, with the default options."""
    values = config_lib.default_config("convert", "run").to_dict()
    config = config_lib.load({**values, "init_from": os.fspath(snapshot)})
    try:
        notes = foreign.make_run_alone(config, os.fspath(target))
    except (UserError, FileNotFoundError) as error:
        raise UserError(f"{named} cannot be read: {error}") from error
    for note in notes:
        say(note)
