"""Whether a run may resume: what it is, and that all its processes are one run.

A run is what its text, examples, tokenizer and origin are: their content digests are
compared, not where they lie or when they were written.
"""

import contextlib
import dataclasses
import hashlib
import json
import platform
import socket
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, TypeVar

import jax
import numpy as np
from etils import epath

import gpt1_jax
from gpt1_jax.config import JobConfig
from gpt1_jax.config.saved import (
    adopt_older,
    flatten,
    read_json,
    upgrade,
    without_local,
)
from gpt1_jax.data.files import (
    check_writable,
    create,
    make_folder,
    refuse_links,
    write_json,
)
from gpt1_jax.errors import UserError
from gpt1_jax.parallel.processes import eventually, gather, is_main_process
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.console import say

Config = TypeVar("Config", bound=JobConfig)

_WAY_OUT = "Use the saved values, or name another --workdir for a new run."

# Where a run can start from another one, there is a way to what is refused here.
_LENGTH_KEYS = {"train.num_steps", "train.num_epochs"}
_FURTHER = (
    " To train a finished run further, start a new one from it: "
    "--config.init_from=FOLDER --workdir=NEW (with --config.init_optimizer=True its "
    "schedule goes on)."
)

# What may change freely when a run resumes: cadences, cache folders, layer loop, ...
# A checkpoint's future depends on everything else, so that must stay the same.
_FREE_KEYS = {
    "preset",
    "model.layer_loop",
    "model.remat",
    "data.cache_dir",
    "data.num_workers",
    "train.max_nonfinite_steps",
    "train.compilation_cache_dir",
    "compilation_cache_dir",
    "batch_tokens",
}
_FREE_SECTIONS = {"mesh", "eval", "checkpoint", "log", "distributed", "suite"}
# Where something lies; free where the content digest of what lies there was saved.
_PLACES = {
    "init_from",
    "baseline_init_from",
    "tokenizer.path",
    "data.train",
    "data.valid",
    "data.dev",
    "data.test",
    "data.dir",
    "data.tfds_data_dir",
}
_TRAINING = {"pretrain", "finetune"}  # whose `step` is that of the run they start from
_RUNS = {"init_from", "baseline_init_from"}  # places that must not appear or vanish
DOCUMENTS_FILE = "documents.json"
_DIGESTS = "content_digests"  # in the metadata of a checkpoint, and in results.json
_LISTED_DOCUMENTS = 3  # in a message
_LISTED_FACTS = 5


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to; saved with it and compared on resume.

    Attributes:
      config: the run's configuration, as JSON has it.
      tokenizer: its content digest.
      digests: content digests by what they are of: "text", "training examples",
        "origin", ...
      older: what identified text and examples in folders of earlier versions, whose
        checkpoints hold no content digests.
      documents: content digests of the documents of the text, by name, to tell which
        one differs.
    """

    config: Mapping[str, Any]
    tokenizer: str
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    older: str = ""
    documents: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def metadata(self, step: int) -> dict[str, Any]:
        """The record saved beside the state of a step."""
        return {
            "config": self.config,
            "tokenizer": self.tokenizer,
            "corpus": self.older,
            _DIGESTS: dict(self.digests),
            "data": {"next_index": step},
            "versions": {"gpt1_jax": gpt1_jax.__version__, "jax": jax.__version__},
        }

    def check(self, saved: Mapping[str, Any], folder: epath.Path) -> None:
        """Refuses to go on from what belongs to another run.

        Args:
          saved: the metadata of a checkpoint, or a results.json.
          folder: the run folder.

        Raises:
          UserError: naming what differs; of a text, the documents.
        """
        held = saved_digests(saved)
        if "config" in saved:
            refuse_changes(saved["config"], self.config, "this run folder", bool(held))
        if "tokenizer" in saved:
            held["tokenizer"] = saved["tokenizer"]
        now = {**self.digests, "tokenizer": self.tokenizer}
        if not saved_digests(saved):
            held, now = {**held, "text": saved["corpus"]}, {**now, "text": self.older}
        for name in sorted(held):
            if held[name] != now.get(name):
                which = self._which_documents(folder) if name == "text" else ""
                raise UserError(
                    f"The {name} of this run {_verb(name)} not what the run in {folder}"
                    f" began with{which}: the content digest is "
                    f"{now.get(name, 'missing'):.12}, saved {held[name]:.12}. Put it "
                    "back, or name another --workdir for a new run."
                )

    def _which_documents(self, folder: epath.Path) -> str:
        """Which documents differ from those the run began with, as far as known."""
        try:
            saved = read_json(folder / DOCUMENTS_FILE)
        except UserError:
            return ""
        differences = differing_documents(saved, self.documents)
        more = len(differences) - _LISTED_DOCUMENTS
        listed = "; ".join(differences[:_LISTED_DOCUMENTS])
        return f" ({listed}{f'; and {more} more' if more > 0 else ''})"

    def write_documents(self, folder: epath.Path) -> None:
        """Keeps the digests of the documents, once they are known to be the run's."""
        if self.documents:
            write_json(folder / DOCUMENTS_FILE, dict(self.documents))


