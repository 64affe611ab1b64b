"""Reads trajectories from tables, compares them, and trains them again.

`interop/trajectory.py` describes a run in such a table, which exports carry.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.errors import UserError
from gpt1_jax.formats import EXPORT, VERIFICATION
from gpt1_jax.parallel.mesh import state_sharding
from gpt1_jax.runs.checkpoints import read_state
from gpt1_jax.training.fit import Run, batches_on_devices

# Digests, names and numbers in a table, which anyone may have written.
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # neither hidden nor elsewhere
_STEP = re.compile(r"[0-9]{1,18}")
_LARGEST = 1e18


def read_trajectory(file: epath.Path) -> dict[str, Any]:
    """The trajectory in a file, as `describe_trajectory` has it.

    Raises:
      UserError: if the file holds anything else, or is of another format.
    """
    table = read_json(file)
    EXPORT.check(table, file)
    _check_table(file, table)
    names = [said.get("name") for said in table["steps"].values()]
    if None in names or len(set(names)) < len(names):
        raise UserError(
            f"{file} is no table of a trajectory: each step must have its own name."
        )
    return table


def read_trajectories(file: epath.Path) -> list[dict[str, Any]]:
    """The trajectories in a `trajectory.json`, or in the output of the job `verify`.

    In the latter, steps have no "name" and no "learning_rate_sum".

    Raises:
      UserError: if the file holds anything else, or folders that were not verified.
    """
    found = read_json(file)
    if "folders" not in found:
        return [read_trajectory(file)]
    VERIFICATION.check(found, file)
    members = found["folders"]
    if not isinstance(members, list) or not members:
        raise UserError(f"{file} lists no folder, so nothing can be compared with it.")
    tables = [_verified_table(member) for member in members]
    for table in tables:
        _check_table(file, table)
    return tables


def _verified_table(member: Any) -> dict[str, Any]:
    """The trajectory of a verified folder; empty if it is not one."""
    match member:
        case {"problems": [], "steps": [*rows]}:
            known = ("params_digest", "valid_loss", "files")
            steps = {
                str(row.get("step")): {key: row[key] for key in known if key in row}
                for row in rows
                if isinstance(row, Mapping) and not row.get("deleted")
            }
            return {"tokenizer": None, "text": None, **member, "steps": steps}
    return {}


def _check_table(file: epath.Path, table: Mapping[str, Any]) -> None:
    """Refuses all but the table of a trajectory; checks the type of each value."""
    match table:
        case {
            "kind": str(kind),
            "seed": int(),
            "tokenizer": tokenizer,
            "steps": dict(steps),
            **more,
        } if kind.isidentifier() and all(
            each is None or _is_digest(each) for each in (tokenizer, more.get("text"))
        ):
            wrong = [step for step, said in steps.items() if not _is_step(step, said)]
            if not wrong:
                return
            problem = (
                f"what it says of step {wrong[0]!a:.40} is not what an export says"
            )
        case _:
            problem = "it lacks a kind, a seed, a tokenizer or steps"
    raise UserError(
        f"{file} is no table of a trajectory: {problem}. Export the run again with "
        "configs/convert.py."
    )


def _is_step(step: str, said: Any) -> bool:
    """Whether a table may say this of a step."""
    if not isinstance(said, Mapping):
        return False
    numbers = (said.get("valid_loss"), said.get("learning_rate_sum"))
    read, files = said.get("text_read"), said.get("files", {})
    return (
        _STEP.fullmatch(step) is not None
        and _is_name(said.get("name", "step"))
        and _is_digest(said.get("params_digest"))
        and all(number is None or _is_number(number) for number in numbers)
        and (read is None or isinstance(read, dict))
        and all(map(_is_number, (read or {}).values()))
        and isinstance(files, dict)
        and all(all(map(_is_name, name.split("/"))) for name in files)
        and all(map(_is_digest, files.values()))
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_number(value: Any) -> bool:
    """Whether a value is a number that can be shown; no NaN."""
    return type(value) in (int, float) and abs(value) < _LARGEST


def differing_facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys, in order, whose values differ between two tables or two steps.

    Keys that one of them lacks, or has as None, do not count. Numbers may be rounded
    differently.
    """

    def differ(a: Any, b: Any) -> bool:
        if type(a) is float or type(b) is float:
            return not math.isclose(a, b, rel_tol=1e-6)
        return bool(a != b)

    return [
        key
        for key, value in one.items()
        if None not in (value, other.get(key)) and differ(value, other[key])
    ]


def train_again(run: Run, first_step: int, last_step: int) -> Any:
    """Trains from a saved state, as the run did; writes nothing.

    Args:
      run: the run, prepared.
      first_step: the saved step to start from.
      last_step: the step to stop at.

    Returns:
      The parameters after `last_step`, a tree of numpy arrays.

    Raises:
      FileNotFoundError, UserError: as `read_state`.
    """
    computation = run.computation
    state = jax.device_put(
        read_state(run.folder, first_step, computation.shapes),
        state_sharding(computation.mesh, computation.shapes),
    )
    batches = batches_on_devices(run, first_step)
    for _ in range(first_step, last_step):
        state, _ = computation.step(state, next(batches), jnp.uint32(computation.seed))
    return jax.device_get(state.params)


def distance(one: Any, other: Any) -> float:
    """The Euclidean norm of the difference between two trees of parameters."""
    squares = jax.tree.map(
        lambda a, b: np.square(np.asarray(a, np.float64) - b).sum(), one, other
    )
    return float(np.sqrt(sum(jax.tree.leaves(squares))))
