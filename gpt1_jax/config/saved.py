"""Configurations read back from run folders, written by this version or an older one.

A run folder may come from a stranger. It never decides which folders of this machine
are read and written, how many processes run, how long they wait (`Local`), or what is
imported: that is for the person at the keyboard.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeVar

from etils import epath

from gpt1_jax.config import find_job, load_known
from gpt1_jax.config.checks import (
    DEFAULT,
    MILESTONES,
    NEWEST,
    Local,
    Newer,
    check_encodable,
    marked_keys,
    require,
)
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.errors import UserError

Config = TypeVar("Config", bound=JobConfig)

_KEEP_AT = "checkpoint.keep_at_"  # and a unit: what `checkpoint.milestone_UNIT` was
_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?[kMB]?"
_RANGE = re.compile(rf"({_NUMBER})(?::({_NUMBER}):([+*])({_NUMBER}))?")
_MOST_MILESTONES = 1000

# The key of an object that says which of its nulls stand for what JSON does not have:
# {"loss": null, "not_finite": {"loss": "NaN"}}.
NOT_FINITE = "not_finite"
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")

# Removed keys, and the values that change nothing about the run in a folder.
_REMOVED = {"model.dropout_impl": ("hash",), "suite.from_scratch": (False, True)}


def read_json(path: epath.PathLike) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      UserError: if the file cannot be read or holds anything else.
    """
    path = epath.Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        value = parse_json(text)
        if re.search(r"\\ud[89a-f]", text, re.IGNORECASE):
            check_encodable(json.dumps(value, ensure_ascii=False), "it holds a text")
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{path} cannot be read as JSON: {reason}.") from error
    require(
        isinstance(value, dict),
        f"{path} holds {value!r:.40}, not a JSON object {{...}}; it is damaged or was "
        "not written by this program.",
    )
    return value


def parse_json(text: str) -> Any:
    """The value of JSON, with the numbers that are not finite (`NOT_FINITE`).

    Files of earlier versions hold `NaN` itself, which is read too.

    Raises:
      ValueError, RecursionError: as `json.loads` does.
    """
    value = json.loads(text)
    if isinstance(value, dict) and NOT_FINITE in value:
        marks = value.pop(NOT_FINITE)
        return _marked(value, marks)
    return value


def _marked(value: Any, marks: Any) -> Any:
    """A value with NaN and infinities in the places of the nulls that are marked."""
    if value is None and marks in _NO_NUMBERS:
        return float(marks)
    if isinstance(value, dict) and isinstance(marks, dict):
        return {key: _marked(each, marks.get(key)) for key, each in value.items()}
    if isinstance(value, list) and isinstance(marks, dict):
        return [_marked(each, marks.get(str(i))) for i, each in enumerate(value)]
    return value


def load_saved(path: epath.PathLike) -> Any:
    """The configuration that a run folder was written with.

    Keys that are newer than the folder get the value that reproduces what the run did;
    keys that only matter to the machine it ran on are reset.

    Args:
      path: a `config.json`.

    Raises:
      UserError: if the file is not a configuration, or not one that this version
        can run.
    """
    values = read_json(path)
    try:
        return load_values(values)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a run's configuration: {error}") from error


def load_values(values: Mapping[str, Any]) -> Any:
    """The configuration that saved values are; see `load_saved`."""
    return load_known(without_local(upgrade(values)))


def upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration with today's keys, its lists turned into tuples.

    Raises:
      UserError: if it names no known job, or needs a value that no longer exists.
    """
    newer = newer_keys(find_job(values.get("job")).config_class())
    flat = flatten(values)
    for key, kept in _REMOVED.items():
        value = flat.pop(key, kept[0])
        require(
            value in kept,
            f"config.{key}={value!r} no longer exists; only {kept[0]!r} does. Use the "
            "version of gpt1_jax that wrote it.",
        )
    return unflatten({**newer, **_in_todays_words(flat)})


def _in_todays_words(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration, by flat keys, with steps and milestones as of today."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        if key.startswith(_KEEP_AT):
            unit = key.removeprefix(_KEEP_AT)
            values[f"checkpoint.milestone_{unit}"] = _read_keep_at(key, value)
        elif key in ("step", "init_step"):
            values["step"] = _read_step(value, bool(flat.get("init_from")))
        else:
            values[key] = value
    return values


def _read_step(step: Any, starts_from_run: bool) -> Any:
    """A step as of today; it was a number, -1 for the newest, or "kept" before."""
    if isinstance(step, int):
        newest = NEWEST if starts_from_run else DEFAULT
        return newest if step < 0 else str(step)
    return MILESTONES if step == "kept" else step


def _read_keep_at(key: str, text: Any) -> tuple[int, ...]:
    """The amounts in "1M:3M:+1M,10M:1B:*10": 1, 2, 3, 10, 100 and 1,000 million.

    Until 24 November 2026, milestones were written as ranges FIRST:LAST:+STEP or
    FIRST:LAST:*FACTOR and single amounts; k, M and B are thousands, millions, billions.
    """
    found: set[int] = set()
    for part in str(text).split(",") if text else ():
        amounts = list(itertools.islice(_amounts(part.strip()), _MOST_MILESTONES + 1))
        require(
            0 < len(amounts) <= _MOST_MILESTONES,
            f"config.{key}={text!r:.80}: {part!r:.40} is neither an amount nor a range "
            "of amounts.",
        )
        found.update(amounts)
    return tuple(sorted(found))


def _amounts(part: str) -> Iterator[int]:
    """The amounts of one part; none if it cannot be read."""
    match = _RANGE.fullmatch(part)
    if match is None:
        return
    # A single amount is a range of one.
    amount, last = _number(match[1]), _number(match[2] or match[1])
    adds, change = match[3] != "*", _number(match[4] or "1")
    whole = amount.denominator == 1 and (change.denominator == 1 or not adds)
    grows = change >= 1 if adds else change > 1
    while whole and grows and 1 <= amount <= last:
        yield round(amount)
        amount = amount + change if adds else amount * change


def _number(text: str) -> Fraction:
    digits = text.rstrip("".join(_SUFFIXES))
    return Fraction(digits) * _SUFFIXES[text[len(digits) :]]


def adopt_older(config: Config, saved: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """The configuration with which a run resumes in an older version's folder.

    A run that has read the newest step goes on with it, even if the default step is
    asked for: until 24 November 2026, the newest was every job's default.

    Args:
      config: the configuration given now.
      saved: the values in the folder's `config.json`.

    Returns:
      The configuration with the neutral value of every key that the folder lacks, and
      a sentence for each value that differs from the one given.
    """
    given, held = flatten(config.to_dict()), _in_todays_words(flatten(saved))
    newer = newer_keys(type(config))
    changed = {
        key: value
        for key, value in newer.items()
        if key not in held and given.get(key) != value
    }
    notes = [
        f"config.{key} is newer than this run, which continues with {value!r}."
        for key, value in changed.items()
    ]
    if (given.get("step"), held.get("step")) == (DEFAULT, NEWEST):
        changed["step"] = NEWEST
        notes.append(f"config.step={NEWEST!r} is what this run continues with.")
    if not changed:
        return config, []
    return load_known(unflatten({**given, **changed})), notes


def newer_keys(cls: Any) -> dict[str, Any]:
    """The keys that older folders may lack, and the values that stand in for them."""
    return {key: newer.neutral for key, newer in marked_keys(cls, Newer).items()}


def without_local(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration in which keys that only matter to one machine are reset."""
    local = marked_keys(find_job(values.get("job")).config_class(), Local)
    reset = {key: mark.default for key, mark in local.items()}
    return unflatten({**flatten(values), **reset})


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; lists become tuples."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        require("." not in key, f"the key {key!r} holds a dot.")
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = _tuples(value)
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`.

    Raises:
      UserError: if a key is both a value and a section.
    """
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
            require(isinstance(place, dict), f"config.{key}: {section!r} is a value.")
        place[name] = value
    return tree


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tuples(each) for each in value)
    return value
