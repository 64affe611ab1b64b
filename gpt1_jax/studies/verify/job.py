"""The verification job: do saved states come from the training that they claim?

For a run folder, states are compared with what was saved beside them; for an exported
folder, with the table that it carries (`interop/trajectory.py`). Whoever changes states
can change either, so that only shows that a folder is whole. Losses and training that
are computed again, or a table that is kept elsewhere, show more; the last sentence says
which of them a verdict rests on.
"""

import dataclasses
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.saved import load_values
from gpt1_jax.data.files import files_below, is_remote, locate, sha256, write_json
from gpt1_jax.data.tokenizers import Tokenizer, load_tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.formats import VERIFICATION
from gpt1_jax.interop import hugging_face, openai
from gpt1_jax.interop.trajectory import TRAJECTORY_FILE, describe_trajectory
from gpt1_jax.jobs.pretrain import prepare_run
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import state_sharding
from gpt1_jax.report.markdown import counted, markdown_table
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
    NoCheckpoint,
    newest_metadata,
    read_scores,
    saved_steps,
)
from gpt1_jax.runs.checkpoints import SavedParams, read_params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.milestones import read_milestone
from gpt1_jax.runs.open import TrainedRun, check_sizes
from gpt1_jax.runs.outputs import check_output_file, say_wrote
from gpt1_jax.runs.pretrained import Pretrained, read_pretrained
from gpt1_jax.runs.resume import refuse_changes, tree_digest
from gpt1_jax.runs.run_folder import find_folders
from gpt1_jax.studies.verify.config import VerifyConfig
from gpt1_jax.studies.verify.trajectory import (
    differing_facts,
    distance,
    read_trajectories,
    read_trajectory,
    train_again,
)
from gpt1_jax.training.fit import Run

# Recomputed results on another machine, or with other kernels, differ by less.
_LOSS_TOLERANCE = 1e-3  # nats per token
_PARAMS_TOLERANCE = 0.05  # share of the distance that the parameters moved
_SHORT = 12  # digits of a digest in the table
# What reads the model of an exported step, by the file that marks its folder.
_READERS: Mapping[str, Callable[[epath.Path], Any]] = {
    hugging_face.CONFIG_FILE: hugging_face.read_model,
    openai.SHAPES_FILE: openai.read_shards,
}
# Nothing reads files with these endings beside a model, but for a tokenizer's.
_NOTES = (".log", ".out", ".err", ".md", ".txt")
_TOKENIZER_NOTES = ("merges.txt", "vocab.txt")
_LARGEST_JSON = 1 << 28  # bytes
# What is known of a training, and of one of its steps.
_OF_TRAINING = ("kind", "seed", "tokenizer", "text")
_OF_STEP = ("valid_loss", "text_read", "learning_rate_sum", "files")

Row = dict[str, Any]  # a saved state: "step", "name", "problems" and its other facts


def run(config: VerifyConfig, workdir: str) -> None:
    """Checks runs and exports, each to its end, and says what is wrong with them.

    Args:
      config: the folders, and what to compute again.
      workdir: must be empty; the tables are printed, or go to `config.output` too.

    Raises:
      FileNotFoundError: if a folder is missing, or holds neither a run nor an export.
      UserError: if anything is wrong, naming the folders in which it is.
    """
    config.check_workdir(workdir)
    if config.output:
        output = locate(config.output)
        check_output_file(output, "--config.output=FILE", config.table)
    tables = read_trajectories(locate(config.table)) if config.table else []
    members = []
    here = os.path.join(os.getcwd(), "")
    for folder in [each for name in config.folders for each in _find_members(name)]:
        name = os.fspath(folder).removeprefix(here)
        member: dict[str, Any] = {"folder": name, "steps": [], "problems": []}
        try:
            _refuse_irregular(folder)
            is_export = (folder / TRAJECTORY_FILE).exists()
            member |= _check_export(folder) if is_export else _check_run(config, folder)
        except (UserError, OSError) as error:
            member["problems"].append(str(error))
        if tables and member["steps"]:
            member["problems"] += _compare(member, tables, config.table)
        for row in member["steps"]:
            member["problems"] += [f"{row['name']}: {each}" for each in row["problems"]]
        members.append(member)
        say(_describe(member))
    if config.output:
        write_json(locate(config.output), {**VERIFICATION.stamp(), "folders": members})
        say_wrote(config.output)
    wrong = [member["folder"] for member in members if member["problems"]]
    if wrong:
        raise UserError(
            f"NOT verified: {len(wrong)} of {counted(len(members), 'folder')}: "
            f"{', '.join(wrong)}. The problems are listed above."
        )
    say(_conclusion(members, config.table))


