"""Equal functions share what `jax.jit` makes of them, and so are compiled once."""

import functools
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np

import gpt1_jax

_ROOMS = ("model", "ops", "kernels", "parallel", "training", "inference")
_ROOMS += ("finetuning", "runs")


class _Unknown(Exception):
    """What a function computes cannot be told from outside."""


def share() -> None:
    """Has the package's calls of `jax.jit` return what an equal function got.

    Those of `jax.eval_shape` trace equal functions once. A function is equal to another
    if both have the same code and equal values in their closures, defaults and partial
    arguments, and no test has replaced a part of the package or how JAX chooses among
    platforms. Functions of tests share nothing.
    """
    jit, eval_shape, kept, parts = jax.jit, jax.eval_shape, {}, _parts()
    parts += [(jax, "default_backend", jax.default_backend)]
    parts += [(jax.lax, "platform_dependent", jax.lax.platform_dependent)]

    def shared(function: Any, **options: Any) -> Any:
        try:
            key = _key((function, options))
        except _Unknown:
            return jit(function, **options)
        if any(vars(place).get(name) is not part for place, name, part in parts):
            return jit(function, **options)
        if key not in kept:
            kept[key] = jit(function, **options)
        return kept[key]

    @functools.wraps(jit)
    def shared_jit(function: Any = None, **options: Any) -> Any:
        if function is None or not _called_by_the_package():
            return jit(function, **options)
        return shared(function, **options)

    @functools.wraps(eval_shape)
    def shared_eval_shape(function: Any, *arguments: Any, **named: Any) -> Any:
        function = shared(function) if _called_by_the_package() else function
        return eval_shape(function, *arguments, **named)

    jax.jit, jax.eval_shape = shared_jit, shared_eval_shape


def _called_by_the_package() -> bool:
    """Whether the caller of the function that asks is a module of the package."""
    return sys._getframe(2).f_globals.get("__name__", "").startswith("gpt1_jax.")


def _parts() -> list[tuple[Any, str, Any]]:
    """(module, name, value) of each part of the package that computes."""
    parts = []
    for room in (Path(gpt1_jax.__file__).parent / name for name in _ROOMS):
        for path in room.glob("[a-z]*.py"):
            if path.stem not in ("tensorboard", "wandb"):  # extras; compute nothing
                place = importlib.import_module(f"gpt1_jax.{room.name}.{path.stem}")
                parts += [(place, *each) for each in vars(place).items()]
    return parts


def _key(value: Any) -> Any:
    """What is equal for functions that compute the same."""
    match value:
        case functools.partial():
            return "partial", _key(value.func), _key(value.args), _key(value.keywords)
        case types.FunctionType():
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            defaults = value.__defaults__, value.__kwdefaults__
            return value.__code__, _key(cells), _key(defaults)
        case dict():
            return "dict", *((_key(name), _key(each)) for name, each in value.items())
        case tuple() | list():
            return type(value), *(_key(each) for each in value)
        case np.ndarray() | jax.Array():
            raise _Unknown
    try:
        hash(value)
    except TypeError as error:
        raise _Unknown from error
    return type(value), value
