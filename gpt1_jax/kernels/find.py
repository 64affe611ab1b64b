"""Finds our kernels for the accelerator at hand."""

import importlib
import warnings
from types import ModuleType
from typing import Any

import jax


def find_kernels(modules: dict[str, str], *sizes: Any) -> tuple[ModuleType | None, str]:
    """The module with the kernels for this accelerator, or None and why there is none.

    Args:
      modules: the module of `gpt1_jax.kernels` for each backend.
      sizes: the arguments of the module's `refusal`.
    """
    backend = jax.default_backend()
    if backend not in modules:
        return None, f"there are none for a {backend.upper()}"
    # Imported only here, as importing Pallas takes a second.
    kernels = importlib.import_module(f"gpt1_jax.kernels.{modules[backend]}")
    why = kernels.refusal(*sizes)
    return (None, why) if why else (kernels, "")


def kernels_here(what: str, modules: dict[str, str], *sizes: Any) -> ModuleType | None:
    """Like `find_kernels`, for a form that was requested: warns if there are none.

    Args:
      what: what the kernels compute, for the warning.
      modules, sizes: see `find_kernels`.
    """
    kernels, why = find_kernels(modules, *sizes)
    if why:
        warnings.warn(f"{what} without kernels: {why}", stacklevel=3)
    return kernels
