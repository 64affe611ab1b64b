"""Chooses between our kernels and XLA's own code on this machine.

Kernels that are correct (`trials.py`) and faster than XLA's code are used. The result
is cached beside the compiled programs, in a file for each function, device kind,
version and size. The file also names the kernels under trial, so that those that hang
or end the process are not tried again.
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
from gpt1_jax.parallel.processes import EXIT_AGAIN, Watchdog
from gpt1_jax.runs.forms import KERNELS, TITLES, USUAL, Workload, are_forms, left_out

_SECONDS = 20.0  # for the check of a kernel; one that takes longer is not timed
_STUCK_SECONDS = 180.0  # for a trial, whose programs take a few seconds to compile
_FOLDER = "forms"  # inside the folder of compiled programs
_UNDER_TRIAL = "under trial since"
_MESSAGE = 160  # characters kept of a compiler's message
_NO_MEMORY = "RESOURCE_EXHAUSTED"  # in XLA's messages


def choose_form(name: str, model: ModelConfig, workload: Workload) -> Mapping[str, Any]:
    """Chooses the form of one function, with or without kernels.

    Kernels that the configuration names are used without a trial.

    Args:
      name: "attention" or "layer_norm".
      model: the model's configuration; the function's form is "auto" or "fused".
      workload: the computation and the devices that share it.

    Returns:
      The form, its times if it was tried, and the reason if kernels are left out.
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

    If the file cannot be written, the result is not cached.
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
    """Keeps other processes on this machine from running the same trial."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            make_folder(file.parent)
            if not is_remote(file):
                lock = Path(file).with_suffix(".lock")
                held.enter_context(system_lock(lock, _STUCK_SECONDS))
        yield


def _remembered(file: epath.Path) -> Mapping[str, Any] | None:
    """The result of an earlier trial; None without one."""
    try:
        held = read_json(file)
    except UserError:  # missing or damaged: try again
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
    """Tries the kernels and writes the result to the file."""
    usual = USUAL[facts["function"]]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    found: dict[str, Any] = {}
    stuck = (
        f"stuck: the kernels for {TITLES[facts['function']]} did not finish their "
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
        else:  # interrupted, or out of memory, which may be free later
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
    except Exception as error:  # compilers may raise anything
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
