"""Publishes a converted model on the Hugging Face Hub, by its own client.

What is pushed is a folder that `convert` made for transformers: one model on the branch
main, or several steps of a run, each on a branch of its own and the last (of a
fine-tuned run the best) also on main. A record in the folder says which files
`convert` wrote; nothing else leaves the machine. A branch is one commit, so that it is
there whole or not at all, and the Hub knows large files by their digest: the same
command goes on where it was interrupted.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config.convert import ConvertConfig
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import (
    files_below,
    is_remote,
    sha256,
    write_json,
    write_whole,
)
from gpt1_jax.errors import FULL, TryAgain, UserError
from gpt1_jax.formats import EXPORT
from gpt1_jax.interop import hub
from gpt1_jax.interop.hugging_face import CONFIG_FILE, LANGUAGE_MODEL
from gpt1_jax.interop.repository import is_unreachable
from gpt1_jax.runs.checkpoint_files import read_scores
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import megabytes
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.signals import Stopped
from gpt1_jax.tasks.paper_tasks import find_task

CARD, MAIN = "README.md", "main"
_RECORD = ".push.json"  # what `convert` wrote, and for which command
_AT_EACH_PUSH = ("push_private", "push_confirm")  # keys that the files do not depend on
_TAGS = ("gpt-1", "gpt1_jax", "jax")
_METRICS = {  # as the Hub calls those that have another name there
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
_TASKS = {"OpenAIGPTForSequenceClassification": "text-classification"}
_TOKEN = "set HF_TOKEN, or log in with `hf auth login`"


# --- before the conversion ----------------------------------------------------------


def check_push(config: ConvertConfig, target: epath.Path) -> None:
    """Refuses what cannot be pushed, before any work.

    Args:
      config: of the conversion; `push_to` is not empty.
      target: the folder to make and push.

    Raises:
      UserError: if the address is malformed, there is no token that may write there,
        the repository holds something else or is public, the Hub does not take the
        licence or the language, or the target is in a bucket.
      TryAgain: if the Hub does not answer.
    """
    import huggingface_hub
    from huggingface_hub import constants

    named, name = f"config.push_to={config.push_to!r}", _repository(config)
    if is_remote(target):
        raise UserError(
            f"{named} pushes files of this machine, but {target} is a bucket; name a "
            "local --workdir."
        )
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"{named} needs the Hub, but HF_HUB_OFFLINE is set; unset it, or leave "
            "push_to out."
        )
    if not huggingface_hub.get_token():
        raise UserError(f"{named} needs a token that may write there: {_TOKEN}.")
    api = huggingface_hub.HfApi()
    with _explained(config):
        user = api.whoami()
    _check_owner(named, name.partition("/")[0], user)
    info = _model_info(config, MAIN)
    if info and not info.private and config.push_private:
        raise UserError(
            f"{named} is a public repository; push to it with "
            "--config.push_private=False, or name another."
        )
    if info and any(each.rfilename == CONFIG_FILE for each in info.siblings or ()):
        with _explained(config):
            file = huggingface_hub.hf_hub_download(name, CONFIG_FILE)
        hub.check_architecture(epath.Path(file), named)
    _check_card(config, f"---\n{_metadata(config).to_yaml()}\n---\n")


def _repository(config: ConvertConfig) -> str:
    """The name of the repository in `push_to`, ORG/NAME."""
    from huggingface_hub import utils

    parts = hub.ADDRESS.fullmatch(config.push_to)
    if parts and parts[3]:
        raise UserError(
            f"config.push_to={config.push_to!r} names a revision; leave @{parts[3]} "
            "out: the model goes to the branch main, each of several steps to one of "
            "its own."
        )
    try:
        name = f"{parts[1]}/{parts[2]}" if parts else ""
        utils.validate_repo_id(name)
    except utils.HFValidationError:
        name = ""
    if not name:
        raise UserError(
            f"config.push_to={config.push_to!r} must be hf://ORG/NAME, of letters, "
            "digits, '-', '_' and '.'."
        )
    return name


def _check_owner(named: str, owner: str, user: Mapping[str, Any]) -> None:
    """Refuses a token that only reads, and what belongs to others."""
    from huggingface_hub import constants

    try:
        owners = [user["name"], *(each["name"] for each in user.get("orgs", ()))]
        may_write = user.get("auth", {}).get("accessToken", {}).get("role") != "read"
    except (LookupError, TypeError, AttributeError) as error:
        raise TryAgain(
            f"{named}: the Hub does not say whose the token is; run the same command "
            "again."
        ) from error
    if not may_write:
        raise UserError(
            f"{named} needs a token that may write; that of {user['name']!r} may only "
            f"read. Make another at {constants.ENDPOINT}/settings/tokens, and {_TOKEN}."
        )
    if owner not in owners:
        raise UserError(
            f"{named} belongs to {owner!r}; the token is of {user['name']!r}, who may "
            f"push to {', '.join(f'hf://{each}/NAME' for each in owners)}."
        )


def _model_info(config: ConvertConfig, branch: str) -> Any:
    """What the Hub knows of a branch; None if it, or the repository, is not there."""
    import huggingface_hub
    from huggingface_hub import errors

    with (
        _explained(config),
        contextlib.suppress(
            errors.RepositoryNotFoundError, errors.RevisionNotFoundError
        ),
    ):
        return huggingface_hub.HfApi().model_info(
            _repository(config), revision=branch, files_metadata=True
        )
    return None


def _check_card(config: ConvertConfig, card: str) -> None:
    """Lets the Hub check the metadata of a model card."""
    import huggingface_hub

    with _explained(config, checks_card=True):
        huggingface_hub.ModelCard(card).validate()


# --- the folder ---------------------------------------------------------------------


def add_metadata(
    folder: epath.Path,
    config: ConvertConfig,
    trained: TrainedRun | None = None,
    branch: str = "",
) -> None:
    """Puts the Hub's metadata before the README of an exported model, and its address.

    Licence and language are those of the configuration. The scores of a run are those
    by which it ranks its checkpoints.

    Args:
      folder: the exported folder.
      config: of the conversion.
      trained: the exported step, if it is a run's.
      branch: the one that it goes to, if it is one of several steps.
    """
    architecture = read_json(folder / CONFIG_FILE)["architectures"][0]
    task = "text-generation" if architecture == LANGUAGE_MODEL else ""
    data = _metadata(config, _TASKS.get(architecture, task), trained)
    text = (folder / CARD).read_text()
    revision, at = (f', revision="{branch}"', f"@{branch}") if branch else ("", "")
    name = f'"{_repository(config)}"{revision}'  # for transformers
    text = text.replace('"THIS_FOLDER"', name)
    text = text.replace("THIS_FOLDER", f"{config.push_to}{at}")
    write_whole(folder / CARD, f"---\n{data.to_yaml()}\n---\n\n{text}")


def _metadata(
    config: ConvertConfig, task: str = "", trained: TrainedRun | None = None
) -> Any:
    """The metadata of the card, as the Hub's client has it."""
    import huggingface_hub

    scores = list(_scores(trained)) if trained else []
    return huggingface_hub.ModelCardData(
        language=list(config.push_language) or None,
        license=config.push_license or None,
        library_name="transformers",
        pipeline_tag=task or None,
        tags=list(_TAGS),
        model_name=_repository(config).partition("/")[2] if scores else None,
        eval_results=scores or None,
    )


