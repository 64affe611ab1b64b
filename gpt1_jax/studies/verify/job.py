"""The verification job: do saved states come from the training that they claim?

For a run folder, states are compared with what was saved beside them; for an exported
folder, with the table that it carries (`interop/trajectory.py`). Whoever changes states
can change either, so that only shows that a folder is whole. Losses and training that
are computed again, or a table that is kept elsewhere, show more; the last sentence says
which of them a verdict rests on. How far the parameters have moved decides nothing.
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
from gpt1_jax.interop.foreign import TOKENIZER_FOLDER
from gpt1_jax.interop.trajectory import TRAJECTORY_FILE, describe_trajectory
from gpt1_jax.jobs.pretrain import prepare_run
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import state_sharding
from gpt1_jax.report.markdown import counted, markdown_table
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
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
_KINDS_OF_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

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
    for folder in [each for name in config.folders for each in _find_members(name)]:
        member: dict[str, Any] = {"folder": _from_here(folder), "steps": []}
        problems: list[str] = []
        try:
            _refuse_irregular(folder)
            is_export = (folder / TRAJECTORY_FILE).exists()
            checked = _check_export(folder) if is_export else _check_run(config, folder)
            problems += checked.pop("problems")
            member |= checked
        except (UserError, OSError) as error:
            problems.append(str(error))
        if tables and member["steps"]:
            problems += _compare(member, tables, config.table)
        for row in member["steps"]:
            problems += [f"{row['name']}: {each}" for each in row["problems"]]
        members.append({**member, "problems": problems})
        say(_describe(members[-1]))
    if config.output:
        write_json(locate(config.output), {**VERIFICATION.stamp(), "folders": members})
        say_wrote(config.output)
    wrong = [member["folder"] for member in members if member["problems"]]
    if wrong:
        raise UserError(
            f"NOT verified: {len(wrong)} of {counted(len(members), 'folder')}: "
            f"{', '.join(wrong)}. What is wrong is above."
        )
    say(_conclusion(members, config.table))


def _find_members(name: str) -> Iterator[epath.Path]:
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
    yield from found


def _refuse_irregular(folder: epath.Path) -> None:
    """Refuses files that could never end, before anything is read.

    Links are as good as what they lead to. Hidden files, such as those of git, and what
    the user has put into a run folder are not read and not looked at.

    Raises:
      UserError: naming a pipe or a device, or a file that is too large.
    """
    if is_remote(folder):
        return
    is_run = not (folder / TRAJECTORY_FILE).exists()
    seen: set[str] = set()  # a link may lead to a folder around it
    for parent, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        read = [each for each in (*folders, *names) if not each.startswith(".")]
        if is_run and parent == os.fspath(folder):
            read = [each for each in read if each in run_folder.NAMES]
        paths = [os.path.join(parent, each) for each in read]
        folders[:] = [
            each
            for each, path in zip(read, paths, strict=True)
            if each in folders and os.path.realpath(path) not in seen
        ]
        for path in paths:
            _refuse_file(path)


def _refuse_file(path: str) -> None:
    try:
        status = os.stat(path)
    except OSError:  # deleted meanwhile, or a link to nowhere, which cannot be read
        return
    if kind := _KINDS_OF_FILES.get(stat.S_IFMT(status.st_mode)):
        raise UserError(
            f"{path} is {kind}, and reading it may never end; remove it, or make a "
            "copy without it and name that."
        )
    most = devices.host_memory_bytes()
    if path.endswith(".json"):
        most = min(most, _LARGEST_JSON)
    if stat.S_ISREG(status.st_mode) and status.st_size > most:
        raise UserError(
            f"{path} has {status.st_size:,} bytes, more than the {most:,} that are "
            "read of such a file here."
        )


def _from_here(folder: epath.Path) -> str:
    """A folder as the user may have named it: relative if it lies below."""
    here = os.path.join(os.getcwd(), "")
    return os.fspath(folder).removeprefix(here)


class _States:
    """The states of one training, in the order in which they are read."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._ends: tuple[Params, Params] | None = None  # the first and the last read

    def add(self, row: Row, params: Params, said: Mapping[str, Any]) -> None:
        """Adds a row, with its digest, the distances moved and what is wrong with it.

        Args:
          row: the state's own.
          params: the language model's parameters.
          said: the record saved about the step, as in `describe_trajectory`.
        """
        row["params_digest"] = digest = tree_digest(params)
        row["learning_rate_sum"] = rate = said.get("learning_rate_sum")
        if not said["params_digest"]:
            row["problems"].append("was saved without a digest of its parameters")
        elif said["params_digest"] != digest:
            row["problems"].append(
                f"holds parameters with digest {digest[:_SHORT]}, not "
                f"{said['params_digest'][:_SHORT]}, with which it was saved"
            )
        alike = [each for each in self.rows if each.get("params_digest") == digest]
        if alike and (rate is None or alike[0]["learning_rate_sum"] != rate):
            row["problems"].append(f"holds the same parameters as {alike[0]['name']}")
        first, before = self._ends or (params, params)
        row["from_first"] = distance(first, params)
        row["from_before"] = distance(before, params)
        self._ends = first, params
        self.rows.append(row)


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
    states, text, problems = _States(), None, []
    read: list[Mapping[str, Any]] = []  # metadata
    steps = saved_steps(folder)
    for step in steps:
        row: Row = {"step": step, "name": f"step {step}", "problems": []}
        try:
            saved = read_params(folder, step)
            trajectory = describe_trajectory(run, {step: saved.metadata})
            row["milestone"] = read_milestone(saved.metadata) is not None
            said = trajectory["steps"][str(step)]
            row["problems"] += _contradictions(run, tokenizer, saved, said)
        except Exception as error:
            if _say_if_deleted(folder, step):
                continue
            if not isinstance(error, UserError | OSError):
                raise
            states.rows.append({**row, "problems": [str(error)]})
            continue
        if row["problems"] and _say_if_deleted(folder, step):
            continue
        text = text or trajectory["text"]
        if trajectory["text"] != text:
            row["problems"].append("was saved with another text than the first step")
        row |= {key: said[key] for key in ("valid_loss", "text_read")}
        states.add(row, saved.params, said)
        read.append(saved.metadata)
    if not states.rows:
        problems.append("it holds no saved step")
    elif len(read) == len(steps):
        problems += _missing(read)
    again = {}
    if config.losses or config.retrain_step:
        try:
            again = _compute_again(config, run, states.rows)
        except (UserError, OSError) as error:
            problems.append(f"nothing could be computed again: {error}")
    about = {"kind": run.config.model.kind, "seed": run.config.seed}
    about |= {"tokenizer": tokenizer.digest, "text": text, "steps": states.rows}
    return {**about, "problems": problems, **again}


