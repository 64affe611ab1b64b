"""Types and limits of configuration values, read once from a section's fields.

A field says everything about its key: the type with its limits and marks, the default,
and in comments beside it what it means (`config.keys` reads them for help and pages):

    # Updates, instead of epochs.
    num_steps: NotNegative[int] = 0

What holds for a whole section may be said where it is a field:
`mesh: Free[MeshConfig]`. Rules about several keys are in the `__post_init__` of their
section. A key without a default must be given: the recipes in `configs/` do so.
"""

import dataclasses
import functools
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

T = TypeVar("T")

# Marks of a key, or of a section, in its type: `Annotated[int, FREE]`. A key without
# one of the first three decides what a run computes, and must stay when it resumes.
FREE = "free"  # may change when a run resumes
CONTENT = "content"  # may change if what it names has the same content, by its digest
MACHINE = "machine"  # of this machine: run folders do not decide it, and it may change
PLACE = "place"  # names a file or folder
SEVERAL = "several"  # names several, separated by commas
LOCAL = "local"  # names one on this machine, not in a bucket
MODEL = "model"  # names a run folder, or has the address of a model
TOKENIZER = "tokenizer"  # names a tokenizer, or has the address of one
NAMES = "names"  # a tuple that is one text with commas on the command line: a,b


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a configuration; refuses values that its fields do not take."""

    section: ClassVar[str] = ""  # its name; "" for the whole configuration

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if not section_type(field.type):
                key = _key(self.section, field.name)
                check_value(key, field.type, getattr(self, field.name))


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
    return max(
        kinds, key=lambda each: sum(f.name in values for f in dataclasses.fields(each))
    )


class Key(NamedTuple):
    """A key of a configuration, as its field has it."""

    name: str  # with its section: "train.num_steps"
    kind: Any  # the field's type, with marks and limits
    default: Any  # `dataclasses.MISSING` if it must be given
    marks: frozenset[str]  # its own and those of its section
    section: Any  # the class with the field


@functools.cache
def keys_of(cls: Any) -> tuple[Key, ...]:
    """The keys of a configuration; of a union of sections, those of the last."""
    return tuple(_keys(cls, dataclasses.MISSING, "", frozenset()))


def _keys(cls: Any, default: Any, prefix: str, outer: frozenset[str]) -> Iterator[Key]:
    for field in dataclasses.fields(cls):
        name, found = f"{prefix}{field.name}", outer | marks(field.type)
        value = getattr(default, field.name, field.default)
        if section := section_type(field.type):
            yield from _keys(section, value, f"{name}.", found)
        else:
            yield Key(name, field.type, value, found, cls)


def marks(kind: Any) -> frozenset[str]:
    """The marks, such as `PLACE`, in a field's type."""
    metadata = getattr(kind, "__metadata__", ())
    return frozenset(each for each in metadata if isinstance(each, str))


def marked_keys(cls: Any, *wanted: str) -> dict[str, frozenset[str]]:
    """The keys of a configuration that have one of some marks, or whose section does.

    Returns:
      The marks of each key and its section: `{"data.valid": {"content"}}`.
    """
    keys = keys_of(cls)
    return {each.name: each.marks for each in keys if each.marks.intersection(wanted)}


def default_values(cls: Any) -> dict[str, Any]:
    """The defaults of a configuration, without those that must be given, flat."""
    return {
        each.name: each.default
        for each in keys_of(cls)
        if each.default is not dataclasses.MISSING
    }


def split_paths(paths: str) -> list[str]:
    r"""The names between commas; "\," or a name that exists keeps its commas."""
    if os.path.exists(os.path.expanduser(paths)):
        return [paths]
    parts = re.split(r"(?<!\\),", paths)
    return [path.strip().replace(r"\,", ",") for path in parts]


def places(section: Any, key: str = "config") -> Iterator[tuple[str, str, bool]]:
    """The files and folders that a configuration, or a section of it, names.

    Yields:
      The key of each, its path, and whether it must be local.
    """
    for field in dataclasses.fields(section):
        value, name = getattr(section, field.name), f"{key}.{field.name}"
        if dataclasses.is_dataclass(value):
            yield from places(value, name)
        elif PLACE in (found := marks(field.type)):
            for path in split_paths(value) if SEVERAL in found else (value.strip(),):
                yield name, path, LOCAL in found


def _key(*names: str) -> str:
    return ".".join(("config", *filter(None, names)))


def _plain(kind: Any, value: Any) -> Any:
    """Turns lists into tuples, or paths; and numbers among names back into text."""
    found = marks(kind)
    if SEVERAL in found and isinstance(value, list | tuple):
        return ",".join(str(path).replace(",", r"\,") for path in value)
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if not (get_origin(kind) is tuple and isinstance(value, list | tuple)):
        return value
    if get_args(kind)[0] is str:
        value = [str(x) if type(x) in (int, float, bool) else x for x in value]
    if NAMES in found and len(value) == 1 and isinstance(value[0], str):
        names = value[0].strip()
        value = [name.strip() for name in names.split(",")] if names else ()
    return tuple(value)


