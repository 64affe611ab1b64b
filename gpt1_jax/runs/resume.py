"""Checks that a run may begin or resume, and that all its processes are one run.

A run is identified by content: its configuration and the content digests of its text,
examples, tokenizer and origin. Paths and times of files are not compared.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar

import jax
import numpy as np
from etils import epath

import gpt1_jax
from gpt1_jax.config import find_job
from gpt1_jax.config.checks import (
    CONTENT,
    FREE,
    MACHINE,
    MODEL,
    default_values,
    marked_keys,
)
from gpt1_jax.config.flat import flatten, replace_gone
from gpt1_jax.config.saved import known_values, read_json, read_values
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.data.files import check_writable, write_json
from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import gather
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.console import say

Config = TypeVar("Config", bound=JobConfig)

# Shown if the job can start from another run, which does what is refused here.
_LENGTH_KEYS = {"train.num_steps", "train.num_epochs"}
_FURTHER = (
    " To train a finished run further, start a new one from it: "
    "--config.init_from=FOLDER --workdir=NEW (with --config.init_optimizer=True its "
    "schedule goes on)."
)

DOCUMENTS_FILE = "documents.json"
DIGESTS = "content_digests"  # in the metadata of a checkpoint, and in results.json
_LISTED_DOCUMENTS = 3  # in a message
_LISTED_FACTS = 5


@dataclasses.dataclass(frozen=True)
class Identity:
    """The run that a checkpoint belongs to: saved with it, compared on resuming.

    Attributes:
      config: the run's configuration, as JSON has it.
      tokenizer: the tokenizer's content digest.
      digests: content digests by what they identify: "text", "training examples",
        "origin", ...
      documents: content digests of the text's documents by name, to say which differ.
    """

    config: Mapping[str, Any]
    tokenizer: str
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    documents: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def metadata(self, step: int) -> dict[str, Any]:
        """The record saved beside the state of a step."""
        return {
            "config": self.config,
            "tokenizer": self.tokenizer,
            DIGESTS: dict(self.digests),
            "data": {"next_index": step},
            "versions": {"gpt1_jax": gpt1_jax.__version__, "jax": jax.__version__},
        }

    def check(self, saved: Mapping[str, Any], folder: epath.Path) -> None:
        """Refuses the metadata of a checkpoint, or results, of another run.

        A digest that exists on one side only is a difference, too: that of a split of
        examples that has appeared since, for example.

        Raises:
          UserError: naming what differs; if it is the text, which documents.
        """
        held, now = saved_digests(saved), dict(self.digests)
        if "config" in saved:
            refuse_changes(saved["config"], self.config, "this run folder")
        if "tokenizer" in saved:
            held["tokenizer"], now["tokenizer"] = saved["tokenizer"], self.tokenizer
        known = sorted(held.keys() | now.keys())
        if changed := [name for name in known if held.get(name) != now.get(name)]:
            names, which = " and the ".join(changed), ""
            if "text" in changed:
                which = which_documents(folder, self.documents)
            elif "origin" in changed:
                then = saved.get("config", saved).get("init_from")
                which = f" (now {self.config.get('init_from')}, then {then})"
            digests = "; ".join(
                f"{now.get(name, 'missing'):.12}, saved {held.get(name, 'missing'):.12}"
                for name in changed
            )
            are = "are" if names.endswith("s") or len(changed) > 1 else "is"
            raise UserError(
                f"The {names} of this run {are} not what the run in {folder} began "
                f"with{which}: the content digest is {digests}. Put back what was "
                "there, or name another --workdir for a new run."
            )

    def write_documents(self, folder: epath.Path) -> None:
        """Saves the digests of the documents, for a later run to compare."""
        if self.documents:
            write_json(folder / DOCUMENTS_FILE, dict(self.documents))


def saved_digests(saved: Mapping[str, Any]) -> dict[str, str]:
    """The content digests in a record: metadata of a checkpoint, or results."""
    return dict(saved.get(DIGESTS, {}))


def digests_record(digests: Mapping[str, str]) -> dict[str, Any]:
    """The part of a record in which `saved_digests` finds content digests."""
    return {DIGESTS: dict(digests)}


def which_documents(folder: epath.Path, current: Mapping[str, str]) -> str:
    """Names the documents that differ from those a run read, " (..)"; "" if unknown."""
    try:
        saved = read_json(folder / DOCUMENTS_FILE)
    except UserError:
        return ""
    return f" ({_list_first(differing_documents(saved, current), _LISTED_DOCUMENTS)})"


def _list_first(parts: Sequence[str], number: int) -> str:
    more = len(parts) - number
    return "; ".join(parts[:number]) + (f"; and {more} more" if more > 0 else "")


def differing_documents(
    saved: Mapping[str, str], current: Mapping[str, str]
) -> list[str]:
    """Describes how the documents of two texts differ, a phrase for each difference.

    Both are content digests by file name; the files may lie in other folders.
    """
    before, now = Counter(saved.values()), Counter(current.values())
    lost = {PurePosixPath(n).name: n for n, d in saved.items() if d not in now}
    found = {PurePosixPath(n).name: n for n, d in current.items() if d not in before}
    phrases = [
        *(f"{found[n]} holds other text" for n in found if n in lost),
        *(f"{found[n]} is new" for n in found if n not in lost),
        *(f"{lost[n]} is missing" for n in lost if n not in found),
    ]
    if not phrases and before != now:
        phrases = ["a document occurs more or less often"]
    return phrases or ["the same documents in another order or split"]


def tree_digest(tree: Any) -> str:
    """The content digest of a tree of arrays: their paths, types, shapes and bytes."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        head = f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n"
        digest.update(head.encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def begin_run(folder: epath.Path, config: Config) -> Config:
    """Checks that a run may begin in a folder, or continue there.

    Text, examples and origin may be named by other paths than before: their content
    digests are compared once they are known (`Identity`).

    Returns:
      The configuration.

    Raises:
      PermissionError: if the folder cannot be written.
      ValueError: if it holds checkpoints, scores or results of another configuration
        or format.
    """
    try:
        check_writable(folder)
    except OSError as error:
        raise PermissionError(
            f"The run folder {folder} cannot be written ({error.strerror or error}); "
            "name another with --workdir=DIR."
        ) from error
    file = folder / run_folder.CONFIG_FILE
    if run_folder.has_begun(folder) and file.exists():
        saved = read_values(file)
        refuse_changes(saved, config.to_dict(), str(folder))
        for note in replace_gone(flatten(saved))[1]:
            say(note)
    return config


def refuse_changes(
    saved: Mapping[str, Any], current: Mapping[str, Any], where: str
) -> None:
    """Raises a ValueError if a configuration would turn a saved run into another.

    Paths may differ if their content is compared by its digest (`CONTENT`). Keys that
    one side lacks have their defaults there.

    Args:
      saved: `config.to_dict()` as read back, from this version or an earlier one.
      current: the same for the run that is to continue.
      where: where the saved run is, for the message.
    """
    if saved.get("job") != current["job"]:
        raise UserError(
            f"The files saved in {where} belong to a run of the job "
            f"{saved.get('job')!r}, not {current['job']!r}; name another --workdir."
        )
    content = marked_keys(find_job(current["job"]).config_class(), CONTENT)
    changes = {
        key: both
        for key, both in changed_keys(saved, current).items()
        # A run with an origin is never one without.
        if key not in content or (MODEL in content[key] and not all(both))
    }
    if changes:
        listed = "; ".join(
            f"config.{key} is {now!r}, saved {before!r}"
            for key, (before, now) in changes.items()
        )
        longer = _LENGTH_KEYS & changes.keys() and "init_optimizer" in current
        raise UserError(
            f"What is saved in {where} belongs to another configuration: {listed}. "
            "Use the saved values, or name another --workdir for a new run."
            + (_FURTHER if longer else "")
        )


def changed_keys(
    saved: Mapping[str, Any], current: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The keys whose changes would turn a resumed run into another.

    Args:
      saved, current: as for `refuse_changes`.

    Returns:
      `{key: (saved value, current value)}`, empty when the run may resume.
    """
    before, now = fixed_values(saved), fixed_values(current)
    return {
        key: (before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    }


def fixed_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's configuration that must not change, by flat key.

    They include those of `CONTENT` keys, of which only the content must not change.

    Raises:
      UserError: if it names no known job.
    """
    cls = find_job(config.get("job")).config_class()
    free = marked_keys(cls, FREE, MACHINE).keys() - marked_keys(cls, CONTENT).keys()
    values = {**default_values(cls), **known_values(config)}
    return {key: values[key] for key in sorted(values.keys() - free)}


def check_same(facts: Mapping[str, Any]) -> None:
    """Checks that all processes have the same facts; if not, all raise the same error.

    Args:
      facts: JSON values by name.

    Raises:
      ValueError: naming each difference.
    """
    first, *others = map(json.loads, gather(json.dumps(facts)))
    differences = [
        f"{key} is {other.get(key)!r} on process {index}, {first.get(key)!r} on "
        "process 0"
        for index, other in enumerate(others, 1)
        for key in sorted(first.keys() | other.keys())
        if other.get(key) != first.get(key)
    ]
    if differences:
        raise UserError(
            "The processes of this run differ: "
            f"{_list_first(differences, _LISTED_FACTS)}. Start the same command on "
            "every host, with the same installation and the same text."
        )
