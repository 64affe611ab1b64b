"""Chooses between the kernels for this machine and what XLA makes.

Kernels that are right (`trials.py`) and faster than what XLA makes are used. What was
found is remembered beside the compiled programs, in a file for each function, device
kind, version and size. The file also names the kernels under trial, so that those that
hang or end the process are not tried again.
"""

import contextlib
import datetime
import importlib.metadata
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

import gpt1_jax
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import (
    Held,
    is_remote,
    json_digest,
    make_folder,
    system_lock,
    write_json,
)
from gpt1_jax.errors import UserError
from gpt1_jax.kernels import attention, find, layer_norm
from gpt1_jax.kernels.trials import (
    Function,
    Refused,
    Trial,
    attention_function,
    layer_norm_function,
)
from gpt1_jax.parallel.mesh import tensor_parallelism
from gpt1_jax.parallel.processes import EXIT_AGAIN, Watchdog
from gpt1_jax.runs.forms import KERNELS, TITLES, USUAL, Workload, are_forms, left_out

_SECONDS = 20.0  # that the check of a kernel may take; then it is not timed
_STUCK_SECONDS = 180.0  # of a trial; its programs take a few seconds to compile
_FOLDER = "forms"  # of the folder of compiled programs
_UNDER_TRIAL = "under trial since"
_MESSAGE = 160  # characters of what a compiler says
_NO_MEMORY = "RESOURCE_EXHAUSTED"  # XLA's word


def choose_form(name: str, model: ModelConfig, workload: Workload) -> Mapping[str, Any]:
    """The form of one function where kernels may be used.

    Kernels that the configuration names are used untried.

    Args:
      name: "attention" or "layer_norm".
      model: the model; its form of the function is "auto" or "fused".
      workload: what is computed where.

    Returns:
      The form, its times if it was tried, and why kernels are left out if they are.
    """
    function, why = find_function(name, model, workload)
    if function is None:
        return {"form": USUAL[name], "why": left_out(why)}
    if getattr(model, f"{name}_form") == KERNELS:
        return {"form": KERNELS}
    rate = model.attn_dropout if name == "attention" else model.resid_dropout
    return _tried(name, function, jnp.dtype(model.dtype), rate, workload)


def find_function(
    name: str, model: ModelConfig, workload: Workload
) -> tuple[Function | None, str]:
    """The function to try, or None and why there are no kernels for it."""
    if workload.mesh is not None and tensor_parallelism(workload.mesh) > 1:
        return None, find.SHARED_HEADS
    shape = workload.num_seqs, workload.seq_len, model.num_heads
    head_dim = model.embed_dim // model.num_heads
    if name == "attention":
        sizes: tuple[Any, ...] = (*shape, head_dim), jnp.dtype(model.dtype)
        found, why = find.find_kernels(attention.MODULES, *sizes)
        function = attention_function(*shape, head_dim)
    else:
        sizes = (model.embed_dim,)
        found, why = find.find_kernels(layer_norm.MODULES, *sizes)
        function = layer_norm_function(*shape[:2], model.embed_dim)
    return (None, why) if found is None else (function, "")


def _tried(
    name: str, function: Function, dtype: jnp.dtype, rate: float, workload: Workload
) -> Mapping[str, Any]:
    """The result of a trial: remembered, or made now.

    A file that cannot be written is done without.
    """
    facts = {
        "function": name,
        "shapes": function.shapes,
        "dtype": dtype.name,
        "dropout": rate if workload.training else 0.0,
        "training": workload.training,
        "device": jax.local_devices()[0].device_kind,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "gpt1_jax": gpt1_jax.__version__,
    }
    configured = getattr(jax.config, "jax_compilation_cache_dir", None)
    folder = compilation_cache(configured or "")
    file = epath.Path(folder) / _FOLDER / f"{name}-{json_digest(facts)[:16]}.json"
    try:
        with _locked(file):
            return _remembered(file) or _try(
                file, facts, Trial(function, dtype, rate, workload.training), function
            )
    except Held:
        why = "another process has been trying it for too long"
        return {"form": USUAL[name], "why": left_out(why)}


@contextlib.contextmanager
def _locked(file: epath.Path) -> Iterator[None]:
    """Keeps other processes of this machine from the same trial meanwhile."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            make_folder(file.parent)
            if not is_remote(file):
                lock = Path(file).with_suffix(".lock")
                held.enter_context(system_lock(lock, _STUCK_SECONDS))
        yield


def _remembered(file: epath.Path) -> Mapping[str, Any] | None:
    """What an earlier trial found; None if there was none."""
    try:
        held = read_json(file)
    except UserError:  # missing, or damaged: tried anew
        return None
    if began := held.get(_UNDER_TRIAL):
        why = f"it hung or ended the process that tried it on {began!s:.40}"
        way_out = f"delete {file} to try it again"
        return {"form": held.get("usual"), "why": f"{left_out(why)} ({way_out})"}
    found, name = held.get("found"), str(held.get("function"))
    return found if are_forms({name: found}) else None


def _try(
    file: epath.Path, facts: Mapping[str, Any], trial: Trial, function: Function
) -> Mapping[str, Any]:
    """Tries the kernels, and writes down what was found."""
    usual = USUAL[facts["function"]]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found: dict[str, Any] = {}
    stuck = (
        f"stuck: the kernels for {TITLES[facts['function']]} were not done with their "
        f"trial within {_STUCK_SECONDS:.0f} seconds. Run the same command again, which "
        "does without them."
    )
    _write(file, {**facts, "usual": usual, _UNDER_TRIAL: now})
    try:
        with Watchdog(_STUCK_SECONDS, stuck, EXIT_AGAIN, traces=True):
            found = _compare(usual, trial, function)
    finally:
        if found and _NO_MEMORY not in found.get("why", ""):
            _write(file, {**facts, "found": found})
        else:  # interrupted, or for lack of memory, of which there may be more later
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
    return found


def _compare(usual: str, trial: Trial, function: Function) -> dict[str, Any]:
    start = time.monotonic()
    try:
        trial.check(function.kernels)
        if time.monotonic() - start > _SECONDS:
            raise Refused(f"its check took more than {_SECONDS:.0f} s")
        seconds = trial.seconds(function.kernels)
    except Refused as refused:
        return {"form": usual, "why": left_out(str(refused))}
    except Exception as error:  # of whatever kind a compiler raises
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        return {"form": usual, "why": left_out(f"{message:.{_MESSAGE}}")}
    names = function.usual_name, KERNELS
    times = (round(1e3 * each, 4) for each in seconds)
    ms = dict(zip(names, times, strict=True))
    if seconds[1] < function.most_time * seconds[0]:
        return {"form": KERNELS, "ms": ms}
    return {"form": usual, "ms": ms, "why": left_out("it is slower")}


def _write(file: epath.Path, value: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        write_json(file, value)
