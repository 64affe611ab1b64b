"""The verification job: are saved states those of the training they are said to be of?

For a run folder, everything is compared with what was saved beside the states; for an
exported folder, with the table that it carries (`training/trajectory.py`). What only
informs, such as how far the parameters have moved, is displayed and decides nothing.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from gpt1_jax.config import VerifyConfig
from gpt1_jax.config.pretrain import MILESTONE_UNITS
from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import locate, sha256, write_json
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.interop import hugging_face, openai
from gpt1_jax.jobs.convert import HUGGING_FACE, TOKENIZER_FOLDER, find_format
from gpt1_jax.jobs.pretrain import prepare_run
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import state_sharding
from gpt1_jax.report.markdown import counted, markdown_table
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.checkpoint_files import (
    newest_metadata,
    read_metadata,
    saved_steps,
)
from gpt1_jax.runs.checkpoints import read_params
from gpt1_jax.runs.console import say, say_wrote
from gpt1_jax.runs.milestones import Milestone, read_milestone, saved_milestones
from gpt1_jax.runs.past_runs import Pretrained, find_folders, read_pretrained
from gpt1_jax.runs.resume import refuse_changes, tree_digest
from gpt1_jax.training.fit import Run
from gpt1_jax.training.trajectory import (
    TRAJECTORY_FILE,
    describe_trajectory,
    distance,
    train_again,
)

# What is computed again on another machine, or with other kernels, differs by less.
_LOSS_TOLERANCE = 1e-3  # nats per token
_PARAMS_TOLERANCE = 0.05  # of the distance that the parameters moved
_SHORT = 12  # digits of a digest in the table
# Where one of these is, the model of one exported step is.
_MODEL_FILES = (run_folder.CONFIG_FILE, openai.SHAPES_FILE)


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
        run_folder.check_output_file(locate(config.output), "--config.output=FILE")
    folders = [each for name in config.folders for each in _find_members(name)]
    members = []
    for folder in folders:
        try:
            is_export = (folder / TRAJECTORY_FILE).exists()
            member = _check_export(folder) if is_export else _check_run(config, folder)
        except (UserError, OSError) as error:
            member = _member(folder, [], [str(error)])
        members.append(member)
        say(_describe(member))
    if config.output:
        write_json(locate(config.output), {"folders": members})
        say_wrote(config.output)
    wrong = [member["folder"] for member in members if member["problems"]]
    if wrong:
        raise UserError(
            f"NOT verified: {len(wrong)} of {counted(len(members), 'folder')}: "
            f"{', '.join(wrong)}. What is wrong is above."
        )
    num_states = sum(len(member["steps"]) for member in members)
    say(
        f"Verified: {counted(len(members), 'folder')} with "
        f"{counted(num_states, 'saved state')}."
    )


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


def _member(
    folder: epath.Path,
    steps: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What was found in a folder, as JSON values.

    Args:
      folder: the run folder or export.
      steps: for each saved step "step", "name", "problems" and what is known of it.
      problems: what is wrong with the folder itself.
      about: "kind", "seed" and what else is known of the run.
    """
    in_steps = [
        f"{row['name']}: {problem}" for row in steps for problem in row["problems"]
    ]
    return {
        "folder": _from_here(folder),
        **(about or {}),
        "steps": list(steps),
        "problems": [*problems, *in_steps],
    }


def _from_here(folder: epath.Path) -> str:
    """A folder as the user may have named it: relative if it lies below."""
    here = os.path.join(os.getcwd(), "")
    return os.fspath(folder).removeprefix(here)


class _States:
    """The states of one training that were read so far, in order."""

    def __init__(self) -> None:
        self._ends: tuple[Params, Params] | None = None  # the first and the last read
        self._seen: dict[str, Mapping[str, Any]] = {}

    def compare(
        self, row: dict[str, Any], params: Params, said: Mapping[str, Any]
    ) -> None:
        """Adds to a row its digest, how far its parameters moved and what is wrong.

        Args:
          row: of the step.
          params: the language model's.
          said: what was saved about the step: see `describe_trajectory`.
        """
        row["params_digest"] = digest = tree_digest(params)
        if said["params_digest"] not in (None, digest):
            row["problems"].append(
                f"holds parameters with digest {digest[:_SHORT]}, not "
                f"{said['params_digest'][:_SHORT]}, with which it was saved"
            )
        first, before = self._ends or (params, params)
        row["from_first"] = distance(first, params)
        row["from_before"] = distance(before, params)
        self._ends = first, params
        same = self._seen.setdefault(digest, {**said, "name": row["name"]})
        rates = same["learning_rate_sum"], said["learning_rate_sum"]
        if same["name"] != row["name"] and (None in rates or rates[0] != rates[1]):
            row["problems"].append(f"holds the same parameters as {same['name']}")


# --- run folders ----------------------------------------------------------------------