def saved_digests(saved: Mapping[str, Any]) -> dict[str, str]:
    """The content digests in a record; none in one of earlier versions."""
    return dict(saved.get(_DIGESTS, {}))


def digests_record(digests: Mapping[str, str]) -> dict[str, Any]:
    """Content digests as `saved_digests` finds them in a record."""
    return {_DIGESTS: dict(digests)}


def differing_documents(
    saved: Mapping[str, str], current: Mapping[str, str]
) -> list[str]:
    """What differs between the documents of two texts, a phrase for each.

    Args:
      saved: content digests by name, in the order of the text.
      current: the same; names may differ in their folders.
    """
    gone, new = Counter(saved.values()), Counter(current.values())
    lost = {_file_name(n): n for n, d in saved.items() if d not in new}
    found = {_file_name(n): n for n, d in current.items() if d not in gone}
    phrases = [
        *(f"{found[n]} holds other text" for n in found if n in lost),
        *(f"{found[n]} is new" for n in found if n not in lost),
        *(f"{lost[n]} is missing" for n in lost if n not in found),
    ]
    if not phrases and gone != new:
        phrases = ["a document is there more or less often"]
    return phrases or ["the same documents in another order or split"]


def _file_name(name: str) -> str:
    return PurePosixPath(name).name


def _verb(name: str) -> str:
    return "are" if name.endswith("s") else "is"