def _find_members(name: str) -> list[epath.Path]:
    """The run folders and exports in a folder and below it, in order.

    An export of several steps is one member; so is a step that lies alone.
    """
    top = run_folder.locate_run(name)
    if not top.is_dir():
        raise FileNotFoundError(f"config.runs={name!r}: there is no such folder.")
    found: list[epath.Path] = []
    for folder in find_folders(top):
        marks = (TRAJECTORY_FILE, "checkpoints", "damaged_checkpoints")
        inside = any(str(folder).startswith(f"{above}/") for above in found)
        if not inside and any((folder / mark).exists() for mark in marks):
            found.append(folder)
    if not found:
        raise FileNotFoundError(
            f"{top} holds neither a run with checkpoints nor an export with "
            f"{TRAJECTORY_FILE}; name the folder of one with --config.runs=DIR."
        )
    return found


def _refuse_irregular(folder: epath.Path) -> None:
    """Refuses files that could never end, before anything is read.

    Links count as their targets. Hidden files, such as those of git, and the user's own
    files in a run folder are neither read nor looked at.

    Raises:
      UserError: naming a pipe or a device, or a file that is too large.
    """
    if is_remote(folder):
        return
    is_run = not (folder / TRAJECTORY_FILE).exists()
    seen: set[str] = set()  # a link may lead to a folder around it
    for parent, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        read = {each for each in (*folders, *files) if not each.startswith(".")}
        if is_run and parent == os.fspath(folder):
            read &= run_folder.NAMES
        folders[:] = [
            each
            for each in read.intersection(folders)
            if os.path.realpath(os.path.join(parent, each)) not in seen
        ]
        for each in read.intersection(files):
            _refuse_file(os.path.join(parent, each))


def _refuse_file(path: str) -> None:
    try:
        status = os.stat(path)
    except OSError:  # deleted meanwhile, or a link to nowhere, which cannot be read
        return
    if not stat.S_ISREG(status.st_mode):
        kind = "a pipe" if stat.S_ISFIFO(status.st_mode) else "a device or a socket"
        raise UserError(
            f"{path} is {kind}, and reading it may never end; remove it, or make a "
            "copy without it and name that."
        )
    most = devices.host_memory_bytes()
    if path.endswith(".json"):
        most = min(most, _LARGEST_JSON)
    if status.st_size > most:
        raise UserError(
            f"{path} has {status.st_size:,} bytes; at most {most:,} are read of such a "
            "file here."
        )


def _add_state(row: Row, params: Params, said: Mapping[str, Any]) -> None:
    """Adds the digest of a state's parameters to its row, and what was saved of it.

    Args:
      row: the state's own.
      params: the language model's parameters.
      said: the record of the step, as in `describe_trajectory`.
    """
    row |= {key: said[key] for key in _OF_STEP if key in said}
    row["params_digest"] = digest = tree_digest(params)
    if not said["params_digest"]:
        row["problems"].append("was saved without a digest of its parameters")
    elif said["params_digest"] != digest:
        row["problems"].append(
            f"holds parameters with digest {digest[:_SHORT]}, not "
            f"{said['params_digest'][:_SHORT]}, with which it was saved"
        )


# --- run folders ----------------------------------------------------------------------


def _check_run(config: VerifyConfig, folder: epath.Path) -> dict[str, Any]:
    """Checks all saved steps of a run.

    Returns:
      "kind", "seed", "tokenizer", "text", "steps", the "problems" of the folder itself,
      and what `_compute_again` adds.
    """
    run = read_pretrained(folder)
    if run is None:
        raise UserError("not a pre-training run; only these are verified")
    tokenizer = load_tokenizer(folder / "tokenizer")
    about: dict[str, Any] = {"kind": run.config.model.kind, "seed": run.config.seed}
    about |= {"tokenizer": tokenizer.digest, "text": None}
    rows: list[Row] = []
    read: list[Mapping[str, Any]] = []  # metadata
    steps = saved_steps(folder)
    for step in steps:
        row: Row = {"step": step, "name": f"step {step}", "problems": []}
        try:
            saved = read_params(folder, step)
            found = describe_trajectory(run, {step: saved.metadata})
            row["milestone"] = read_milestone(saved.metadata) is not None
        except NoCheckpoint:
            _say_deleted(folder, step)
            continue
        except (UserError, OSError) as error:
            rows.append({**row, "problems": [str(error)]})
            continue
        _add_state(row, saved.params, found["steps"][str(step)])
        about["text"] = about["text"] or found["text"]
        row["problems"] += [
            f"was saved with another {key} than the run's"
            for key in differing_facts(about, found)
        ]
        row["problems"] += _contradictions(run, tokenizer, saved, row["valid_loss"])
        rows.append(row)
        read.append(saved.metadata)
    problems = [] if rows else ["it holds no saved step"]
    if len(read) == len(steps):
        problems += _missing(read)
    again = {}
    if config.losses or config.retrain_step:
        try:
            again = _compute_again(config, run, rows)
        except (UserError, OSError) as error:
            problems.append(f"nothing could be computed again: {error}")
    return {**about, "steps": rows, "problems": problems, **again}