def _check_run(config: VerifyConfig, folder: epath.Path) -> dict[str, Any]:
    """Checks all saved steps of a run."""
    run = read_pretrained(folder)
    if run is None:
        raise UserError("not a pre-training run; only these are verified")
    tokenizer = load_tokenizer(folder / "tokenizer").digest
    steps = saved_steps(folder)
    problems = list(_missing(run, steps))
    if not steps:
        problems.append("it holds no saved step")
    rows: list[dict[str, Any]] = []
    states = _States()
    about: dict[str, Any] = {"kind": run.config.model.kind, "seed": run.config.seed}
    text = None
    for step in steps:
        row: dict[str, Any] = {"step": step, "name": f"step {step}", "problems": []}
        rows.append(row)
        try:
            saved = read_params(folder, step)
        except (UserError, OSError) as error:
            row["problems"].append(str(error))
            continue
        trajectory = describe_trajectory(run, {step: saved.metadata})
        text = text or trajectory["text"]
        row["problems"] += _contradictions(run, step, saved.metadata)
        if trajectory["tokenizer"] != tokenizer:
            row["problems"].append("was saved with another tokenizer than the run's")
        if trajectory["text"] != text:
            row["problems"].append("was saved with another text than the first step")
        said = trajectory["steps"][str(step)]
        row["valid_loss"] = said["valid_loss"]
        states.compare(row, saved.params, said)
    if config.losses or config.retrain_step:
        try:
            about |= _compute_again(config, run, rows)
        except (UserError, OSError) as error:
            problems.append(f"nothing could be computed again: {error}")
    return _member(folder, rows, problems, about)


def _missing(run: Pretrained, steps: Sequence[int]) -> Iterator[str]:
    """The milestones that the run must have passed and does not hold."""
    read: dict[str, Any] = {}
    kept = {Milestone(step, "steps") for step in steps}
    for step in steps:
        # What cannot be read is said of its state.
        with contextlib.suppress(UserError, TypeError, ValueError):
            metadata = read_metadata(run.folder, step)
            read.update(metadata.get("text_read", {}))
            if milestone := read_milestone(metadata):
                kept.add(milestone)
    read["steps"] = newest = max(steps, default=-1)
    # What starts with another run's optimizer does not save the state that it takes.
    taken_over = run.taken_over / max(1, newest) if run.taken_over else -1
    for unit in MILESTONE_UNITS:
        last = read.get(unit)
        for amount in getattr(run.config.checkpoint, f"milestone_{unit}"):
            passed = isinstance(last, int) and taken_over * last < amount <= last
            if passed and Milestone(amount, unit) not in kept:
                name = f"step {amount}" if unit == "steps" else f"{amount:,} {unit}"
                yield f"{name} is missing, a milestone"


def _contradictions(
    run: Pretrained, step: int, metadata: Mapping[str, Any]
) -> Iterator[str]:
    """Where the metadata of a step does not go with the run."""
    index = metadata.get("data", {}).get("next_index")
    if index != step:
        yield f"holds the state of step {index}"
    try:
        refuse_changes(
            metadata.get("config", {}), run.config.to_dict(), "it", by_content=True
        )
    except UserError as error:
        yield str(error)