def _scores(trained: TrainedRun) -> Iterator[Any]:
    import huggingface_hub

    task, data = "text-generation", ("text", "the run's own validation text")
    if isinstance(trained.config, FinetuneConfig):
        about = find_task(trained.config)
        task, data = "text-classification", (about.name, about.title)
    for best, value in read_scores(trained.folder, trained.step).items():
        metric = best.metric.removeprefix("valid_")
        if metric == "loss":  # nats per token
            metric, value = "perplexity", math.exp(min(value, 700.0))
        yield huggingface_hub.EvalResult(
            task_type=task,
            dataset_type=data[0],
            dataset_name=data[1],
            dataset_split="validation",
            metric_type=_METRICS.get(metric, metric),
            metric_value=value,
        )


def write_record(
    folder: epath.Path, config: ConvertConfig, branches: Mapping[str, str]
) -> None:
    """Notes what was written, and for which command.

    Args:
      folder: the exported folder, whole.
      config: of the conversion.
      branches: by branch, the folder below `folder` that it is to hold.
    """
    files = {
        file.relative_to(folder).as_posix(): sha256(file)
        for file in sorted(files_below(folder))
    }
    record = {"command": _command(config), "branches": branches, "files": files}
    write_json(folder / _RECORD, {**EXPORT.stamp(), **record})


def _command(config: ConvertConfig) -> dict[str, Any]:
    values = config.to_dict()
    kept = {key: each for key, each in values.items() if key not in _AT_EACH_PUSH}
    return dict(json.loads(json.dumps(kept)))  # tuples become lists, as in the record


