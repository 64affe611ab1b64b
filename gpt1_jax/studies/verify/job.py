"""The verification job: do saved states come from the training that they claim?

For a run folder, everything is compared with what was saved beside the states; for an
exported folder, with the table that it carries (`interop/trajectory.py`). Whoever
changes states can change either, so that only shows that a folder is whole. Losses and
training that are computed again, or a table that is kept elsewhere, show more; the last
sentence says which of them a verdict rests on. Other facts, such as how far the
parameters have moved, are displayed and decide nothing.
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
from gpt1_jax.config.saved import load_values, read_json
from gpt1_jax.data.files import files_below, is_remote, locate, sha256, write_json
from gpt1_jax.data.shards import SplitCounts
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
    read_metadata,
    read_scores,
    saved_steps,
)
from gpt1_jax.runs.checkpoints import SavedParams, read_params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.milestones import (
    Milestone,
    Milestones,
    read_milestone,
    schedule_milestones,
)
from gpt1_jax.runs.open import TrainedRun, check_sizes
from gpt1_jax.runs.outputs import check_output_file, say_wrote
from gpt1_jax.runs.pretrained import Pretrained, read_pretrained
from gpt1_jax.runs.resume import (
    DOCUMENTS_FILE,
    differing_documents,
    refuse_changes,
    tree_digest,
)
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
# A folder with one of these files holds the model of one exported step.
_MODEL_FILES = (hugging_face.CONFIG_FILE, openai.SHAPES_FILE)
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
    folders = [each for name in config.folders for each in _find_members(name)]
    members = []
    for folder in folders:
        try:
            _refuse_irregular(folder)
            is_export = (folder / TRAJECTORY_FILE).exists()
            member = _check_export(folder) if is_export else _check_run(config, folder)
        except (UserError, OSError) as error:
            member = _member(folder, [], [str(error)])
        if tables and member["steps"]:
            _compare(member, tables, config.table)
        members.append(member)
        say(_describe(member))
    if config.output:
        table = {**VERIFICATION.stamp(), "folders": members}
        write_json(locate(config.output), table)
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


def _member(
    folder: epath.Path,
    steps: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The findings on a folder, as JSON values.

    Args:
      folder: the run folder or export.
      steps: for each saved step "step", "name", "problems" and its other facts.
      problems: the problems of the folder itself.
      about: "kind", "seed" and other facts about the run.
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
        """Adds to a row its digest, the distance its parameters moved and its problems.

        Args:
          row: the step's row.
          params: the language model's parameters.
          said: the record saved about the step, as in `describe_trajectory`.
        """
        row["params_digest"] = digest = tree_digest(params)
        if not said["params_digest"]:
            row["problems"].append("was saved without a digest of its parameters")
        elif said["params_digest"] != digest:
            row["problems"].append(
                f"holds parameters with digest {digest[:_SHORT]}, not "
                f"{said['params_digest'][:_SHORT]}, with which it was saved"
            )
        first, before = self._ends or (params, params)
        row["from_first"] = distance(first, params)
        row["from_before"] = distance(before, params)
        self._ends = first, params
        same = self._seen.setdefault(digest, {**said, "name": row["name"]})
        rates = same.get("learning_rate_sum"), said.get("learning_rate_sum")
        if same["name"] != row["name"] and (None in rates or rates[0] != rates[1]):
            row["problems"].append(f"holds the same parameters as {same['name']}")


# --- run folders ----------------------------------------------------------------------


def _check_run(config: VerifyConfig, folder: epath.Path) -> dict[str, Any]:
    """Checks all saved steps of a run."""
    run = read_pretrained(folder)
    if run is None:
        raise UserError("not a pre-training run; only these are verified")
    tokenizer = load_tokenizer(folder / "tokenizer")
    steps = saved_steps(folder)
    problems = list(_missing(run, steps))
    if not steps:
        problems.append("it holds no saved step")
    rows: list[dict[str, Any]] = []
    states = _States()
    about: dict[str, Any] = {
        "kind": run.config.model.kind,
        "seed": run.config.seed,
        "tokenizer": tokenizer.digest,
        "text": None,
    }
    for step in steps:
        row: dict[str, Any] = {"step": step, "name": f"step {step}", "problems": []}
        rows.append(row)
        saved = None
        try:
            saved = read_params(folder, step)
            trajectory = describe_trajectory(run, {step: saved.metadata})
            said = trajectory["steps"][str(step)]
            row["milestone"] = read_milestone(saved.metadata) is not None
            row["problems"] += _contradictions(run, tokenizer, saved, said)
        except Exception as error:
            known = isinstance(error, UserError | OSError)
            if not known and step in saved_steps(folder):
                raise
            row["problems"].append(str(error))
            saved = None
        if row["problems"] and step not in saved_steps(folder):
            row |= {"deleted": True, "problems": []}
            continue
        if saved is None:
            continue
        about["text"] = about["text"] or trajectory["text"]
        if trajectory["text"] != about["text"]:
            row["problems"].append("was saved with another text than the first step")
        row |= {"valid_loss": said["valid_loss"], "text_read": said["text_read"]}
        states.compare(row, saved.params, said)
    if config.losses or config.retrain_step:
        try:
            about |= _compute_again(config, run, rows)
        except (UserError, OSError) as error:
            problems.append(f"nothing could be computed again: {error}")
    return _member(folder, rows, problems, about)


def _text_size(run: Pretrained) -> SplitCounts | None:
    """Tokens and words of the training text; None if they are not recorded."""
    match [session["text"] for session in run.sessions[-1:]]:
        case [{"tokens": int(tokens), "words": int(words)}] if tokens > 0 <= words:
            return SplitCounts(0, tokens, words, 0)
    return None


def _milestones(run: Pretrained, config: PretrainConfig | None) -> Milestones | None:
    """The milestones of a run with a configuration; None if they are not known."""
    unit, amounts = config.checkpoint.milestones if config else ("", ())
    size = _text_size(run) or (SplitCounts(0, 1, 1, 0) if unit != "words" else None)
    if not (config and size and run.num_steps):
        return None
    return schedule_milestones(unit, amounts, run.tokens_per_step, size, run.num_steps)


def _saved_config(metadata: Mapping[str, Any]) -> PretrainConfig | None:
    """The configuration that a step was saved with; None if it cannot be read."""
    try:
        config = load_values(metadata.get("config", {}))
    except (ValueError, RecursionError):
        return None
    return config if isinstance(config, PretrainConfig) else None


def _missing(run: Pretrained, steps: Sequence[int]) -> Iterator[str]:
    """The milestones that the run must have passed and does not hold.

    A run may get other milestones when it resumes. A milestone was kept if the saved
    states before and after its step both name it.
    """
    named: dict[int, Mapping[int, Milestone]] = {}  # by step, the milestones of its run
    for step in steps:
        try:
            config = _saved_config(read_metadata(run.folder, step))
        except UserError:  # reported with its state
            continue
        if milestones := _milestones(run, config):
            named[step] = milestones.by_step
    if now := _milestones(run, run.config):
        named.setdefault(run.step + 1, now.by_step)
    # A state is evaluated once it is saved, and so are those before it.
    last = max([*steps, *run.series(LOWEST_LOSS.metric)[0]], default=-1)
    # A run that takes over an optimizer does not save the state that it starts from.
    first = run.taken_over + 1 if run.taken_over else 0
    for step in sorted({each for by_step in named.values() for each in by_step}):
        before = [named[each] for each in sorted(named) if each < step][-1:]
        after = [named[each] for each in sorted(named) if each >= step][:1]
        always = all(step in by_step for by_step in (*before, *after))
        if always and first <= step <= last and step not in steps:
            amount, unit = (*before, *after)[0][step]
            name = f"step {amount}" if unit == "steps" else f"{amount:,} {unit}"
            yield f"{name} is missing, a milestone"


def _contradictions(
    run: Pretrained,
    tokenizer: Tokenizer,
    saved: SavedParams,
    said: Mapping[str, Any],
) -> Iterator[str]:
    """Contradictions between a saved step and the run, or within the step."""
    step, metadata, model = saved.step, saved.metadata, run.model
    index = metadata.get("data", {}).get("next_index")
    if index != step:
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
    if index != step:
        return  # the rest is not the step's either
    milestones = _milestones(run, _saved_config(metadata))
    expected = milestones.metadata(step) if milestones else metadata
    keys = ("text_read", "milestone") if _text_size(run) else ("milestone",)
    for key in keys:
        if key in metadata and metadata[key] != expected.get(key):
            yield (
                f"says {key}={metadata[key]!r:.60}, not {expected.get(key)!r:.60} as "
                f"this run's step {step} has it"
            )
    loss, score = said["valid_loss"], read_scores(run.folder, step).get(LOWEST_LOSS)
    if None not in (loss, score) and loss != score:
        yield f"has validation loss {score} beside its state, {loss} in metrics.jsonl"


def _compute_again(
    config: VerifyConfig, run: Pretrained, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Computes validation losses, and trains, again; adds what differs to the rows.

    Returns:
      "text_again": True, and if it has trained "trained_again": "from" and "to", a step
      each, "bit_for_bit", and "difference" of the parameters as a share of the distance
      that they moved.
    """
    there = set(saved_steps(run.folder))  # the run may be training, and deletes some
    sound = {
        row["step"]: row
        for row in rows
        if row["step"] in there and "params_digest" in row and not row["problems"]
    }
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
    _check_documents(prepared)
    scored = [step for step, row in sound.items() if row["valid_loss"] is not None]
    for step in _spread(scored, config.losses):
        try:
            _validate(prepared, sound[step])
        except (UserError, OSError):
            if step in saved_steps(run.folder):
                raise
            sound[step]["deleted"] = True
    trained = _train_again(prepared, sound, *ends) if ends else {}
    return {"text_again": True, **trained}


