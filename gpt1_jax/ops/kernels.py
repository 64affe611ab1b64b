"""Finds our kernels for the accelerator at hand."""

import importlib
import math
import warnings
from types import ModuleType
from typing import Any

import jax


def kernels_here(what: str, modules: dict[str, str], *sizes: Any) -> ModuleType | None:
    """The module with the kernels for this accelerator; None, with a warning, if none.

    Args:
      what: what the kernels compute, for the warning.
      modules: the module of `gpt1_jax.ops` for each backend.
      sizes: the arguments of the module's `refusal`.
    """
    mesh, backend = jax.sharding.get_abstract_mesh(), jax.default_backend()
    manual = jax.sharding.AxisType.Manual
    axes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    kernels = None
    if math.prod(size for size, kind in axes if kind != manual) > 1:
        why = "the compiler cannot split them between devices that share the heads"
    elif backend not in modules:
        why = f"there are none for a {backend.upper()}"
    else:  # imported where it is used: Pallas takes a second
        kernels = importlib.import_module(f"gpt1_jax.ops.{modules[backend]}")
        why = kernels.refusal(*sizes)
    if not why:
        return kernels
    warnings.warn(f"{what} without kernels: {why}", stacklevel=3)
    return None
