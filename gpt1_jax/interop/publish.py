"""Publishes a converted model on the Hugging Face Hub, by its own client.

What is pushed is a folder that `convert` made for transformers: one model on the branch
main, or several steps of a run, each on a branch of its own and the last (of a
fine-tuned run the best) also on main. A record in the folder says which files `convert`
wrote; nothing else leaves the machine. A branch is one commit, so it is there
completely or not at all. The client sends only what the Hub lacks, so the same command
goes on where it was interrupted.
"""

import contextlib
import errno
import glob
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from gpt1_jax.config.convert import ConvertConfig
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import files_below, is_remote, sha256, write_json, write_whole
from gpt1_jax.errors import FULL, TryAgain, UserError
from gpt1_jax.formats import EXPORT
from gpt1_jax.interop import hub
from gpt1_jax.interop.hugging_face import CLASSIFIER, CONFIG_FILE, LANGUAGE_MODEL
from gpt1_jax.interop.repository import (
    Repository,
    describe,
    find_commit,
    is_unreachable,
)
from gpt1_jax.runs.checkpoint_files import read_scores
from gpt1_jax.runs.console import say
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
_TASKS = {LANGUAGE_MODEL: "text-generation", CLASSIFIER: "text-classification"}
_TOKEN = "set HF_TOKEN, or log in with `hf auth login`"
# By branch: the folder that it is to hold, and of its files those to push.
Branches = dict[str, tuple[epath.Path, list[str]]]
_AGAIN = "Run the same command again; what has arrived is not sent again."


# --- before the conversion ----------------------------------------------------------


def check_push(config: ConvertConfig, target: epath.Path) -> None:
    """Refuses what cannot be pushed, before any work.

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
    with _explained(config):
        user = huggingface_hub.HfApi().whoami()
        owners = [user["name"], *(each["name"] for each in user.get("orgs", ()))]
        role = user.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise UserError(
            f"{named} needs a token that may write; that of {owners[0]!r} may only "
            f"read. Make another at {constants.ENDPOINT}/settings/tokens, and {_TOKEN}."
        )
    if (owner := name.partition("/")[0]) not in owners:
        raise UserError(
            f"{named} belongs to {owner!r}; the token is of {owners[0]!r}, who may "
            f"push to {', '.join(f'hf://{each}/NAME' for each in owners)}."
        )
    info = _model_info(config)
    if info and not info.private and config.push_private:
        raise UserError(
            f"{named} is a public repository; push to it with "
            "--config.push_private=False, or name another."
        )
    if info and any(each.rfilename == CONFIG_FILE for each in info.siblings or ()):
        there = Repository(name, MAIN, "model", named)
        hub.check_architecture(find_commit(there))
    _check_card(config, f"---\n{_metadata(config).to_yaml()}\n---\n")


def _repository(config: ConvertConfig) -> str:
    """The name of the repository in `push_to`, ORG/NAME."""
    from huggingface_hub import utils

    parts = hub.ADDRESS.fullmatch(config.push_to)
    try:
        name = f"{parts[1]}/{parts[2]}" if parts and not parts[3] else ""
        utils.validate_repo_id(name)
    except utils.HFValidationError as error:
        raise UserError(
            f"config.push_to={config.push_to!r} must be hf://ORG/NAME, of letters, "
            "digits, '-', '_' and '.', without a revision: the model goes to the "
            "branch main, each of several steps to one of its own."
        ) from error
    return name


def _model_info(config: ConvertConfig) -> Any:
    """What the Hub knows of the repository; None if it is not there."""
    import huggingface_hub
    from huggingface_hub import errors

    with _explained(config), contextlib.suppress(errors.RepositoryNotFoundError):
        return huggingface_hub.HfApi().model_info(_repository(config))
    return None


def _check_card(config: ConvertConfig, card: str) -> None:
    """Lets the Hub check the metadata of a model card."""
    import huggingface_hub

    with _explained(config):
        try:
            huggingface_hub.ModelCard(card).validate()
        except ValueError as error:  # the Hub's answer
            try:
                found = json.loads(str(error))["errors"]
                why = "; ".join(each["message"] for each in found)
            except (ValueError, TypeError, LookupError):
                why = describe(error)
            raise UserError(
                f"config.push_to={config.push_to!r}: the Hub does not take the model "
                f"card ({why}); change config.push_license, config.push_language or "
                f"{CARD}."
            ) from error


# --- the folder ---------------------------------------------------------------------


def add_metadata(
    folder: epath.Path,
    config: ConvertConfig,
    trained: TrainedRun | None = None,
    branch: str = "",
) -> None:
    """Puts the Hub's metadata before the README of an exported model, and its address.

    Licence and language are those of the configuration. The scores are those by which
    the run of `trained`, an exported step, ranks its checkpoints. `branch` is the one
    that it goes to, if it is one of several steps.
    """
    architecture = read_json(folder / CONFIG_FILE)["architectures"][0]
    data = _metadata(config, _TASKS.get(architecture), trained)
    revision, at = (f', revision="{branch}"', f"@{branch}") if branch else ("", "")
    text = (folder / CARD).read_text()  # in quotes, it is for transformers
    text = text.replace('"THIS_FOLDER"', f'"{_repository(config)}"{revision}')
    text = text.replace("THIS_FOLDER", f"{config.push_to}{at}")
    write_whole(folder / CARD, f"---\n{data.to_yaml()}\n---\n\n{text}")


def _metadata(
    config: ConvertConfig, task: str | None = None, trained: TrainedRun | None = None
) -> Any:
    """The metadata of the card, as the Hub's client has it."""
    import huggingface_hub

    scores = list(_scores(trained)) if trained else []
    return huggingface_hub.ModelCardData(
        language=list(config.push_language) or None,
        license=config.push_license or None,
        library_name="transformers",
        pipeline_tag=task,
        tags=list(_TAGS),
        model_name=_repository(config).partition("/")[2] if scores else None,
        eval_results=scores or None,
    )