def is_made(folder: epath.Path, config: ConvertConfig) -> bool:
    """Whether the same command has made the folder before.

    Raises:
      UserError: if another command has, or a file was changed or removed since; the
        card may be edited.
    """
    if not (folder / _RECORD).exists():
        return False
    record = read_json(folder / _RECORD)
    EXPORT.check(record, folder / _RECORD)
    made, asked = record["command"], _command(config)
    for key in asked:
        if made.get(key) != asked[key]:
            raise UserError(
                f"{folder} was made with config.{key}={made.get(key)!r}, not "
                f"{asked[key]!r}; name another --workdir."
            )
    for name, digest in record["files"].items():
        file = folder / name
        if not file.exists() or (file.name != CARD and sha256(file) != digest):
            raise UserError(
                f"{file} was changed or removed since convert wrote it; remove "
                f"{folder}, and the same command makes it again."
            )
    return True


# --- the push -----------------------------------------------------------------------


def push(folder: epath.Path, config: ConvertConfig) -> None:
    """Lists what a push sends, asks, and pushes what is not there yet.

    Args:
      folder: the folder that `convert` made and `write_record` described.
      config: of the conversion.

    Raises:
      UserError: if nobody can be asked and `push_confirm` is not set, or the Hub
        refuses.
      TryAgain: if the Hub does not answer.
      Stopped: after a signal; the same command goes on.
    """
    record = read_json(folder / _RECORD)
    known = record["files"]
    # Only cards may differ from what was written.
    digests = {
        name: sha256(folder / name) if name.endswith(CARD) else known[name]
        for name in known
    }
    _check_card(config, (folder / record["branches"][MAIN] / CARD).read_text())
    branches = {
        name: _branch(folder / place, digests, place, _model_info(config, name))
        for name, place in record["branches"].items()
    }
    _say_what_is_pushed(config, branches)
    others = {file.relative_to(folder).as_posix() for file in files_below(folder)}
    if others := others - {_RECORD, *known}:
        say(f"  Left out, as convert did not write it: {', '.join(sorted(others))}")
    if edited := [name for name in known if digests[name] != known[name]]:
        say(f"  Edited since convert wrote it: {', '.join(edited)}")
    if not any(branch.missing for branch in branches.values()):
        say("Nothing to push: the Hub has it all.")
        return
    if not _is_confirmed(config, folder):
        say(f"Nothing was pushed; {folder} is kept.")
        return
    _send(config, branches)


class _Branch(NamedTuple):
    """A branch, and what of it the Hub has."""

    folder: epath.Path  # what the branch is to hold
    files: Sequence[str]  # relative to it
    missing: Sequence[str]  # those that the Hub does not have with this content
    info: Any  # the Hub's; None if the branch is new


def _branch(
    folder: epath.Path, digests: Mapping[str, str], place: str, info: Any
) -> _Branch:
    top = f"{place}/" if place else ""
    ours = {
        name.removeprefix(top): digest
        for name, digest in digests.items()
        if name.startswith(top)
    }
    theirs = {each.rfilename: each for each in (info.siblings if info else None) or ()}
    missing = [
        name
        for name, digest in ours.items()
        if name not in theirs or not _is_same(folder / name, digest, theirs[name])
    ]
    return _Branch(folder, list(ours), missing, info)


def _is_same(file: epath.Path, digest: str, there: Any) -> bool:
    """Whether a file on the Hub has the content of ours, with this SHA-256."""
    if there.lfs:
        return bool(there.lfs.sha256 == digest)
    content = file.read_bytes()
    blob = f"blob {len(content)}\0".encode() + content  # as git names it
    name = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    return bool(there.blob_id == name)


def _say_what_is_pushed(config: ConvertConfig, branches: Mapping[str, _Branch]) -> None:
    """Lists the repository, its branches, and their files with sizes."""
    from huggingface_hub import constants

    info = branches[MAIN].info
    private = info.private if info else config.push_private
    licence = config.push_license or "not said (config.push_license)"
    language = ",".join(config.push_language) or "not said (config.push_language)"
    say(
        f"To {constants.ENDPOINT}/{_repository(config)}, "
        f"{'which exists' if info else 'a new repository'}, "
        f"{'private' if private else 'PUBLIC'}; "
        f"licence {licence}, language {language}:"
    )
    sent: dict[epath.Path, int] = {}  # bytes; branches may share a folder
    for name, branch in branches.items():
        if not branch.missing:
            say(f"  branch {name}: complete already, from {branch.folder}")
            continue
        held = branch.info.siblings if branch.info else ()
        replaced = {each.rfilename for each in held} & set(branch.missing)
        notes = {
            **dict.fromkeys(branch.files, ", there already"),
            **dict.fromkeys(branch.missing, ""),
            **dict.fromkeys(replaced, ", REPLACES ANOTHER"),
        }
        sizes = {file: (branch.folder / file).stat().length for file in branch.files}
        sent |= {branch.folder / file: sizes[file] for file in branch.missing}
        listed = ", ".join(
            f"{file} ({_size(sizes[file])}{notes[file]})" for file in branch.files
        )
        state = "" if branch.info else " (new)"
        say(f"  branch {name}{state}, from {branch.folder}: {listed}")
    if sent:
        say(f"  Files to send: {len(sent)}, {_size(sum(sent.values()))} in all.")


