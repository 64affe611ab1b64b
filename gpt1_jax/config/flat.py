"""Configurations by flat keys, `{"train.num_steps": 3}`, also of earlier versions."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpt1_jax.config.checks import require

RENAMED = {"data.jsonl_field": "data.text_field", "plot": "figure"}  # keys of 1.0
# Two ways of 1.0 to share the work of a step, which never changed what it computes: a
# key that is gone, with the value that did nothing, and a value, with today's nearest.
GONE = {"mesh.tensor_parallelism": 1}
REPLACED = {"mesh.sharding": ("optimizer", "full")}


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; lists become tuples.

    Raises:
      UserError: if a key holds a dot.
    """
    return dict(_flat(tree, ""))


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        require("." not in key, f"the key {key!r} holds a dot.")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, _tuples(value)


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tuples(each) for each in value)
    return value


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


def rename_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values under the names of today, without gone keys that did nothing."""
    return {
        RENAMED.get(key, key): value
        for key, value in flat.items()
        if not (key in GONE and value == GONE[key])
    }


def replace_gone(flat: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Flat values of a saved configuration as today has them.

    Returns:
      The values, and a sentence for each that is gone.
    """
    found, gone = {}, []
    for key, value in rename_keys(flat).items():
        before, now = REPLACED.get(key, (None, None))
        if key in GONE or (key in REPLACED and value == before):
            gone.append(
                f"config.{key}={value!r} is gone since this run began, which continues "
                "without."
            )
        if key not in GONE:
            found[key] = now if key in REPLACED and value == before else value
    return found, gone
