"""Chooses the forms of attention and LayerNorm that are fastest on this machine.

With `config.model.attention_impl="auto"` and `layer_norm_impl="auto"`, a run tries the
kernels for its accelerator, at its own sizes, before it compiles its step. Those that
are right (`kernels/trials.py`) and faster than what XLA makes are used. What was found
is remembered beside the compiled programs, in a file for each function, device kind,
version and size. The file also names the kernels under trial, so that those that hang
or end the process are not tried again.
"""

import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath

import gpt1_jax
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import AUTO, compilation_cache
from gpt1_jax.data.files import (
    Held,
    is_remote,
    json_digest,
    make_folder,
    system_lock,
    write_json,
)
from gpt1_jax.errors import UserError
from gpt1_jax.kernels import attention as attention_fused
from gpt1_jax.kernels import find as kernels
from gpt1_jax.kernels import layer_norm as layer_norm_fused
from gpt1_jax.kernels.trials import (
    Function,
    Refused,
    Trial,
    attention_function,
    layer_norm_function,
)
from gpt1_jax.parallel.mesh import tensor_parallelism
from gpt1_jax.parallel.processes import EXIT_AGAIN, Watchdog, gather, is_main_process
from gpt1_jax.runs.console import say

# A function's form, its times in ms and why others were left out, as JSON has them:
# {"attention": {"form": "fused", "ms": {"blocked": 1.3, "fused": 0.4}}, ..}
Forms = Mapping[str, Mapping[str, Any]]

KERNELS = "fused"
USUAL = {"attention": "blocked", "layer_norm": "plain"}  # what XLA makes
TITLES = {"attention": "Attention", "layer_norm": "LayerNorm"}
_SECONDS = 20.0  # that the check of a kernel may take; then it is not timed
_STUCK_SECONDS = 180.0  # of a trial; its programs take a few seconds to compile
_FOLDER = "forms"  # of the folder of compiled programs
_UNDER_TRIAL = "under trial since"
_MESSAGE = 160  # characters of what a compiler says
_NO_MEMORY = "RESOURCE_EXHAUSTED"  # XLA's word


class Place(NamedTuple):
    """What is computed where: the sizes of a trial.

    Attributes:
      num_seqs: sequences that a device computes at a time.
      seq_len: their tokens.
      training: whether gradients are computed, and dropout is on.
      mesh: the devices that share the work; None for one.
    """

    num_seqs: int
    seq_len: int
    training: bool
    mesh: jax.sharding.Mesh | None = None


def choose_forms(
    model: ModelConfig, place: Place, before: Mapping[str, str] | None = None
) -> tuple[ModelConfig, Forms]:
    """Replaces "auto" in a model's configuration by the forms to use.

    All processes get the main one's choice.

    Args:
      model: the model; a form that it names is used as it is.
      place: what is computed where.
      before: the forms with which the run was computed so far, if it resumes. They are
        used again, so that it goes on bit for bit.

    Returns:
      The model, and its forms; none for an LSTM.
    """
    if model.kind == "lstm":
        return _with_forms(model, USUAL), {}
    found: Forms = {}
    if is_main_process():
        found = {
            name: _choose(name, model, place, (before or {}).get(name, ""))
            for name in USUAL
        }
    found = json.loads(gather(json.dumps(found))[0])
    return _with_forms(model, form_names(found)), found


