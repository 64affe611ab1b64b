"""Types and constraints of configuration values, read once from a section's fields.

A field's type declares everything about its key: `batch_size: Positive[int]`,
`kind: Literal["sentencepiece", "gpt1"]`, `valid: ByContent[Files]`. What holds for a
whole section may be declared where it is a field: `mesh: Free[MeshConfig]`. Rules about
several keys are in the `__post_init__` of their section.
"""

import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
)

from gpt1_jax.errors import UserError

Check = Callable[[str, Any], None]  # refuses a key's impossible values
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a configuration; refuses values that its fields do not take."""

    section: ClassVar[str] = ""  # its name; "" for the whole configuration

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if not section_type(field.type):
                key = _key(self.section, field.name)
                check_value(key, field.type, getattr(self, field.name))


class Newer(NamedTuple):
    """Marks a key that run folders of earlier versions lack."""

    neutral: Any  # the value that reproduces what those runs did


class Place(NamedTuple):
    """Marks a key that names a file or folder."""

    several: bool = False  # separated by commas
    local: bool = False  # on this machine, not in a bucket
    model: bool = False  # a run folder, or the address of a model
    tokenizer: bool = False  # a tokenizer, or the address of one


class Commas(NamedTuple):
    """Marks names that are one comma-separated text on the command line: a,b."""


class MayChange(NamedTuple):
    """Marks a key, or a section of keys, that may change when a run resumes.

    All other keys decide what a run computes, so they must stay the same.
    """


class Content(NamedTuple):
    """Marks a key that may change on resume if what it names has the same content.

    The content digest that was saved with the run is compared, not the key's value.
    """

    may_vanish: bool = True  # whether it may be empty on one side


class Local(NamedTuple):
    """Marks a machine-specific key: run folders do not decide it, and it may change."""

    default: Any  # replaces the value in a run folder


# --- making a section of plain values -----------------------------------------------


def make_section(name: str, cls: Any, values: Any) -> Any:
    """Builds a section and its subsections from plain values.

    Args:
      name: the section's name; "" for the whole configuration.
      cls: its class.
      values: a mapping, as from JSON or `ml_collections`.

    Raises:
      UserError: naming the first key that is unknown, missing or impossible.
    """
    key = _key(name)
    require(
        isinstance(values, Mapping), f"{key}={values!r:.40} must be a section of keys."
    )
    fields: dict[str, Any] = {each.name: each.type for each in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    missing = sorted(set(fields) - set(values))
    require(
        not unknown, f"{key} has unknown keys {unknown}; it takes {sorted(fields)}."
    )
    require(not missing, f"{key} lacks the keys {missing}.")
    return cls(
        **{
            field: make_section(field, section, values[field])
            if (section := section_type(kind, values[field]))
            else _plain(kind, values[field])
            for field, kind in fields.items()
        }
    )


def section_type(kind: Any, values: Any = None) -> Any:
    """The class of a section with these keys; None if the field is not a section.

    Args:
      kind: the field's type: a section, or a union of sections, each with all keys of
        the one before and more; with or without marks.
      values: the section's values; without them, the last of a union is meant.
    """
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if not dataclasses.is_dataclass(kinds[0]):
        return None
    if not isinstance(values, Mapping):
        return kinds[-1]

    def count_known(section: Any) -> int:
        return sum(each.name in values for each in dataclasses.fields(section))

    return max(kinds, key=count_known)


def find_mark(kind: Any, mark: type[T]) -> T | None:
    """The mark of this class, such as `Place`, in a field's type, or None."""
    return next((each for each in _marks(kind) if isinstance(each, mark)), None)


def marked_keys(cls: Any, mark: type[T]) -> dict[str, T]:
    """The keys of a configuration that have a mark, or whose section has it.

    Args:
      cls: the class of the configuration.
      mark: the class of the mark, such as `Newer`.

    Returns:
      The mark of each key, by flat key: `{"data.valid": Content()}`.
    """
    return {
        key: each
        for key, marks in _keys_and_marks(cls, "", ())
        for each in marks
        if isinstance(each, mark)
    }