def _say_if_deleted(folder: epath.Path, step: int) -> bool:
    """Whether the training has deleted a step meanwhile, with a line that says so."""
    deleted = step not in saved_steps(folder)
    if deleted:
        say(f"Step {step} of {folder} was deleted meanwhile, and is left out.")
    return deleted


def _contradictions(
    run: Pretrained, tokenizer: Tokenizer, saved: SavedParams, said: Mapping[str, Any]
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
    if metadata.get("tokenizer") != tokenizer.digest:
        yield "was saved with another tokenizer than the run's"
    loss, score = said["valid_loss"], read_scores(run.folder, step).get(LOWEST_LOSS)
    if None not in (loss, score) and loss != score:
        yield f"has validation loss {score} beside its state, {loss} in metrics.jsonl"


def _missing(saved: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The milestones between others that the run does not hold.

    A run may get other milestones when it resumes, so only those count that are in the
    configurations of all saved states.

    Args:
      saved: the metadata of all saved states.
    """
    held = {each.amount for each in map(read_milestone, saved) if each}
    planned = []
    for metadata in saved:
        try:
            config = load_values(metadata.get("config", {}))
        except UserError:  # which is said of its state
            return
        if not isinstance(config, PretrainConfig):
            return
        unit, amounts = config.checkpoint.milestones
        planned.append({(unit, amount) for amount in amounts})
    for unit, amount in sorted(set.intersection(*planned)):
        if min(held, default=0) < amount < max(held, default=0) and amount not in held:
            name = f"step {amount}" if unit == "steps" else f"{amount:,} {unit}"
            yield f"{name} is missing, a milestone"


def _compute_again(
    config: VerifyConfig, run: Pretrained, rows: Sequence[Row]
) -> dict[str, Any]:
    """Computes validation losses, and trains, again; adds what differs to the rows.

    Returns:
      If it has trained, "trained_again": "from" and "to", a step each, "bit_for_bit",
      and "difference" of the parameters as a share of the distance that they moved.
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
        except (UserError, OSError):
            if not _say_if_deleted(run.folder, step):
                raise
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
    """Trains from a saved step to a later one, and compares the results."""
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
    about = {key: table.get(key) for key in ("kind", "seed", "tokenizer", "text")}
    exported = {step: said for step, said in table["steps"].items() if "files" in said}
    if not exported:
        return {**about, "steps": [], "problems": ["its table lists no exported step"]}
    states = _States()
    if _is_model(folder):
        _check_step(states, folder, table, _find_step(folder, exported))
        return {**about, "exported": "one", "steps": states.rows, "problems": []}
    own = sha256(folder / TRAJECTORY_FILE)
    for step, said in exported.items():
        _check_step(states, folder / said["name"], table, step)
        copy = folder / said["name"] / TRAJECTORY_FILE
        if copy.parent.is_dir() and not (copy.exists() and sha256(copy) == own):
            states.rows[-1]["problems"].append(f"carries another {TRAJECTORY_FILE}")
    listed = {row["name"] for row in states.rows}
    problems = [
        f"{place.name}: {TRAJECTORY_FILE} lists no files of it"
        for place in sorted(folder.iterdir())
        if place.name not in listed and place.name[0] != "." and _is_model(place)
    ]
    return {**about, "exported": "all", "steps": states.rows, "problems": problems}


def _is_model(folder: epath.Path) -> bool:
    return any((folder / name).exists() for name in _READERS)


def _find_step(folder: epath.Path, exported: Mapping[str, Any]) -> str:
    """The step of a table whose files a folder holds, or most of them."""
    found = _file_digests(folder)

    def unlike(step: str) -> tuple[int, bool]:
        said = exported[step]
        return len([*_changed_files(found, said["files"])]), said["name"] != folder.name

    return min(exported, key=unlike)


def _check_step(
    states: _States, folder: epath.Path, table: Mapping[str, Any], step: str
) -> None:
    """Checks the folder of an exported step, and adds its row.

    Args:
      states: those of the steps before.
      folder: the folder.
      table: the trajectory.
      step: the step that it must hold.
    """
    said = table["steps"][step]
    problems = [f"is missing, and {TRAJECTORY_FILE} lists its files"]
    if folder.is_dir():
        problems = [*_changed_files(_file_digests(folder), said["files"])]
    row: Row = {"step": int(step), "name": folder.name, "problems": problems}
    known = ("valid_loss", "learning_rate_sum", "text_read", "files")
    row |= {key: said[key] for key in known if key in said}
    try:
        tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER).digest
        params = _read_exported(folder)
    except (UserError, OSError) as error:
        problems += [] if problems else [str(error)]
        states.rows.append(row)
        return
    if tokenizer != table["tokenizer"]:
        problems.append("has another tokenizer than the run")
    names = {each["name"]: number for number, each in table["steps"].items()}
    if names.get(folder.name, step) != step:
        problems.append(f"holds the state of step {step}, {said['name']}")
    states.add(row, params, said)


def _file_digests(folder: epath.Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder and below it, but for hidden ones."""
    names = [file.relative_to(folder).as_posix() for file in files_below(folder)]
    return {
        name: sha256(folder / name)
        for name in sorted(names)
        if not any(part.startswith(".") for part in name.split("/"))
    }


def _changed_files(found: Mapping[str, str], files: Mapping[str, str]) -> Iterator[str]:
    """How the files of an exported folder differ from those that a table lists.

    Args:
      found: the digests of those that are there, by name.
      files: those of the table.
    """
    for name, digest in files.items():
        if name not in found:
            yield f"{name} is missing"
        elif found[name] != digest:
            yield f"{name} differs from what was exported"
    for name in sorted(found.keys() - files.keys() - {TRAJECTORY_FILE}):
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

    Args:
      member: the folder, as `_check_run` and `_check_export` return it.
      tables: the tables in the file; the one with the most of the member's states is
        that of its training.
      name: the file's name.

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
    named = {key: member[key] for key in ("kind", "seed", "tokenizer", "text")}
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
    header = ["state", "files and parameters", "digest", "from the first"]
    header += ["from the one before", "validation loss", "computed again"]
    rows = [
        [
            _name(row),
            "WRONG" if row["problems"] else "as saved",
            row.get("params_digest", "")[:_SHORT],
            *(_number(row.get(key), 3) for key in ("from_first", "from_before")),
            *(_number(row.get(key), 4) for key in ("valid_loss", "valid_loss_again")),
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


def _name(row: Row) -> str:
    """The name of a state, with its step."""
    step = f"step {row['step']}"
    return row["name"] if row["name"] == step else f"{row['name']}, {step}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


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