def _size(size: int) -> str:
    return megabytes(size) if size >= 10**6 else f"{size:,} bytes"


def _is_confirmed(config: ConvertConfig, folder: epath.Path) -> bool:
    """Whether to push: by the configuration, or by a typed yes."""
    if config.push_confirm:
        return True
    if not (sys.stdin and sys.stdin.isatty()):
        raise UserError(
            f"Nothing was pushed, and {folder} is kept: run the same command with "
            "--config.push_confirm=True to push what is listed above."
        )
    say("Push this? [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _send(config: ConvertConfig, branches: Mapping[str, _Branch]) -> None:
    """Pushes branches, main last: it is whole only once all of them are."""
    import huggingface_hub

    api, name = huggingface_hub.HfApi(), _repository(config)
    with _explained(config):
        api.create_repo(name, private=config.push_private, exist_ok=True)
        # Empty, so that a branch never holds the weights of another step.
        commits = api.list_repo_commits(name)
        if not commits:
            raise TryAgain("it knows no commit of this repository")
        start = commits[-1].commit_id
        for branch, (folder, _, missing, info) in branches.items():
            if not missing:
                continue
            if branch != MAIN and not info:
                api.create_branch(name, branch=branch, revision=start, exist_ok=True)
            done = api.create_commit(
                name,
                [
                    huggingface_hub.CommitOperationAdd(each, os.fspath(folder / each))
                    for each in missing
                ],
                commit_message="Export of gpt1_jax: "
                + ("the model" if len(branches) == 1 else folder.name),
                revision=branch,
            )
            say(f"Pushed {branch}: commit {done.oid[:12]}.")
    at = "" if len(branches) == 1 else "[@BRANCH]"
    say(f"hf://{name}{at} is the model to name in --config.init_from.")


@contextlib.contextmanager
def _explained(config: ConvertConfig, checks_card: bool = False) -> Iterator[None]:
    """Raises errors of the Hub's client as one line with a way out."""
    from huggingface_hub import errors

    named = f"config.push_to={config.push_to!r}"
    again = "Run the same command again; what has arrived is not sent again"
    try:
        yield
    except KeyboardInterrupt as signal:
        raise Stopped("interrupted while pushing; what has arrived stays.") from signal
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise UserError(
            f"{named} is not there, or the token may not see it; {_TOKEN}, with one "
            "that may write there."
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (*FULL, errno.EACCES):
            raise  # of this machine
        if isinstance(error, TypeError | LookupError | AttributeError | Warning):
            if not _is_of_client(error):
                raise  # a bug
            raise TryAgain(
                f"{named}: the Hub's answer is odd ({type(error).__name__}: {error}). "
                f"{again}."
            ) from error
        while isinstance(error, RuntimeError) and isinstance(
            error.__cause__, Exception
        ):
            error = error.__cause__  # the client's, around that of one file
        status = getattr(getattr(error, "response", None), "status_code", None)
        first = " ".join(_messages(error).split())
        if status in (401, 403):
            raise UserError(
                f"{named} is refused ({status}): the token may not write there; "
                f"{_TOKEN}, with one that may."
            ) from error
        is_json = isinstance(error, json.JSONDecodeError)  # not what the Hub sends
        if checks_card and isinstance(error, ValueError) and not is_json:
            raise UserError(
                f"{named}: the Hub does not take the model card ({first}); change "
                "config.push_license or config.push_language."
            ) from error
        if is_unreachable(error):
            raise TryAgain(
                f"{named}: the Hub does not answer ({first}). {again}."
            ) from error
        raise UserError(f"{named}: the Hub refuses ({first}). {again}.") from error


def _is_of_client(error: BaseException) -> bool:
    """Whether the Hub's client raised an error: then over what the Hub answered."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("huggingface_hub")


def _messages(error: Exception) -> str:
    """What an error says; of an answer of the Hub's validator, its messages."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return "; ".join(each["message"] for each in json.loads(str(error))["errors"])
    return str(error).strip().partition("\n")[0]