# --- checking a value ---------------------------------------------------------------

# Types of values, in words.
KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


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
        require(fits, f"{key}={value!r:.80} must be {KINDS[kind]}.")
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


class Limit(NamedTuple):
    """A limit of a key's values; a call refuses a value beyond it."""

    must: str  # "be positive", after "the value must"
    holds: Callable[[Any], bool]  # of a value within it
    message: str = ""  # instead of one that names the value and `must`

    def __call__(self, key: str, value: Any) -> None:
        named = f"{key}={value!r} must {self.must}."
        require(self.holds(value), self.message or named)


positive = Limit("be positive", lambda value: value > 0)
not_negative = Limit("not be negative", lambda value: value >= 0)
seed = Limit("be a whole number in [0, 2**32)", lambda value: 0 <= value < 2**32)
not_empty = Limit("name one or more", bool)
different = Limit(
    "be different names, none of them empty",
    lambda value: all(value) and len(set(value)) == len(value),
)


def at_least(least: float, because: str) -> Limit:
    """Refuses smaller numbers."""
    return Limit(f"be at least {least}{because}", lambda value: value >= least)


def at_most(most: float, because: str) -> Limit:
    """Refuses larger numbers."""
    return Limit(f"be at most {most:,}{because}", lambda value: value <= most)


def within(interval: str, hint: str = "") -> Limit:
    """Refuses numbers outside an interval such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))
    ends = {low} if interval[0] == "[" else set()
    ends |= {high} if interval[-1] == "]" else set()
    return Limit(
        f"lie in {interval}{hint}", lambda value: low < value < high or value in ends
    )


def given(message: str) -> Limit:
    """Refuses an empty text with a message."""
    return Limit("be given", bool, message)


def rising(example: str, least: int = 1) -> Limit:
    """Refuses amounts that are too small or not rising."""
    return Limit(
        f"be whole numbers from {least} on in rising order, such as {example}",
        lambda value: all(a < b for a, b in itertools.pairwise((least - 1, *value))),
    )


def matches(pattern: str, must: str) -> Limit:
    """Refuses text that a regular expression does not match as a whole."""
    return Limit(must, lambda value: re.fullmatch(pattern, value) is not None)


def ends_in(*endings: str, optional: bool = False, device: bool = False) -> Limit:
    """Refuses a file's name with another ending.

    Args:
      endings: such as ".csv".
      optional: whether the name may be empty.
      device: whether it may name a device.
    """

    def holds(value: str) -> bool:
        allowed = (optional and not value) or (device and is_device(value))
        return allowed or value.endswith(endings)

    return Limit(f"end in {' or '.join(endings)}", holds)


# --- names of saved steps -----------------------------------------------------------

# In place of a step's number; the default is a fine-tuned run's best, else the newest.
DEFAULT, NEWEST, BEST = "default", "newest", "best"
ALL, MILESTONES = "all", "milestones"  # each saved step, or those kept for good


def check_step(key: str, step: str, *several: str) -> None:
    """Refuses text that names no saved step of a run.

    Args:
      key: the key that holds the step, for the message.
      step: `DEFAULT`, `NEWEST`, `BEST` or a number.
      several: further words that are allowed.
    """
    words = (DEFAULT, NEWEST, BEST, *several)
    require(
        step in words or re.fullmatch("[0-9]{1,18}", step) is not None,
        f"{key}={step!r} must be {', '.join(words)} or the number of a saved step, "
        "such as 1200.",
    )


def check_steps(key: str, step: str) -> None:
    """Refuses text that names no saved step, or steps, of a run."""
    require(step != "kept", f"{key}='kept' is now {key}={MILESTONES!r}.")
    check_step(key, step, ALL, MILESTONES)


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
FigureSuffix = Literal[".png", ".svg", ".pdf"]  # of the figures in an output folder
Names = Annotated[tuple[str, ...], NAMES]
File = Annotated[str, PLACE]  # or a folder
Files = Annotated[str, PLACE, SEVERAL]
FIGURE_SUFFIXES = get_args(FigureSuffix)
FigureFile = Annotated[str, PLACE, ends_in(*FIGURE_SUFFIXES)]  # or a suffix alone
LocalFile = Annotated[str, PLACE, LOCAL]
CacheFolder = Annotated[str, PLACE, MACHINE]
RunFolder = Annotated[str, PLACE, MODEL, CONTENT]
OptionalRunFolder = Annotated[str, PLACE, MODEL]
RunFolders = Annotated[str, PLACE, SEVERAL, MODEL]
TokenizerPlace = Annotated[str, PLACE, LOCAL, TOKENIZER, CONTENT]
Step = Annotated[str, check_step]
Steps = Annotated[str, check_steps]
Free = Annotated[T, FREE]
ByContent = Annotated[T, CONTENT]
