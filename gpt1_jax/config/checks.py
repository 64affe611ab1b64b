"""Types and constraints: plain values become a typed section, or are refused."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, get_args, get_origin

from gpt1_jax.errors import UserError

# Old keys, and how they are written now.
RENAMED = {
    "checkpoint.keep_at_words": "checkpoint.milestone_words=1000000,2000000",
    "checkpoint.keep_at_tokens": "checkpoint.milestone_tokens=1000000,2000000",
    "checkpoint.keep_at_steps": "checkpoint.milestone_steps=1000,2000",
    "init_step": "step=best",
}


def newer(neutral: Any) -> dict[str, Any]:
    """Metadata of a field whose key is newer than some run folders.

    Args:
      neutral: the value that does what runs did before the key existed.
    """
    return {"neutral": neutral}


def place(*, several: bool = False, local: bool = False) -> dict[str, Any]:
    """Metadata of a field that names a file or folder.

    Args:
      several: whether it may name several, separated by commas.
      local: whether it must be on this machine, not in a bucket.
    """
    return {"place": {"several": several, "local": local}}


def require(condition: bool, message: str) -> None:
    """Raises a ValueError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def is_device(path: str) -> bool:
    """Whether an output is a device such as /dev/stdout, whose name has no ending."""
    return path.startswith("/dev/") and not path.startswith("/dev/shm/")  # a folder


def one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuses a value that is not one of the choices."""
    require(
        value in choices,
        f"config.{key}={value!r} is not known; choose one of "
        f"{', '.join(choice or repr(choice) for choice in choices)}.",
    )


DEFAULT, NEWEST, BEST = "default", "newest", "best"  # in place of a step's number
ALL, MILESTONES = "all", "milestones"  # each saved step, or those kept for good


def check_step(key: str, step: str, *several: str) -> None:
    """Refuses what names no saved step of a run.

    Args:
      key: what holds the step, for the message.
      step: `DEFAULT`, which is a fine-tuned run's best step and any other run's newest,
        `NEWEST`, `BEST` or a number.
      several: further words that are allowed.
    """
    words = (DEFAULT, NEWEST, BEST, *several)
    require(
        step != "kept" or MILESTONES not in words,
        f"{key}='kept' is now {key}={MILESTONES!r}.",
    )
    require(
        step in words or re.fullmatch("[0-9]{1,18}", step) is not None,
        f"{key}={step!r} must be {', '.join(words)} or the number of a saved step, "
        "such as 1200.",
    )


def positive(section: str, values: Any, *names: str) -> None:
    """Refuses values of a section that are not above 0."""
    for name in names:
        value = getattr(values, name)
        require(value > 0, f"config.{section}.{name}={value} must be positive.")


def not_negative(section: str, values: Any, *names: str) -> None:
    """Refuses values of a section that are below 0."""
    for name in names:
        value = getattr(values, name)
        require(value >= 0, f"config.{section}.{name}={value} must not be negative.")


def places(section: Any, key: str = "config") -> Iterator[tuple[str, str, bool]]:
    """The files and folders that a configuration names.

    Args:
      section: the configuration, or a section of it.
      key: its key.

    Yields:
      The key of each, its path, and whether it must be local.
    """
    for field in dataclasses.fields(section):
        value, name = getattr(section, field.name), f"{key}.{field.name}"
        if dataclasses.is_dataclass(value):
            yield from places(value, name)
        elif kind := field.metadata.get("place"):
            for path in value.split(",") if kind["several"] else (value,):
                yield name, path.strip(), kind["local"]


def check_seed(key: str, seed: int) -> None:
    """Refuses a seed that JAX and NumPy do not take."""
    require(
        0 <= seed < 2**32,
        f"config.{key}={seed} must be a whole number in [0, 2**32).",
    )


def check_rising(key: str, amounts: tuple[int, ...], example: str) -> None:
    """Refuses amounts that are not positive and in rising order."""
    require(
        all(low < high for low, high in itertools.pairwise((0, *amounts))),
        f"{key}={amounts} must be whole numbers above 0 in rising order, such as "
        f"{example}.",
    )


def check_encodable(text: str, where: str) -> None:
    """Refuses text that UTF-8 cannot encode, which no tokenizer and no file takes.

    On the command line, bytes of another encoding become such text; in JSON, half of a
    surrogate pair does.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {text[error.start]!a} in {text!a:.60} is half of a character "
            "(a lone surrogate) or a byte that is not UTF-8; write the whole character "
            "or remove it."
        ) from error


def refuse_renamed(key: str) -> None:
    """Refuses a key that has another name now, and says which."""
    now = RENAMED.get(key.removeprefix("config."), "")
    require(
        not now,
        f"{key} is now config.{now.partition('=')[0]}; for example --config.{now}.",
    )


def make_section(name: str, cls: Any, values: Mapping[str, Any]) -> Any:
    """Builds one section; a wrong set of keys or a wrong type is a ValueError."""
    key = f"config.{name}" if name else "config"
    _require_section(key, values)
    fields: dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(cls)
    }
    unknown = sorted(set(values) - set(fields))
    for old in unknown:
        refuse_renamed(f"{key}.{old}")
    missing = sorted(set(fields) - set(values))
    require(
        not unknown, f"{key} has unknown keys {unknown}; it takes {sorted(fields)}."
    )
    require(not missing, f"{key} lacks the keys {missing}.")
    return cls(
        **{
            field: make_section(field, section, values[field])
            if (section := section_type(kind, values[field]))
            else _typed(f"{key}.{field}", kind, values[field])
            for field, kind in fields.items()
        }
    )


def section_type(kind: Any, values: Any = ()) -> Any:
    """The class of a section with these keys; None if the field is no section.

    Args:
      kind: the field's type: a section, or a union of some, each with all keys of the
        one before and more.
      values: the section's values; with none, the last of a union is meant.
    """
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if not dataclasses.is_dataclass(kinds[0]):
        return None
    if not isinstance(values, Mapping):
        return kinds[-1]
    return max(kinds, key=lambda each: len(_names(each) & values.keys()))


def _names(section: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(section)}


def _require_section(key: str, values: Any) -> None:
    require(
        isinstance(values, Mapping), f"{key}={values!r:.40} must be a section of keys."
    )


_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def _typed(key: str, kind: Any, value: Any) -> Any:
    """The value if it has its field's type; otherwise a ValueError."""
    if get_origin(kind) is tuple:
        parts, listed = get_args(kind), isinstance(value, list | tuple)
        if parts[-1] is Ellipsis:
            parts = parts[:1] * (len(value) if listed else 1)
        require(
            listed and len(value) == len(parts),
            f"{key}={value!r:.80} must be a tuple of {len(parts)}.",
        )
        pairs = enumerate(zip(parts, value, strict=True))
        return tuple(_typed(f"{key}[{i}]", *pair) for i, pair in pairs)
    if kind is str and key.endswith("]") and type(value) in (int, float):
        return str(value)  # a name that looks like a number
    if kind in _KINDS:
        accepted: Any = int | float if kind is float else kind
        fits = isinstance(value, accepted) and (kind is bool) == isinstance(value, bool)
        require(fits, f"{key}={value!r:.80} must be {_KINDS[kind]}.")
    if isinstance(value, str):
        check_encodable(value, key)
    return value
