"""Addresses of models, such as hf://ORG/NAME, which become run folders before a job."""

import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt1_jax.errors import UserError

# What makes a folder of an address, by scheme; imported on demand. It takes the
# address, the key that holds it, and whether the folder must be a run folder.
_FETCH: Mapping[str, str] = {"hf": "gpt1_jax.interop.hub:fetch"}
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def resolve(values: Mapping[str, Any], key: str = "config") -> dict[str, Any]:
    """The values of a configuration with folders in place of its models' addresses.

    Args:
      values: the configuration, or a section of it. Models are what is named by keys
        that end in `init_from`, and by `runs`.
      key: its key.

    Raises:
      UserError: if an address cannot be fetched.
    """
    as_run = values.get("job") != "convert"  # which reads any folder
    resolved = dict(values)
    for name, value in values.items():
        if isinstance(value, Mapping):
            resolved[name] = resolve(value, f"{key}.{name}")
        elif isinstance(value, str) and name.endswith("init_from"):
            resolved[name] = resolve_model(value, f"{key}.{name}", as_run)
        elif isinstance(value, str) and name == "runs" and "://" in value:
            found = (resolve_model(each, f"{key}.{name}") for each in value.split(","))
            resolved[name] = ",".join(found)
    return resolved


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
    scheme, is_address, _ = place.strip().partition("://")
    if is_address and scheme in _FETCH:
        return pkgutil.resolve_name(_FETCH[scheme])(place.strip(), key, as_run)
    if _NAME.fullmatch(place) and not Path(place.partition("/")[0]).exists():
        named = f"{key}={place!r}" if key else repr(place)
        raise UserError(
            f"{named} does not exist in the working folder {Path.cwd()}. For a model "
            f"on the Hugging Face Hub, write hf://{place}."
        )
    return place