@functools.cache
def scoring_model(model: ModelConfig, num_tokens: int) -> ModelConfig:
    """The model with the forms for forward passes over about so many tokens each."""
    num_seqs = max(1, num_tokens // model.max_seq_len)
    place = Place(num_seqs, model.max_seq_len, training=False)
    chosen, forms = choose_forms(model, place)
    for name, found in forms.items():
        if found.get("why"):
            say(_line(name, found), beside_output=True)
    return chosen


def form_names(forms: Forms) -> dict[str, str]:
    """The name of each function's form."""
    return {name: found["form"] for name, found in forms.items()}


def are_forms(value: Any) -> bool:
    """Whether a value read from a file is a record of forms."""

    def is_form(found: Any) -> bool:
        if not (isinstance(found, dict) and isinstance(found.get("form"), str)):
            return False
        times, why = found.get("ms", {}), found.get("why", "")
        known = isinstance(times, dict) and isinstance(why, str)
        return known and all(isinstance(ms, int | float) for ms in times.values())

    return isinstance(value, dict) and all(
        name in TITLES and is_form(found) for name, found in value.items()
    )


def saved_forms(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The forms that computed a checkpoint, by its metadata; none without metadata.

    Until 24 November 2026 they were those that the configuration named.
    """
    match metadata:
        case {"forms": {"attention": str(attention), "layer_norm": str(layer_norm)}}:
            return {"attention": attention, "layer_norm": layer_norm}
        case {"config": {"model": {"attention_impl": str(attention), **model}}}:
            if attention != AUTO:
                layer_norm = str(model.get("layer_norm_impl", USUAL["layer_norm"]))
                return {"attention": attention, "layer_norm": layer_norm}
    return {}


def say_forms(forms: Forms) -> None:
    """Says which forms a run uses: a line for each function that was tried."""
    lines = [_line(name, found) for name, found in forms.items()]
    tried = any(len(found) > 1 for found in forms.values())
    if lines:
        say(("\n" if tried else "; ").join(lines))


def _line(name: str, found: Mapping[str, Any]) -> str:
    return f"{TITLES[name]}: {describe_form(found)}"


def describe_form(found: Mapping[str, Any]) -> str:
    """A form with its time, those of others, and why others were left out."""
    form, times = found["form"], dict(found.get("ms", {}))
    text = form
    if form in times:
        text += f", {times.pop(form):.3g} ms"
    if times:
        text += f" ({', '.join(f'{name} {ms:.3g} ms' for name, ms in times.items())})"
    return text + (f"; {found['why']}" if found.get("why") else "")


def _with_forms(model: ModelConfig, names: Mapping[str, str]) -> ModelConfig:
    forms: dict[str, Any] = {f"{name}_impl": form for name, form in names.items()}
    return dataclasses.replace(model, **forms)


def _choose(
    name: str, model: ModelConfig, place: Place, before: str
) -> Mapping[str, Any]:
    """The form of one function; `before` is "" or the form that a run resumes with."""
    configured = getattr(model, f"{name}_impl")
    if configured == AUTO and before not in ("", KERNELS):
        return {"form": before}  # XLA makes it everywhere
    function, why = find_function(name, model, place)
    if configured == KERNELS and function is None:
        found: Mapping[str, Any] = {"form": USUAL[name], "why": _left_out(why)}
    elif configured != AUTO:
        found = {"form": configured}
    elif function is not None:
        rate = model.attn_dropout if name == "attention" else model.resid_dropout
        found = _tried(name, function, jnp.dtype(model.dtype), rate, place)
    elif before or jax.default_backend() != "cpu":
        found = {"form": USUAL[name], "why": _left_out(why)}
    else:  # nobody expects kernels there
        found = {"form": USUAL[name]}
    if before in found.get("ms", {}):  # right, even if another is faster today
        return {"form": before, "ms": found["ms"]}
    return _changed(found, before)


def _changed(found: Mapping[str, Any], before: str) -> Mapping[str, Any]:
    """The form that was found; says so if the run was computed by another before."""
    if before in ("", found["form"]):
        return found
    change = f"this run used {before} so far, and goes on equal up to rounding"
    return {**found, "why": "; ".join(filter(None, (found.get("why"), change)))}


def _left_out(why: str) -> str:
    return f"{KERNELS} is left out: {why}"


def find_function(
    name: str, model: ModelConfig, place: Place
) -> tuple[Function | None, str]:
    """The function to try, or None and why there are no kernels for it."""
    if place.mesh is not None and tensor_parallelism(place.mesh) > 1:
        return None, kernels.SHARED_HEADS
    shape = place.num_seqs, place.seq_len, model.num_heads
    head_dim = model.embed_dim // model.num_heads
    if name == "attention":
        sizes: tuple[Any, ...] = (*shape, head_dim), jnp.dtype(model.dtype)
        found, why = kernels.find_kernels(attention_fused.MODULES, *sizes)
        function = attention_function(*shape, head_dim)
    else:
        sizes = (model.embed_dim,)
        found, why = kernels.find_kernels(layer_norm_fused.MODULES, *sizes)
        function = layer_norm_function(*shape[:2], model.embed_dim)
    return (None, why) if found is None else (function, "")


def _tried(
    name: str, function: Function, dtype: jnp.dtype, rate: float, place: Place
) -> Mapping[str, Any]:
    """The result of a trial: remembered, or made now.

    A file that cannot be written is done without.
    """
    facts = {
        "function": name,
        "shapes": function.shapes,
        "dtype": dtype.name,
        "dropout": rate if place.training else 0.0,
        "training": place.training,
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
                file, facts, Trial(function, dtype, rate, place.training), function
            )
    except Held:
        why = "another process has been trying it for too long"
        return {"form": USUAL[name], "why": _left_out(why)}


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
        return {"form": held.get("usual"), "why": f"{_left_out(why)} ({way_out})"}
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
        return {"form": usual, "why": _left_out(str(refused))}
    except Exception as error:  # of whatever kind a compiler raises
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        return {"form": usual, "why": _left_out(f"{message:.{_MESSAGE}}")}
    names = function.usual_name, KERNELS
    times = (round(1e3 * each, 4) for each in seconds)
    ms = dict(zip(names, times, strict=True))
    if seconds[1] < function.most_time * seconds[0]:
        return {"form": KERNELS, "ms": ms}
    return {"form": usual, "ms": ms, "why": _left_out("it is slower")}


def _write(file: epath.Path, value: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        write_json(file, value)