def _compute_again(
    config: VerifyConfig, run: Pretrained, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Computes validation losses, and trains, again; adds what differs to the rows.

    Returns:
      Empty, or "trained_again": "from" and "to", a step each, "bit_for_bit", and
      "difference" of the parameters as a share of the distance that they moved.
    """
    sound = {row["step"]: row for row in rows if not row["problems"]}
    ends = _training_steps(config, run, sound) if config.retrain_step else None
    settings = dataclasses.replace(
        run.config,
        data=config.data.applied_to(run.config.data),
        eval=dataclasses.replace(run.config.eval, sample_tokens=0),
    )
    devices.configure(settings.train.matmul_precision, settings.train.compilation_cache)
    prepared, *_ = prepare_run(settings, run.folder, None)
    prepared.identity.check(newest_metadata(run.folder), run.folder)
    scored = [step for step, row in sound.items() if row["valid_loss"] is not None]
    for step in _spread(scored, config.losses):
        _validate(prepared, sound[step])
    return _train_again(prepared, sound, *ends) if ends else {}


def _training_steps(
    config: VerifyConfig, run: Pretrained, sound: Mapping[int, Any]
) -> tuple[int, int]:
    """The saved step to train from, and the milestone after it."""
    first = int(config.retrain_step)
    later = [step for step in saved_milestones(run.folder) if step > first]
    last = min(later, default=-1)
    if first in sound and last in sound:
        return first, last
    raise UserError(
        f"config.retrain_step={config.retrain_step!r} must be a sound saved step with "
        f"a sound milestone after it; those are {sorted(sound)}."
    )


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """So many of some steps, from the last to the first, evenly spaced."""
    places = np.linspace(len(steps) - 1, 0, min(count, len(steps))).round()
    return [steps[int(place)] for place in places]


def _validate(run: Run, row: dict[str, Any]) -> None:
    """Computes the validation loss of a saved step again."""
    params = read_params(run.folder, row["step"]).params
    placed = jax.device_put(params, state_sharding(run.mesh, run.shapes).params)
    metrics = run.evaluate(placed, row["step"], lambda: False) or {}
    row["valid_loss_again"] = again = metrics["valid_loss"]
    if not abs(again - row["valid_loss"]) <= _LOSS_TOLERANCE:
        row["problems"].append(
            f"has validation loss {again:.4f}, not {row['valid_loss']:.4f} as in "
            "metrics.jsonl"
        )


def _train_again(
    run: Run, sound: Mapping[int, dict[str, Any]], first: int, last: int
) -> dict[str, Any]:
    """Trains from a saved step to a later one, and compares what comes out."""
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
    """Checks an exported step, or all that were exported together."""
    table = _read_table(folder)
    about = {"kind": table["kind"], "seed": table["seed"]}
    states = _States()
    if any((folder / name).exists() for name in _MODEL_FILES):
        return _member(folder, [_check_step(folder, table, states, None)], [], about)
    exported = [step for step, said in table["steps"].items() if "files" in said]
    rows = []
    for step in exported:
        place = folder / table["steps"][step]["name"]
        row = _check_step(place, table, states, step)
        if place.is_dir() and _read_table(place) != table:
            row["problems"].append(f"carries another {TRAJECTORY_FILE}")
        rows.append(row)
    problems = [] if exported else ["its table lists no exported step"]
    return _member(folder, rows, problems, about)


def _read_table(folder: epath.Path) -> dict[str, Any]:
    """The trajectory that an export carries."""
    file = folder / TRAJECTORY_FILE
    if not file.exists():
        return {}
    table = read_json(file)
    try:
        for step, said in table["steps"].items():
            int(step)
            said["params_digest"], said["learning_rate_sum"], said["valid_loss"]
            for name in (said["name"], *dict(said.get("files", {}))):
                if name.startswith("/") or ".." in name.split("/"):
                    raise ValueError(f"{name!r} lies elsewhere")
        table["kind"], table["seed"], table["tokenizer"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{file} is no table of a trajectory ({type(error).__name__}: {error}); "
            "export the run again with configs/convert.py."
        ) from error
    return table


def _check_step(
    folder: epath.Path, table: Mapping[str, Any], states: _States, step: str | None
) -> dict[str, Any]:
    """Checks the folder of an exported step.

    Args:
      folder: the folder.
      table: the trajectory.
      states: the states read before.
      step: the step that it must hold; None: any of the table, told by its parameters.
    """
    row: dict[str, Any] = {"step": None, "name": folder.name, "problems": []}
    try:
        found = find_format(folder)
        read = hugging_face.read_model if found == HUGGING_FACE else openai.read_shards
        _, params = read(folder)
        tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER).digest
    except (UserError, OSError) as error:
        row["step"] = step and int(step)
        row["problems"].append(str(error))
        return row
    if tokenizer != table["tokenizer"]:
        row["problems"].append("has another tokenizer than the run")
    step = step or _find_step(folder, tree_digest(params), table)
    if step is None:
        row["problems"].append(
            f"holds parameters with digest {tree_digest(params)[:_SHORT]}, which are "
            f"none of the states in {TRAJECTORY_FILE}"
        )
        return row
    said = table["steps"][step]
    row |= {"step": int(step), "valid_loss": said["valid_loss"]}
    names = {each["name"]: number for number, each in table["steps"].items()}
    if names.get(folder.name, step) != step:
        row["problems"].append(f"holds the state of step {step}, {said['name']}")
    states.compare(row, params, said)
    for name, digest in said.get("files", {}).items():
        if not (folder / name).exists():
            row["problems"].append(f"{name} is missing")
        elif sha256(folder / name) != digest:
            row["problems"].append(f"{name} differs from what was exported")
    return row


def _find_step(folder: epath.Path, digest: str, table: Mapping[str, Any]) -> str | None:
    """The step of a table whose parameters have a digest; the folder's own at best."""
    alike = [s for s, said in table["steps"].items() if said["params_digest"] == digest]
    own = [step for step in alike if table["steps"][step]["name"] == folder.name]
    return next(iter([*own, *alike]), None)


# --- what is displayed ----------------------------------------------------------------


def _describe(member: Mapping[str, Any]) -> str:
    """A table of the states in a folder, and what is wrong with them."""
    kind, seed = member.get("kind"), member.get("seed")
    title = member["folder"] + (f" ({kind}, seed {seed})" if kind else "")
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
    lines = [title, markdown_table(header, rows, text_columns=3)] if rows else [title]
    if again := member.get("trained_again"):
        how = "bit for bit" if again["bit_for_bit"] else "nearly"
        lines.append(
            f"Trained from step {again['from']} to step {again['to']} again: {how} the "
            f"same (the difference is {again['difference']:.2g} of the distance moved)."
        )
    lines += [f"WRONG: {problem}" for problem in member["problems"]]
    return "\n".join(lines) + "\n"


def _name(row: Mapping[str, Any]) -> str:
    """The name of a state, with its step."""
    step = f"step {row['step']}"
    return row["name"] if row["name"] == step else f"{row['name']}, {step}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