def _keys_and_marks(
    cls: Any, prefix: str, outer: tuple[Any, ...]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for field in dataclasses.fields(cls):
        key, marks = f"{prefix}{field.name}", (*_marks(field.type), *outer)
        if section := section_type(field.type):
            yield from _keys_and_marks(section, f"{key}.", marks)
        else:
            yield key, marks


def _marks(kind: Any) -> tuple[Any, ...]:
    return getattr(kind, "__metadata__", ())


def split_paths(paths: str) -> list[str]:
    r"""The names between commas; "\," or a name that exists keeps its commas."""
    if os.path.exists(os.path.expanduser(paths)):
        return [paths]
    parts = re.split(r"(?<!\\),", paths)
    return [path.strip().replace(r"\,", ",") for path in parts]


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
        elif place := find_mark(field.type, Place):
            for path in split_paths(value) if place.several else (value.strip(),):
                yield name, path, place.local


def _key(*names: str) -> str:
    return ".".join(("config", *filter(None, names)))


def _plain(kind: Any, value: Any) -> Any:
    """Turns lists into tuples, or paths; and numbers among names back into text."""
    names, place = find_mark(kind, Commas) is not None, find_mark(kind, Place)
    if place and place.several and isinstance(value, list | tuple):
        return ",".join(str(path).replace(",", r"\,") for path in value)
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if not (get_origin(kind) is tuple and isinstance(value, list | tuple)):
        return value
    if get_args(kind)[0] is str:
        value = [str(x) if type(x) in (int, float, bool) else x for x in value]
    if names and len(value) == 1 and isinstance(value[0], str):
        value = [name.strip() for name in value[0].split(",")]
    return tuple(value)


# --- checking a value ---------------------------------------------------------------

_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def check_value(key: str, kind: Any, value: Any) -> None:
    """Refuses a value that a field's type does not take."""
    if get_origin(kind) is Annotated:
        kind, *marks = get_args(kind)
        check_value(key, kind, value)
        for check in filter(callable, marks):
            check(key, value)
    elif get_origin(kind) is Literal:
        one_of(key, value, get_args(kind))
    elif get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            parts = parts[:1] * (len(value) if isinstance(value, tuple) else 1)
        require(
            isinstance(value, tuple) and len(value) == len(parts),
            f"{key}={value!r:.80} must be a tuple of {len(parts)}.",
        )
        for index, (part, each) in enumerate(zip(parts, value, strict=True)):
            check_value(f"{key}[{index}]", part, each)
    else:
        accepted: Any = int | float if kind is float else kind
        fits = isinstance(value, accepted) and (kind is bool) == isinstance(value, bool)
        if kind is float and isinstance(value, int):
            fits = fits and abs(value) <= sys.float_info.max
        require(fits, f"{key}={value!r:.80} must be {_KINDS[kind]}.")
        if kind is str:
            check_encodable(value, key)


def require(condition: bool, message: str) -> None:
    """Raises a UserError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def one_of(key: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuses a value that is not one of the choices."""
    require(
        value in choices,
        f"{key}={value!r:.80} is not known; choose one of "
        f"{', '.join(choice or repr(choice) for choice in choices)}.",
    )


def positive(key: str, value: float) -> None:
    """Refuses a number that is not above 0."""
    require(value > 0, f"{key}={value} must be positive.")


def not_negative(key: str, value: float) -> None:
    """Refuses a number below 0."""
    require(value >= 0, f"{key}={value} must not be negative.")


def at_least(least: float, because: str) -> Check:
    """Makes a check that refuses smaller numbers."""
    return lambda key, value: require(
        value >= least, f"{key}={value} must be at least {least}{because}."
    )


def at_most(most: float, because: str) -> Check:
    """Makes a check that refuses larger numbers."""
    return lambda key, value: require(
        value <= most, f"{key}={value} must be at most {most:,}{because}."
    )


def within(interval: str, hint: str = "") -> Check:
    """Makes a check that refuses numbers outside an interval such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))

    def check(key: str, value: float) -> None:
        inside = low < value < high
        at_an_end = (value == low and interval[0] == "[") or (
            value == high and interval[-1] == "]"
        )
        require(inside or at_an_end, f"{key}={value} must lie in {interval}{hint}.")

    return check


def given(message: str) -> Check:
    """Makes a check that refuses an empty text or tuple with a message."""
    return lambda key, value: require(bool(value), message)


def seed(key: str, value: int) -> None:
    """Refuses a seed that JAX and NumPy do not take."""
    require(0 <= value < 2**32, f"{key}={value} must be a whole number in [0, 2**32).")


def rising(example: str, least: int = 1) -> Check:
    """Makes a check that refuses amounts that are too small or not rising."""
    return lambda key, value: require(
        all(low < high for low, high in itertools.pairwise((least - 1, *value))),
        f"{key}={value} must be whole numbers from {least} on in rising order, such as "
        f"{example}.",
    )


DEFAULT, NEWEST, BEST = "default", "newest", "best"  # in place of a step's number
ALL, MILESTONES = "all", "milestones"  # each saved step, or those kept for good


def check_step(key: str, step: str, *several: str) -> None:
    """Refuses text that names no saved step of a run.

    Args:
      key: the key that holds the step, for the message.
      step: `DEFAULT`, which is a fine-tuned run's best step and any other run's newest,
        `NEWEST`, `BEST` or a number.
      several: further words that are allowed.
    """
    words = (DEFAULT, NEWEST, BEST, *several)
    require(
        step in words or re.fullmatch("[0-9]{1,18}", step) is not None,
        f"{key}={step!r} must be {', '.join(words)} or the number of a saved step, "
        "such as 1200.",
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


def is_device(path: str) -> bool:
    """Whether an output is a device such as /dev/stdout, whose name has no ending."""
    return path.startswith("/dev/") and not path.startswith("/dev/shm/")  # a folder


# --- types --------------------------------------------------------------------------

Positive = Annotated[T, positive]
NotNegative = Annotated[T, not_negative]
Seed = Annotated[int, seed]
Share = Annotated[float, within("[0, 1)")]
DType = Literal["float32", "bfloat16"]
File = Annotated[str, Place()]  # or a folder
Files = Annotated[str, Place(several=True)]
LocalFile = Annotated[str, Place(local=True)]
CacheFolder = Annotated[File, Local("")]
RunFolder = Annotated[str, Place(model=True), Content(may_vanish=False)]
TokenizerPlace = Annotated[str, Place(local=True, tokenizer=True), Content()]
Step = Annotated[str, check_step]
Free = Annotated[T, MayChange()]
ByContent = Annotated[T, Content()]