def _check_documents(run: Run) -> None:
    """Refuses a list of documents that does not match the text's own."""
    file, now = run.folder / DOCUMENTS_FILE, run.identity.documents
    saved = read_json(file) if now and file.exists() else {}
    if saved and list(saved.values()) != list(now.values()):
        raise UserError(
            f"{file} is not of the text that the run has read: "
            f"{differing_documents(saved, now)[0]}"
        )


def _training_steps(config: VerifyConfig, sound: Mapping[int, Any]) -> tuple[int, int]:
    """The saved step to train from, and the milestone after it."""
    first = int(config.retrain_step)
    milestones = [step for step, row in sound.items() if row["milestone"]]
    last = min((step for step in milestones if step > first), default=-1)
    if first in sound and last in sound:
        return first, last
    possible = sorted(step for step in sound if step < max(milestones, default=-1))
    raise UserError(
        f"config.retrain_step={config.retrain_step!r} must be a sound saved step with "
        "a sound milestone after it; "
        + (f"those are {possible}." if possible else "there is none.")
    )


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """Picks `count` of some steps, from the last to the first, evenly spaced."""
    places = np.linspace(len(steps) - 1, 0, min(count, len(steps))).round()
    return [steps[int(place)] for place in places]


def _validate(run: Run, row: dict[str, Any]) -> None:
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
    run: Run, sound: Mapping[int, dict[str, Any]], first: int, last: int
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
    """Checks an exported step, or all that were exported together."""
    table = read_trajectory(folder / TRAJECTORY_FILE)
    keys = ("kind", "seed", "tokenizer", "text")
    about = {key: table.get(key) for key in keys}
    states = _States()
    if any((folder / name).exists() for name in _MODEL_FILES):
        step = _find_step(folder, table)
        row = _check_step(folder, table, states, step)
        return _member(folder, [row], [], {**about, "exported": "one"})
    exported = [step for step, said in table["steps"].items() if "files" in said]
    rows = []
    for step in exported:
        place = folder / table["steps"][step]["name"]
        row = _check_step(place, table, states, step)
        if place.is_dir() and not _carries(place, table):
            row["problems"].append(f"carries another {TRAJECTORY_FILE}")
        rows.append(row)
    problems = [] if exported else ["its table lists no exported step"]
    listed = {row["name"] for row in rows}
    problems += [
        f"{place.name}: {TRAJECTORY_FILE} lists no files of it"
        for place in sorted(folder.iterdir())
        if place.name not in listed
        and place.name[0] != "."
        and any((place / name).exists() for name in _MODEL_FILES)
    ]
    return _member(folder, rows, problems, {**about, "exported": "all"})