def _say_deleted(folder: epath.Path, step: int) -> None:
    say(f"Step {step} of {folder} was deleted meanwhile, and is left out.")


def _contradictions(
    run: Pretrained, tokenizer: Tokenizer, saved: SavedParams, loss: float | None
) -> Iterator[str]:
    """Contradictions between a saved step and the run, or within the step."""
    step, metadata, model = saved.step, saved.metadata, run.model
    if (index := metadata.get("data", {}).get("next_index")) != step:
        yield f"holds the state of step {index!r:.40}"
    try:
        refuse_changes(metadata.get("config", {}), run.config.to_dict(), "it")
        check_sizes(
            TrainedRun(run.folder, run.config, tokenizer, model, step, "", saved.params)
        )
    except UserError as error:
        yield str(error)
    score = read_scores(run.folder, step).get(LOWEST_LOSS)
    if None not in (loss, score) and loss != score:
        yield f"has validation loss {score} beside its state, {loss} in metrics.jsonl"


def _missing(saved: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The milestones between others that the run does not hold.

    A run may get other milestones when it resumes, so only those count that are in the
    configurations of all saved states, whose metadata is `saved`.
    """
    held = {each.amount for each in map(read_milestone, saved) if each}
    try:
        configs = [load_values(metadata.get("config", {})) for metadata in saved]
    except UserError:  # which is said of its state
        return
    planned = []
    for config in configs:
        if isinstance(config, PretrainConfig):
            unit, amounts = config.checkpoint.milestones
            planned.append({(unit, amount) for amount in amounts})
    for unit, amount in sorted(set.intersection(*planned)) if planned else ():
        if min(held, default=0) < amount < max(held, default=0) and amount not in held:
            name = f"step {amount}" if unit == "steps" else f"{amount:,} {unit}"
            yield f"{name} is missing, a milestone"


def _compute_again(
    config: VerifyConfig, run: Pretrained, rows: Sequence[Row]
) -> dict[str, Any]:
    """Computes validation losses, and trains, again; adds what differs to the rows.

    Returns:
      "trained_again" of `_train_again`, if it was asked for.
    """
    sound = {row["step"]: row for row in rows if not row["problems"]}
    if not sound:
        raise UserError("no saved step is sound")
    ends = _training_steps(config, sound) if config.retrain_step else None
    settings = dataclasses.replace(
        run.config,
        data=config.data.applied_to(run.config.data),
        eval=dataclasses.replace(run.config.eval, sample_tokens=0),
    )
    devices.configure(settings.train.matmul_precision, settings.train.compilation_cache)
    prepared, *_ = prepare_run(settings, run.folder, None)
    prepared.identity.check(newest_metadata(run.folder), run.folder)
    scored = [step for step, row in sound.items() if row["valid_loss"] is not None]
    count = min(config.losses, len(scored))  # spread from the last to the first
    for place in np.linspace(len(scored) - 1, 0, count).round():
        step = scored[int(place)]
        try:
            _validate(prepared, sound[step])
        except NoCheckpoint:
            _say_deleted(run.folder, step)
    return _train_again(prepared, sound, *ends) if ends else {}


def _training_steps(config: VerifyConfig, sound: Mapping[int, Row]) -> tuple[int, int]:
    """The saved step to train from, and the milestone after it."""
    first = int(config.retrain_step)
    milestones = [step for step, row in sound.items() if row["milestone"]]
    later = [step for step in milestones if step > first]
    if first in sound and later:
        return first, min(later)
    possible = sorted(step for step in sound if step < max(milestones, default=-1))
    raise UserError(
        f"config.retrain_step={config.retrain_step!r} must be a sound saved step with "
        f"a sound milestone after it; those are {possible}."
    )


def _validate(run: Run, row: Row) -> None:
    """Computes the validation loss of a saved step again."""
    params = read_params(run.folder, row["step"]).params
    mesh, shapes = run.computation.mesh, run.computation.shapes
    placed = jax.device_put(params, state_sharding(mesh, shapes).params)
    metrics = run.evaluation.evaluate(placed, row["step"], lambda: False) or {}
    row["valid_loss_again"] = again = metrics["valid_loss"]
    if not abs(again - row["valid_loss"]) <= _LOSS_TOLERANCE:
        row["problems"].append(
            f"has validation loss {again:.4f}, not {row['valid_loss']:.4f} as in "
            "metrics.jsonl"
        )


def _train_again(
    run: Run, sound: Mapping[int, Row], first: int, last: int
) -> dict[str, Any]:
    """Trains from a saved step to a later one, and compares the results.

    Returns:
      "trained_again": "from" and "to", a step each, "bit_for_bit", and "difference" of
      the parameters as a share of the distance that they moved.
    """
    say(f"Training from step {first} to step {last} again.")
    params = train_again(run, first, last)
    row = sound[last]
    start, end = (read_params(run.folder, step).params for step in (first, last))
    moved, off = distance(start, end), distance(params, end)
    share = off / moved if moved else off
    if not share <= _PARAMS_TOLERANCE:
        row["problems"].append(
            f"trained again from step {first}, the parameters differ by {share:.1%} of "
            "the distance that they moved"
        )
    same = tree_digest(params) == row["params_digest"]
    again = {"from": first, "to": last, "bit_for_bit": same, "difference": share}
    return {"trained_again": again}


# --- exports --------------------------------------------------------------------------


def _check_export(folder: epath.Path) -> dict[str, Any]:
    """Checks an exported step, or all that were exported together.

    Returns:
      As `_check_run`, and "exported": "one" or "all".
    """
    table = read_trajectory(folder / TRAJECTORY_FILE)
    about = {key: table.get(key) for key in _OF_TRAINING}
    exported = {step: said for step, said in table["steps"].items() if "files" in said}
    if not exported:
        return {**about, "steps": [], "problems": ["its table lists no exported step"]}
    own = sha256(folder / TRAJECTORY_FILE)  # each step's folder has a copy
    if _is_model(folder):
        step = _find_step(folder, exported)
        rows = [_check_step(folder, step, exported[step], own)]
        names = {said["name"]: number for number, said in table["steps"].items()}
        if names.get(folder.name, step) != step:
            problem = f"holds the state of step {step}, {exported[step]['name']}"
            rows[0]["problems"].append(problem)
        return {**about, "exported": "one", "steps": rows, "problems": []}
    rows = [
        _check_step(folder / said["name"], step, said, own)
        for step, said in exported.items()
    ]
    listed = {row["name"] for row in rows}
    problems = [
        f"{place.name}: {TRAJECTORY_FILE} lists no files of it"
        for place in sorted(folder.iterdir())
        if place.name not in listed and place.name[0] != "." and _is_model(place)
    ]
    return {**about, "exported": "all", "steps": rows, "problems": problems}


def _is_model(folder: epath.Path) -> bool:
    return any((folder / name).exists() for name in _READERS)


def _find_step(folder: epath.Path, exported: Mapping[str, Any]) -> str:
    """The step of a table whose files a folder holds, or most of them."""
    found = _file_digests(folder)

    def unlike(step: str) -> tuple[int, bool]:
        said = exported[step]
        changes = [*_changed_files(found, said["files"])]
        return len(changes), said["name"] != folder.name

    return min(exported, key=unlike)


def _check_step(
    folder: epath.Path, step: str, said: Mapping[str, Any], own: str
) -> Row:
    """Checks the folder of an exported step against its record in a table.

    Args:
      folder: the folder.
      step: the step that it must hold.
      said: the record.
      own: the digest of the table, of which the folder has a copy.
    """
    row: Row = {"step": int(step), "name": folder.name, "problems": []}
    if not folder.is_dir():
        row["problems"].append(f"is missing, and {TRAJECTORY_FILE} lists its files")
        return row
    files = {**said["files"], TRAJECTORY_FILE: own}
    row["problems"] += _changed_files(_file_digests(folder), files)
    try:
        _add_state(row, _read_exported(folder), said)
    except (UserError, OSError) as error:
        row["problems"] += [] if row["problems"] else [str(error)]
    return row


def _file_digests(folder: epath.Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder and below it, but for hidden ones."""
    names = [file.relative_to(folder).as_posix() for file in files_below(folder)]
    return {
        name: sha256(folder / name)
        for name in sorted(names)
        if not any(part.startswith(".") for part in name.split("/"))
    }


def _changed_files(found: Mapping[str, str], files: Mapping[str, str]) -> Iterator[str]:
    """How the files that are found differ from those that a table lists.

    Both are digests by name.
    """
    for name, digest in files.items():
        if name not in found:
            yield f"{name} is missing"
        elif found[name] != digest:
            yield f"{name} differs from what was exported"
    for name in sorted(found.keys() - files.keys()):
        if not name.endswith(_NOTES) or name.endswith(_TOKENIZER_NOTES):
            yield f"{name} was added"


def _read_exported(folder: epath.Path) -> Params:
    """The parameters in an exported folder."""
    for file, read in _READERS.items():
        if (folder / file).exists():
            return read(folder)[1]
    raise UserError(f"holds no model: it has neither {' nor '.join(_READERS)}")


# --- a table kept elsewhere -----------------------------------------------------------


def _compare(
    member: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], name: str
) -> list[str]:
    """Adds to the rows of a member where they differ from the table of its training.

    Of the tables in the file `name`, that is the one with the most of its states.

    Returns:
      The problems of the folder itself.
    """
    rows = {str(row["step"]): row for row in member["steps"]}

    def agreeing(table: Mapping[str, Any]) -> int:
        pairs = [(table["steps"].get(step, {}), row) for step, row in rows.items()]
        key = "params_digest"
        return sum(key in row and row[key] == there.get(key) for there, row in pairs)

    table = max(tables, key=agreeing)
    if not agreeing(table):
        return [f"none of its states is in {name}, so it is of another training"]
    whole_export = member.get("exported") == "all"
    for step, row in rows.items():
        there = dict(table["steps"].get(step, {}))
        if not whole_export:
            there.pop("name", None)  # that of the export
        differing = differing_facts(row, there)
        row["problems"] += [f"has another {key} in {name}" for key in differing]
        row["problems"] += [] if there else [f"is not in {name}"]
    named = {key: member[key] for key in _OF_TRAINING}
    problems = [
        f"has {key} {named[key]!r:.16}, not {table[key]!r:.16} as in {name}"
        for key in differing_facts(named, table)
    ]
    if whole_export:
        problems += [
            f"step {step} is missing, and {name} lists its files"
            for step, there in table["steps"].items()
            if "files" in there and step not in rows
        ]
    return problems


