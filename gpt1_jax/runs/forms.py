"""The forms of attention and LayerNorm that a run computes with.

`config.model.attention_form` and `layer_norm_form` name them. "auto" leaves the choice
to the run: on an accelerator it takes the kernels that are right and known to be faster
there (`kernels/choice.py`); elsewhere XLA's own code. A run that resumes goes on with
the forms it began with, bit for bit, where the machine has them.
"""

import dataclasses
import json
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

import jax

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.sections import AUTO
from gpt1_jax.parallel.processes import gather, is_main_process
from gpt1_jax.runs.console import say

# A function's form, and why it is not the expected one, as JSON has them:
# {"attention": {"form": "blocked", "why": ".."}, "layer_norm": {"form": "plain"}}
Forms = Mapping[str, Mapping[str, str]]

KERNELS = "fused"
USUAL = {"attention": "blocked", "layer_norm": "plain"}  # XLA's own code
TITLES = {"attention": "Attention", "layer_norm": "LayerNorm"}
_PACKAGE = "gpt1_jax.kernels"  # imported only if kernels may be used
_WHY_NOT = f"{_PACKAGE}.choice:why_not"


def choose_forms(
    model: ModelConfig,
    seq_len: int,
    training: bool,
    before: Mapping[str, str] | None = None,
) -> tuple[ModelConfig, Forms]:
    """Replaces "auto" in a model's configuration by the forms to use.

    All processes get the main one's choice.

    Args:
      model: the model; a form that it names is used, `fused` if there is a kernel.
      seq_len: tokens in each sequence.
      training: whether gradients are computed, and dropout is on.
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
            name: _choose(name, model, seq_len, training, (before or {}).get(name, ""))
            for name in USUAL
        }
    found = json.loads(gather(json.dumps(found))[0])
    return _with_forms(model, form_names(found)), found


def form_names(forms: Forms) -> dict[str, str]:
    """The name of each function's form."""
    return {name: found["form"] for name, found in forms.items()}


def are_forms(value: Any) -> bool:
    """Whether a value read from a file is `Forms`; those of version 1.0 hold times."""
    return isinstance(value, dict) and all(
        name in TITLES
        and isinstance(found, dict)
        and isinstance(found.get("form"), str)
        and isinstance(found.get("why", ""), str)
        for name, found in value.items()
    )


def saved_forms(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The forms that computed a checkpoint, by its metadata; none without metadata."""
    match metadata:
        case {"forms": {"attention": str(attention), "layer_norm": str(layer_norm)}}:
            return {"attention": attention, "layer_norm": layer_norm}
    return {}


def say_forms(forms: Forms) -> None:
    """Says which forms a run uses: in a line for each if there is a reason to give."""
    if forms:
        explained = any(found.get("why") for found in forms.values())
        say(("\n" if explained else "; ").join(describe_forms(forms)))


def describe_forms(forms: Forms) -> list[str]:
    """Each function's form, and why it is not the expected one."""
    return [
        f"{TITLES[name]}: " + "; ".join(filter(None, (found["form"], found.get("why"))))
        for name, found in forms.items()
    ]


def _with_forms(model: ModelConfig, names: Mapping[str, str]) -> ModelConfig:
    forms: dict[str, Any] = {f"{name}_form": form for name, form in names.items()}
    return dataclasses.replace(model, **forms)


def _choose(
    name: str, model: ModelConfig, seq_len: int, training: bool, before: str
) -> Mapping[str, str]:
    """The form of one function; `before` is "" or the form that a run resumes with."""
    configured, reasons = getattr(model, f"{name}_form"), []
    form = (before or AUTO) if configured == AUTO else configured
    if form == KERNELS or (form == AUTO and _may_have_kernels()):
        form = KERNELS
        if why := _why_not(name, model, seq_len, training, before):
            form = AUTO
            reasons.append(f"{KERNELS} is left out: {why}")
    if form == AUTO:
        form = USUAL[name]
    if before not in ("", form):
        reasons.append(
            f"this run used {before} so far, and goes on equal up to rounding"
        )
    return {"form": form, **({"why": "; ".join(reasons)} if reasons else {})}


def _may_have_kernels() -> bool:
    """Whether anybody expects kernels on this machine."""
    return jax.default_backend() != "cpu"


def _why_not(
    name: str, model: ModelConfig, seq_len: int, training: bool, before: str
) -> str:
    """Why the run does without kernels; empty if it uses them."""
    try:
        why_not = resolve_name(_WHY_NOT)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(_PACKAGE):
            raise
        return f"there is no {_PACKAGE}"
    return why_not(name, model, seq_len, training, before)
