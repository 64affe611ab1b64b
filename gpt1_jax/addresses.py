"""Addresses such as hf://ORG/NAME, which become folders and files before a job.

That of a model becomes a run folder, that of a tokenizer the file with its rules, and
that of files of a dataset their paths.
"""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpt1_jax import config as config_lib
from gpt1_jax.config.checks import (
    MODEL,
    PLACE,
    SEVERAL,
    TOKENIZER,
    marked_keys,
    split_paths,
)
from gpt1_jax.config.flat import flatten
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.errors import UserError, find_named

# What makes a folder of an address, by scheme; imported on demand. It takes the
# address, the key that holds it, and whether the folder must be a run folder.
_FETCH: Mapping[str, str] = {"hf": "gpt1_jax.interop.hub:fetch"}
# What makes a file of a tokenizer's address. It takes the address and its key.
_FETCH_TOKENIZER: Mapping[str, str] = {"hf": "gpt1_jax.interop.hub:fetch_tokenizer"}
# What makes the paths of files of the address of a dataset. Arguments as above.
_FETCH_FILES: Mapping[str, str] = {"hf": "gpt1_jax.interop.hub_files:fetch_files"}
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def resolve(config: JobConfig) -> Any:
    """A job's configuration with folders and files in place of addresses.

    Raises:
      UserError: if an address cannot be fetched, or the folders do not go together.
    """
    values = flatten(config.to_dict())
    as_run = config.job != "convert"  # which reads any folder
    for key, marks in marked_keys(type(config), PLACE).items():
        fetch: Callable[[str, str], str]  # of a name and its key
        if MODEL in marks:
            fetch = functools.partial(resolve_model, as_run=as_run)
        elif TOKENIZER in marks:
            fetch = functools.partial(_resolve, fetch=_FETCH_TOKENIZER)
        elif SEVERAL in marks:
            fetch = _fetch_files
        else:
            continue
        named = split_paths(values[key]) if SEVERAL in marks else [values[key]]
        found = [fetch(each, f"config.{key}") for each in named]
        if found != named:
            values[key] = found if SEVERAL in marks else found[0]
    unchanged = values == flatten(config.to_dict())
    return config if unchanged else config_lib.load_flat(values)


def resolve_model(place: str, key: str = "", as_run: bool = True) -> str:
    """The folder of a model: that at an address, or the place itself.

    Args:
      place: an address, or a folder.
      key: the key that holds it, for messages.
      as_run: whether a run folder is wanted, not one as it was published.

    Raises:
      UserError: if the address cannot be fetched, or the place is no folder but looks
        like a name on the Hub.
    """
    return _resolve(place, key, _FETCH, as_run)


def _fetch_files(paths: str, key: str) -> str:
    scheme, is_address, _ = paths.partition("://")
    if not (is_address and scheme in _FETCH_FILES):  # perhaps the name of a dataset
        return paths
    fetch = find_named(_FETCH_FILES[scheme], f"{key}={paths}")
    return str(fetch(paths, key))


def _resolve(place: str, key: str, fetch: Mapping[str, str], *options: Any) -> str:
    scheme, is_address, _ = place.strip().partition("://")
    if is_address and scheme in fetch:
        found = find_named(fetch[scheme], f"{key}={place}" if key else place)
        return found(place.strip(), key, *options)
    if _NAME.fullmatch(place) and not Path(place.partition("/")[0]).exists():
        named = f"{key}={place!r}" if key else repr(place)
        raise UserError(
            f"{named} does not exist in the working folder {Path.cwd()}. For one "
            f"on the Hugging Face Hub, write hf://{place}."
        )
    return place
