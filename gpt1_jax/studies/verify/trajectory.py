"""Reads tables of trajectories, compares them, and trains a stretch of one again.

`interop/trajectory.py` describes a run in such a table, which exports carry.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from gpt1_jax.config.checks import check_value, matches, require
from gpt1_jax.config.saved import read_json
from gpt1_jax.errors import UserError
from gpt1_jax.formats import EXPORT, VERIFICATION
from gpt1_jax.parallel.mesh import state_sharding
from gpt1_jax.runs.checkpoints import read_state
from gpt1_jax.training.fit import Run, batches_on_devices

# What a table holds, which anyone may have written.
_Digest = Annotated[str, matches("[0-9a-f]{64}", "be a SHA-256 in hexadecimal")]
_Name = Annotated[  # neither hidden nor elsewhere
    str, matches("[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "be a plain name")
]
_Step = Annotated[str, matches("[0-9]{1,18}", "be the number of a step")]
_KEPT = ("params_digest", "valid_loss", "files")  # of a step that was verified


def read_trajectory(file: epath.Path) -> dict[str, Any]:
    """The trajectory in a file, as `describe_trajectory` has it.

    Raises:
      UserError: if the file holds anything else, or is of another format.
    """
    table = read_json(file)
    EXPORT.check(table, file)
    _check_table(file, table)
    names = [said.get("name") for said in table["steps"].values()]
    require(
        None not in names and len(set(names)) == len(names),
        f"{file} is no table of a trajectory: each step must have its own name.",
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
    tables = []
    for member in found["folders"] or [{}]:
        match member:
            case {"problems": [], "steps": [*rows]} if all(
                isinstance(row, dict) for row in rows
            ):
                steps = {
                    str(row.get("step")): {key: row[key] for key in _KEPT if key in row}
                    for row in rows
                    if not row.get("deleted")
                }
                tables.append({**member, "steps": steps})
                _check_table(file, tables[-1])
            case _:
                raise UserError(
                    f"{file} lists no folder, or one that was not verified; nothing "
                    "can be compared with it."
                )
    return tables


def _check_table(file: epath.Path, table: Mapping[str, Any]) -> None:
    """Refuses a table with values that lead elsewhere, or cannot be compared."""
    try:
        check_value("kind", _Name, table.get("kind"))
        check_value("seed", int, table.get("seed"))
        require(isinstance(table.get("steps"), dict), "it has no steps.")
        for step, said in table["steps"].items():
            check_value("step", _Step, step)
            require(isinstance(said, dict), f"it says nothing of step {step}.")
            check_value("params_digest", _Digest, said.get("params_digest"))
            check_value("name", _Name, said.get("name", "step"))
            if said.get("valid_loss") is not None:
                check_value("valid_loss", float, said["valid_loss"])
            files = said.get("files", {})
            require(isinstance(files, dict), "files must be digests by name.")
            for part in "/".join(files).split("/") if files else ():
                check_value("files", _Name, part)
    except UserError as error:
        raise UserError(
            f"{file} is no table of a trajectory: {error} Export the run again with "
            "configs/convert.py."
        ) from error


def differing_facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys, in order, whose values differ between two tables or two steps.

    Keys that one of them lacks, or has as None, do not count. Numbers may be rounded
    differently.
    """

    def differ(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, float):
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