def _scores(trained: TrainedRun) -> Iterator[Any]:
    import huggingface_hub

    task, name, title = "text-generation", "text", "the run's own validation text"
    if isinstance(trained.config, FinetuneConfig):
        about = find_task(trained.config)
        task, name, title = "text-classification", about.name, about.title
    for best, value in read_scores(trained.folder, trained.step).items():
        metric = best.metric.removeprefix("valid_")
        if metric == "loss":  # nats per token
            metric, value = "perplexity", math.exp(min(value, 700.0))
        yield huggingface_hub.EvalResult(
            task_type=task,
            dataset_type=name,
            dataset_name=title,
            dataset_split="validation",
            metric_type=_METRICS.get(metric, metric),
            metric_value=value,
        )


def write_record(
    folder: epath.Path, config: ConvertConfig, branches: Mapping[str, str]
) -> None:
    """Notes what was written, for which command, and the folder of each branch."""
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
    """Lists what a push of an exported folder sends, asks, and pushes what is lacking.

    Raises:
      UserError: if nobody can be asked and `push_confirm` is not set, or the Hub
        refuses.
      TryAgain: if the Hub does not answer.
      Stopped: after a signal; the same command goes on.
    """
    record = read_json(folder / _RECORD)
    known: Mapping[str, str] = record["files"]
    branches: Branches = {}
    for branch, place in record["branches"].items():
        top = f"{place}/" if place else ""
        names = [name.removeprefix(top) for name in known if name.startswith(top)]
        branches[branch] = folder / place, names
    cards = [name for name in known if name.endswith(CARD)]
    edited = [name for name in cards if sha256(folder / name) != known[name]]
    for card in {branches[MAIN][0] / CARD, *(folder / name for name in edited)}:
        _check_card(config, card.read_text())
    _say_what_is_pushed(config, branches)
    others = {file.relative_to(folder).as_posix() for file in files_below(folder)}
    if others := others - {_RECORD, *known}:
        say(f"  Left out, as convert did not write it: {', '.join(sorted(others))}")
    if edited:
        say(f"  Edited since convert wrote it: {', '.join(edited)}")
    if not config.push_confirm:
        if not (sys.stdin and sys.stdin.isatty()):
            raise UserError(
                f"Nothing was pushed, and {folder} is kept: run the same command with "
                "--config.push_confirm=True to push what is listed above."
            )
        say("Push this? [y/N] ", end="")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say(f"Nothing was pushed; {folder} is kept.")
            return
    _send(config, branches)