def _carries(folder: epath.Path, table: Mapping[str, Any]) -> bool:
    """Whether the folder of a step has a copy of the table."""
    try:
        return read_json(folder / TRAJECTORY_FILE) == table
    except UserError:
        return False


def _check_step(
    folder: epath.Path, table: Mapping[str, Any], states: _States, step: str
) -> dict[str, Any]:
    """Checks the folder of an exported step.

    Args:
      folder: the folder.
      table: the trajectory.
      states: the states read before.
      step: the step that it must hold.
    """
    said = table["steps"][step]
    problems = [*_changed_files(folder, said.get("files", {}))]
    row = {"step": int(step), "name": folder.name, "problems": problems}
    known = ("valid_loss", "learning_rate_sum", "text_read", "files")
    row |= {key: said[key] for key in known if key in said}
    try:
        tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER).digest
        params = _read_exported(folder)
    except (UserError, OSError) as error:
        problems += [] if problems else [str(error)]
        return row
    if tokenizer != table["tokenizer"]:
        row["problems"].append("has another tokenizer than the run")
    names = {each["name"]: number for number, each in table["steps"].items()}
    if names.get(folder.name, step) != step:
        row["problems"].append(f"holds the state of step {step}, {said['name']}")
    states.compare(row, params, said)
    return row


