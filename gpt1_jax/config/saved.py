"""Configurations read back from run folders, of this version or an earlier one.

A run folder may come from a stranger. It never decides which folders of this machine
are read and written, how many processes run, how long they wait (`MACHINE`), or what is
imported: that is for the person at the keyboard.

A key that a folder lacks has its default, which must be what the run did; one that is
gone or unknown is passed over.
"""

import functools
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from gpt1_jax.config import find_job, load_flat
from gpt1_jax.config.checks import (
    MACHINE,
    check_encodable,
    keys_of,
    marked_keys,
    require,
)
from gpt1_jax.config.flat import flatten, replace_gone
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.errors import UserError
from gpt1_jax.formats import FORMAT, RUN_FOLDER, VERSION, is_newer

# An object's key that says which of its nulls stand for numbers that JSON lacks:
# {"loss": null, "not_finite": {"loss": "NaN"}}.
NOT_FINITE = "not_finite"
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


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
    """Parses JSON and restores the numbers that are not finite (`NOT_FINITE`).

    Raises:
      ValueError, RecursionError: as `json.loads` does.
    """
    value = json.loads(text)
    if isinstance(value, dict) and NOT_FINITE in value:
        return _marked(value, value.pop(NOT_FINITE))
    return value


def _marked(value: Any, marks: Any) -> Any:
    """Replaces the marked nulls in a value by NaN and infinities."""
    if value is None and marks in _NO_NUMBERS:
        return float(marks)
    if isinstance(value, dict) and isinstance(marks, dict):
        return {key: _marked(each, marks.get(key)) for key, each in value.items()}
    if isinstance(value, list) and isinstance(marks, dict):
        return [_marked(each, marks.get(str(i))) for i, each in enumerate(value)]
    return value


def saved_values(config: JobConfig) -> dict[str, Any]:
    """The contents of a run folder's `config.json`: format and configuration."""
    return {**RUN_FOLDER.stamp(), **config.to_dict()}


def read_values(path: epath.PathLike) -> dict[str, Any]:
    """The values of the configuration in a run folder's `config.json`.

    A line names keys that are unknown, such as a note.

    Raises:
      UserError: if the file is damaged, or the run folder is of another format; if a
        later version wrote it, with keys that this one does not know.
    """
    values = read_json(path)
    if "job" in values:  # else it is not a run's
        RUN_FOLDER.check(values, epath.Path(path).parent)
    version = values.pop(VERSION, None)
    values.pop(FORMAT, None)
    try:
        _, unknown = _known_and_unknown(values)
    except (UserError, RecursionError):  # `load_values` says what is wrong
        return values
    if unknown:
        named = f"{', '.join(unknown):.200}"
        require(
            not is_newer(version),
            f"{path} is of gpt1_jax {version!s:.40}, which is newer, and has keys that "
            f"this version does not know: {named}. Use that version.",
        )
        _say_ignored(os.fspath(path), named)
    return values


@functools.cache  # once for each file
def _say_ignored(path: str, named: str) -> None:
    logging.warning("%s has unknown keys, which are ignored: %s.", path, named)


def load_saved(path: epath.PathLike) -> Any:
    """The configuration that a run folder was written with.

    Keys that only matter to the machine it ran on have their defaults.

    Args:
      path: a `config.json`.

    Raises:
      UserError: if the file is not a configuration, or not one that this version
        can run.
    """
    values = read_values(path)
    if "job" not in values and "model_type" in values:  # as transformers writes it
        raise UserError(
            f"{path} is that of a folder for transformers; make a run of it with "
            "--config=configs/convert.py:run --config.init_from="
            f"{epath.Path(path).parent} --workdir=NEW."
        )
    try:
        return load_values(values)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a run's configuration: {error}") from error


def load_values(values: Mapping[str, Any]) -> Any:
    """Builds the configuration from saved values, as `load_saved` does."""
    return load_flat(portable_values(values))


def portable_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration without keys that only matter to one machine, flat.

    Raises:
      UserError: if it names no known job.
    """
    machine = marked_keys(find_job(values.get("job")).config_class(), MACHINE)
    return {k: v for k, v in known_values(values).items() if k not in machine}


def known_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a saved configuration whose keys its job has, flat.

    Raises:
      UserError: if it names no known job.
    """
    return _known_and_unknown(values)[0]


def _known_and_unknown(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A saved configuration's flat values, and the keys that its job does not have.

    A key that takes the place of a section, or makes one of a value, is known.
    """
    cls: Any = find_job(values.get("job")).config_class()
    names = [f"{each.name}." for each in keys_of(cls)]

    def is_known(key: str) -> bool:
        place = f"{key}."
        return any(name.startswith(place) or place.startswith(name) for name in names)

    found, _ = replace_gone(flatten(values))
    known = {key: value for key, value in found.items() if is_known(key)}
    return known, [key for key in found if key not in known]