def _say_what_is_pushed(config: ConvertConfig, branches: Branches) -> None:
    """Lists the repository, its branches, and their files with sizes."""
    import huggingface_hub
    from huggingface_hub import constants

    name, info, there = _repository(config), _model_info(config), set()
    if info:
        with _explained(config):
            refs = huggingface_hub.HfApi().list_repo_refs(name)
            there = {branch.name for branch in refs.branches}
    private = info.private if info else config.push_private
    licence = config.push_license or "not said (config.push_license)"
    language = ",".join(config.push_language) or "not said (config.push_language)"
    say(
        f"To {constants.ENDPOINT}/{name}, "
        f"{'which exists' if info else 'a new repository'}, "
        f"{'private' if private else 'PUBLIC'}; "
        f"licence {licence}, language {language}:"
    )
    for branch, (place, names) in branches.items():
        state = "whose files of these names are REPLACED" if branch in there else "new"
        sizes = {each: (place / each).stat().length for each in names}
        listed = ", ".join(f"{each} ({size:,} bytes)" for each, size in sizes.items())
        say(f"  branch {branch} ({state}), from {place}: {listed}")


def _send(config: ConvertConfig, branches: Branches) -> None:
    """Pushes branches, main last: it is whole only once all of them are."""
    import huggingface_hub

    api, name = huggingface_hub.HfApi(), _repository(config)
    with _explained(config):
        api.create_repo(name, private=config.push_private, exist_ok=True)
        # Empty, so that a branch never holds the weights of another step.
        start = api.list_repo_commits(name)[-1].commit_id
        for branch, (place, names) in branches.items():
            if branch != MAIN:
                api.create_branch(name, branch=branch, revision=start, exist_ok=True)
            done = api.upload_folder(
                repo_id=name,
                revision=branch,
                folder_path=os.fspath(place),
                allow_patterns=[glob.escape(each) for each in names],
                commit_message="Export of gpt1_jax: "
                + (place.name if len(branches) > 1 else "the model"),
            )
            say(f"Branch {branch} is commit {done.oid[:12]}.")
    at = "" if len(branches) == 1 else "[@BRANCH]"
    say(f"hf://{name}{at} is the model to name in --config.init_from.")


@contextlib.contextmanager
def _explained(config: ConvertConfig) -> Iterator[None]:
    """Raises errors of the Hub's client as one line with a way out.

    The block asks the Hub and reads its answers, which may be odd.
    """
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except KeyboardInterrupt as signal:
        raise Stopped("interrupted while pushing; what has arrived stays.") from signal
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (*FULL, errno.EACCES):
            raise  # of this machine
        while isinstance(error, RuntimeError) and isinstance(
            error.__cause__, Exception
        ):
            error = error.__cause__  # the client's, around that of one file
        status = getattr(getattr(error, "response", None), "status_code", None)
        odd = isinstance(error, TypeError | LookupError | AttributeError | ValueError)
        kind: type[Exception] = UserError
        why = f": the Hub refuses ({describe(error)}). {_AGAIN}"
        if isinstance(error, errors.RepositoryNotFoundError):
            why = (
                f" is not there, or the token may not see it; {_TOKEN}, with one that "
                "may write there."
            )
        elif status in (401, 403):
            why = (
                f" is refused ({status}): the token may not write there; {_TOKEN}, "
                "with one that may."
            )
        elif odd and status is None:
            found = f"{type(error).__name__}: {describe(error)}"
            kind, why = TryAgain, f": the Hub's answer is odd ({found}). {_AGAIN}"
        elif is_unreachable(error):
            kind = TryAgain
            why = f": the Hub does not answer ({describe(error)}). {_AGAIN}"
        raise kind(f"config.push_to={config.push_to!r}{why}") from error