def _changed_files(folder: epath.Path, files: Mapping[str, str]) -> Iterator[str]:
    """How the files in an exported folder differ from those that a table lists."""
    if not folder.is_dir():
        yield f"is missing, and {TRAJECTORY_FILE} lists its files"
        return
    if not files:
        yield f"{TRAJECTORY_FILE} lists no files of it"
        return
    for name, digest in files.items():
        if not (folder / name).is_file():
            yield f"{name} is missing"
        elif sha256(folder / name) != digest:
            yield f"{name} differs from what was exported"
    for file in sorted(files_below(folder)):
        name = file.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        is_note = file.suffix in _NOTES and file.name not in _TOKENIZER_NOTES
        known = name in files or file.name == TRAJECTORY_FILE
        if not (hidden or is_note or known):
            yield f"{name} was added"


def _read_exported(folder: epath.Path) -> Params:
    """The parameters in an exported folder."""
    readers: tuple[Callable[[epath.Path], Any], ...] = (
        hugging_face.read_model,
        openai.read_shards,
    )
    for file, read in zip(_MODEL_FILES, readers, strict=True):
        if (folder / file).exists():
            return read(folder)[1]
    raise UserError(f"holds no model: it has neither {' nor '.join(_MODEL_FILES)}")


def _find_step(folder: epath.Path, table: Mapping[str, Any]) -> str:
    """The step of a table that a folder holds, told by its parameters.

    If several have the same, as before and after an update with learning rate 0, it is
    that of the folder's name, or else the one whose files are in the folder.

    Raises:
      UserError: if it is none of them.
    """
    digest = tree_digest(_read_exported(folder))
    alike = {s: v for s, v in table["steps"].items() if v["params_digest"] == digest}
    if not alike:
        raise UserError(
            f"holds parameters with digest {digest[:_SHORT]}, which are none of the "
            f"states in {TRAJECTORY_FILE}"
        )

    def likelihood(step: str) -> tuple[bool, int]:
        said = alike[step]
        files = said.get("files", {})
        return said["name"] == folder.name, -len([*_changed_files(folder, files)])

    return max(alike, key=likelihood) if len(alike) > 1 else next(iter(alike))


# --- a table kept elsewhere -----------------------------------------------------------