# --- display --------------------------------------------------------------------------


def _describe(member: Mapping[str, Any]) -> str:
    """A table of the states in a folder, and their problems."""
    kind, seed = member.get("kind"), member.get("seed")
    lines = [member["folder"] + (f" ({kind}, seed {seed})" if kind else "")]
    losses = {"valid_loss": "validation loss", "valid_loss_again": "computed again"}
    header = ["state", "files and parameters", "digest", *losses.values()]
    rows = [
        [
            row["name"] + (f", step {row['step']}" if "files" in row else ""),
            "WRONG" if row["problems"] else "as saved",
            row.get("params_digest", "")[:_SHORT],
            *("" if row.get(key) is None else f"{row[key]:.4f}" for key in losses),
        ]
        for row in member["steps"]
    ]
    if rows:
        lines.append(markdown_table(header, rows, text_columns=3))
    if again := member.get("trained_again"):
        near = again["difference"] <= _PARAMS_TOLERANCE
        how = "nearly the same" if near else "not the same"
        how = "the same bit for bit" if again["bit_for_bit"] else how
        lines.append(
            f"Trained from step {again['from']} to step {again['to']} again: {how} "
            f"(the difference is {again['difference']:.2g} of the distance moved)."
        )
    lines += [f"WRONG: {problem}" for problem in member["problems"]]
    return "\n".join(lines) + "\n"


def _conclusion(members: Sequence[Mapping[str, Any]], table: str) -> str:
    """Says what is verified, and what was recomputed for it."""
    rows = [row for each in members for row in each["steps"]]
    losses = sum("valid_loss_again" in row for row in rows)
    trained = sum("trained_again" in each for each in members)
    elsewhere = f", and against {table}" if table else ""
    return (
        f"Verified: {counted(len(members), 'folder')} with "
        f"{counted(len(rows), 'saved state')}, against the folders' own records, which "
        f"can be changed together with the states{elsewhere}. Computed again: the "
        "digests of files, tokenizers and parameters, the validation losses of "
        f"{counted(losses, 'state')} and the training after {counted(trained, 'state')}"
        ". All else was only compared."
    )