def tree_digest(tree: Any) -> str:
    """The content digest of a tree of arrays: their paths, types, shapes and bytes."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        digest.update(
            f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode()
        )
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def begin_run(folder: epath.Path, config: Config) -> Config:
    """Makes a run folder, or checks that the run in it may continue.

    Text, examples and the run to start from may lie elsewhere than before: their
    content digests are compared once they are known (`Identity`).

    Args:
      folder: the run folder.
      config: the run's configuration.

    Returns:
      The configuration; in a folder written by an older version, keys that it did not
      know take the value that does what the run did so far.

    Raises:
      PermissionError: if nothing can be written there.
      ValueError: if it holds checkpoints, scores or results of another configuration,
        or a link.
    """
    refuse_links(folder)
    try:
        check_writable(folder)
    except OSError as error:
        raise PermissionError(
            f"The run folder {folder} cannot be written ({error.strerror or error}); "
            "name another with --workdir=DIR."
        ) from error
    if not (
        run_folder.has_begun(folder) and (folder / run_folder.CONFIG_FILE).exists()
    ):
        return config
    saved = read_json(folder / run_folder.CONFIG_FILE)
    config, notes = adopt_older(config, saved)
    refuse_changes(saved, config.to_dict(), str(folder), by_content=True)
    for note in notes:
        say(note)
    return config


def refuse_changes(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    where: str,
    by_content: bool = False,
) -> None:
    """Raises a ValueError if a configuration would turn the saved run into another.

    Args:
      saved: the values read back, written by this version or an older one.
      current: `config.to_dict()` of the run that is to continue.
      where: where the saved run is, for the message.
      by_content: whether content digests are compared too, so that paths may differ.
    """
    if saved.get("job") != current["job"]:
        raise UserError(
            f"What is saved in {where} belongs to a run of the job "
            f"{saved.get('job')!r}, not {current['job']!r}; name another --workdir."
        )
    changes = changed_keys(saved, current)
    if by_content:
        places = _PLACES | ({"step"} if current["job"] in _TRAINING else set())
        changes = {
            key: (before, now)
            for key, (before, now) in changes.items()
            if key not in places or (key in _RUNS and not (before and now))
        }
    if changes:
        listed = "; ".join(
            f"config.{key} is {now!r}, saved {before!r}"
            for key, (before, now) in changes.items()
        )
        longer = _LENGTH_KEYS & changes.keys() and "init_optimizer" in current
        raise UserError(
            f"What is saved in {where} belongs to another configuration: {listed}. "
            + _WAY_OUT
            + (_FURTHER if longer else "")
        )


def changed_keys(
    saved: Mapping[str, Any], current: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The keys whose change would turn a resumed run into another run.

    Args:
      saved: `config.to_dict()` as read back from a checkpoint.
      current: the same for the run that is to resume.

    Returns:
      `{key: (saved value, current value)}`, empty when the run may resume.
    """
    before, now = (fixed_values(each) for each in (upgrade(saved), current))
    return {
        key: (before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    }


def fixed_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's configuration, by flat key, that make it the run it is."""
    return {
        key: value
        for key, value in flatten(json.loads(json.dumps(config))).items()
        if key not in _FREE_KEYS and key.split(".")[0] not in _FREE_SECTIONS
    }


def check_processes(config: JobConfig, workdir: str) -> None:
    """Refuses processes that differ in what makes up a run; all of them refuse.

    Args:
      config: this process's configuration.
      workdir: its run folder, local or gs://.

    Raises:
      ValueError: if configurations or versions differ; names each difference. If the
        run folder is not one and the same; names who has another.
      PermissionError: if the main process cannot write there.
    """
    if jax.process_count() == 1:
        return
    versions = {
        "gpt1_jax": gpt1_jax.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    values = flatten(without_local(config.to_dict()))
    check_same({f"config.{key}": value for key, value in values.items()})
    check_same({f"the version of {name}": value for name, value in versions.items()})
    folder = run_folder.locate(workdir)
    _check_shared(folder)


def check_same(facts: Mapping[str, Any]) -> None:
    """Refuses processes that know different facts; all of them refuse.

    Args:
      facts: JSON values by their names; every process calls this with its own.

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
        more = len(differences) - _LISTED_FACTS
        listed = "; ".join(differences[:_LISTED_FACTS])
        raise UserError(
            f"The processes of this run differ: {listed}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Start the same command on every host, with the same installation and "
            "the same text."
        )


def _check_shared(folder: epath.Path) -> None:
    """Raises on all processes unless all see what the main one writes to the folder."""
    name = gather(_write_name(folder) if is_main_process() else "")[0]
    if not name:
        raise PermissionError(
            f"Process 0 cannot write to the run folder {folder}; name another with "
            "--workdir=DIR."
        )
    seen = eventually(lambda: _holds_its_name(folder / name))
    apart = "" if seen else f"{folder} on {socket.gethostname()}"
    found = gather(apart)
    if is_main_process():
        (folder / name).unlink(missing_ok=True)
    for index, other in enumerate(found):
        if other:
            raise UserError(
                f"The run folder of process {index}, {other}, is not that of process "
                "0: a file written there is not seen. All processes need one folder; "
                "name one on a shared disk or in a bucket, --workdir=gs://BUCKET/RUN."
            )


def _write_name(folder: epath.Path) -> str:
    """The name of a new file that holds its own name; empty if it cannot be made."""
    name = f".shared-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):
        make_folder(folder)
        create(folder / name, name)
        return name
    return ""


def _holds_its_name(path: epath.Path) -> bool:
    """Whether there is a file as `_write` makes them."""
    with contextlib.suppress(OSError):
        return path.read_text() == path.name
    return False