def _compare(
    member: dict[str, Any], tables: Sequence[Mapping[str, Any]], name: str
) -> None:
    """Adds to a member where it differs from the table of its training.

    Args:
      member: from `_member`.
      tables: the tables in the file; the one with the most of the member's states is
        that of its training.
      name: the file's name.
    """
    rows = {str(row["step"]): row for row in member["steps"] if not row.get("deleted")}

    def agreeing(table: Mapping[str, Any]) -> int:
        pairs = [(table["steps"].get(step, {}), row) for step, row in rows.items()]
        key = "params_digest"
        return sum(key in row and row[key] == there.get(key) for there, row in pairs)

    table = max(tables, key=agreeing)
    if not agreeing(table):
        member["problems"].append(
            f"none of its states is in {name}, so it is of another training"
        )
        return
    named = {key: member[key] for key in ("kind", "seed", "tokenizer", "text")}
    member["problems"] += [
        f"has {key} {named[key]!r:.16}, not {table[key]!r:.16} as in {name}"
        for key in differing_facts(named, table)
    ]
    for step, row in rows.items():
        there = dict(table["steps"].get(step, {}))
        if member.get("exported") != "all":
            there.pop("name", None)  # that of the export
        found = [f"has another {key} in {name}" for key in differing_facts(row, there)]
        found += [] if there else [f"is not in {name}"]
        row["problems"] += found
        member["problems"] += [f"{row['name']}: {problem}" for problem in found]
    if member.get("exported") == "all":
        member["problems"] += [
            f"step {step} is missing, and {name} lists its files"
            for step, there in table["steps"].items()
            if "files" in there and step not in rows
        ]


# --- display --------------------------------------------------------------------------


def _describe(member: Mapping[str, Any]) -> str:
    """A table of the states in a folder, and their problems."""
    kind, seed = member.get("kind"), member.get("seed")
    title = member["folder"] + (f" ({kind}, seed {seed})" if kind else "")
    header = ["state", "files and parameters", "digest", "from the first"]
    header += ["from the one before", "validation loss", "computed again"]
    rows = [
        [
            _name(row),
            _verdict(row),
            row.get("params_digest", "")[:_SHORT],
            *(_number(row.get(key), 3) for key in ("from_first", "from_before")),
            *(_number(row.get(key), 4) for key in ("valid_loss", "valid_loss_again")),
        ]
        for row in member["steps"]
    ]
    lines = [title, markdown_table(header, rows, text_columns=3)] if rows else [title]
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


def _verdict(row: Mapping[str, Any]) -> str:
    if row.get("deleted"):
        return "deleted while it was read"
    return "WRONG" if row["problems"] else "as saved"


def _conclusion(members: Sequence[Mapping[str, Any]], table: str) -> str:
    """Says what is verified, what was recomputed for it, and what was only compared."""
    rows = [row for each in members for row in each["steps"] if not row.get("deleted")]
    again = sum("valid_loss_again" in row for row in rows)
    left = sum(row.get("valid_loss") is not None for row in rows) - again
    trained = [each["trained_again"] for each in members if "trained_again" in each]
    read_text = all(each.get("text_again") for each in members)

    digests = "files, tokenizers, texts" if read_text else "files, tokenizers"
    training = f"{len(trained)} stretches of training" if trained else "no training"
    if len(trained) == 1:
        training = f"the training from step {trained[0]['from']} to {trained[0]['to']}"
    compared = [
        *([_losses(left)] if left else []),
        *(["configurations"] if any("exported" not in m for m in members) else []),
        *([] if read_text else ["texts"]),
        "seeds and amounts of text",
    ]
    elsewhere = f", and against {table}" if table else ""
    return (
        f"Verified: {counted(len(members), 'folder')} with "
        f"{counted(len(rows), 'saved state')}, against the folders' own records, which "
        f"can be changed together with the states{elsewhere}. The digests of {digests} "
        f"and parameters, {_losses(again)} and {training} were computed again; "
        f"{', '.join(compared)} were only compared."
    )


def _losses(number: int) -> str:
    return f"{number or 'no'} validation {'loss' if number == 1 else 'losses'}"


def _name(row: Mapping[str, Any]) -> str:
    """The name of a state, with its step."""
    step = f"step {row['step']}"
    return row["name"] if row["name"] == step else f"{row['name']}, {step}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
