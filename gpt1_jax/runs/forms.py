"""The forms of attention and LayerNorm that a run computes with.

`config.model.attention_form` and `layer_norm_form` name them. "auto" leaves the choice
to the run: on an accelerator it tries the kernels, at its own sizes, before it compiles
its step (`kernels/choice.py`); on a CPU it takes XLA's own code. A run that resumes
goes on with the forms it began with, bit for bit, where the machine has them.
"""

import dataclasses
import json
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple

import jax

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.sections import AUTO
from gpt1_jax.parallel.processes import gather, is_main_process
from gpt1_jax.runs.console import say

# A function's form, its times in ms and why others were left out, as JSON has them:
# {"attention": {"form": "fused", "ms": {"blocked": 1.3, "fused": 0.4}}, ..}
Forms = Mapping[str, Mapping[str, Any]]

KERNELS = "fused"
USUAL = {"attention": "blocked", "layer_norm": "plain"}  # XLA's own code
TITLES = {"attention": "Attention", "layer_norm": "LayerNorm"}
_PACKAGE = "gpt1_jax.kernels"  # imported only if kernels may be used
_CHOICE = f"{_PACKAGE}.choice:choose_form"


class Workload(NamedTuple):
    """The computation of one device, and the devices that share the work.

    Attributes:
      num_seqs: sequences that a device computes at a time.
      seq_len: tokens in each sequence.
      training: whether gradients are computed, and dropout is on.
    """

    num_seqs: int
    seq_len: int
    training: bool


def choose_forms(
    model: ModelConfig, workload: Workload, before: Mapping[str, str] | None = None
) -> tuple[ModelConfig, Forms]:
    """Replaces "auto" in a model's configuration by the forms to use.

    All processes get the main one's choice.

    Args:
      model: the model; a form that it names is used, `fused` if there is a kernel.
      workload: the computation.
      before: the forms that the run has used so far, if it resumes. They are used
        again, so that resuming is bit-exact.

    Returns:
      The model, and its forms; none for an LSTM.
    """
    if model.kind == "lstm":
        return _with_forms(model, USUAL), {}
    found: Forms = {}
    if is_main_process():
        found = {
            name: _choose(name, model, workload, (before or {}).get(name, ""))
            for name in USUAL
        }
    found = json.loads(gather(json.dumps(found))[0])
    return _with_forms(model, form_names(found)), found


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
    """The forms that computed a checkpoint, by its metadata; none without metadata."""
    match metadata:
        case {"forms": {"attention": str(attention), "layer_norm": str(layer_norm)}}:
            return {"attention": attention, "layer_norm": layer_norm}
    return {}


def say_forms(forms: Forms) -> None:
    """Says which forms a run uses: a line for each function that was tried."""
    lines = [form_line(name, found) for name, found in forms.items()]
    tried = any(len(found) > 1 for found in forms.values())
    if lines:
        say(("\n" if tried else "; ").join(lines))


def form_line(name: str, found: Mapping[str, Any]) -> str:
    """A function and its form, in a line."""
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
    forms: dict[str, Any] = {f"{name}_form": form for name, form in names.items()}
    return dataclasses.replace(model, **forms)


def _choose(
    name: str, model: ModelConfig, workload: Workload, before: str
) -> Mapping[str, Any]:
    """The form of one function; `before` is "" or the form that a run resumes with."""
    configured = getattr(model, f"{name}_form")
    if configured == AUTO and before not in ("", KERNELS):
        return {"form": before}  # XLA compiles it everywhere
    if configured not in (AUTO, KERNELS):
        found: Mapping[str, Any] = {"form": configured}
    elif KERNELS in (configured, before) or _may_have_kernels():
        found = _choose_with_kernels(name, model, workload)
    else:
        found = {"form": USUAL[name]}
    if before in found.get("ms", {}):  # correct, even if another is faster today
        return {"form": before, "ms": found["ms"]}
    return _changed(found, before)


def _may_have_kernels() -> bool:
    """Whether anybody expects kernels on this machine."""
    return jax.default_backend() != "cpu"


def _choose_with_kernels(
    name: str, model: ModelConfig, workload: Workload
) -> Mapping[str, Any]:
    """The kernels, if they exist, are correct and faster; else the usual form."""
    try:
        choose = resolve_name(_CHOICE)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(_PACKAGE):
            raise
        return {"form": USUAL[name], "why": left_out(f"there is no {_PACKAGE}")}
    return choose(name, model, workload)


def _changed(found: Mapping[str, Any], before: str) -> Mapping[str, Any]:
    """The form that was found; says so if the run used another before."""
    if before in ("", found["form"]):
        return found
    change = f"this run used {before} so far, and goes on equal up to rounding"
    return {**found, "why": "; ".join(filter(None, (found.get("why"), change)))}


def left_out(why: str) -> str:
    """Says why there are no kernels."""
    return f"{KERNELS} is left out: {why}"
