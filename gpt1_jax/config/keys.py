"""Describes keys by their fields, for help and for the page docs/configuration.md.

The comments above and beside a field say what its key means.
"""

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from gpt1_jax.config.checks import Limit, marks, section_type
from gpt1_jax.config.flat import flatten

_INDENT = 6 * " "
_KINDS = {bool: "True or False", int: "whole number", float: "number", str: "text"}


class Key(NamedTuple):
    """A key of a configuration, as its field describes it."""

    name: str  # flat: "train.num_steps"
    values: str  # the values that it takes
    comment: str
    marks: frozenset[str]


def describe_keys(cls: Any) -> list[Key]:
    """The keys of a configuration, those of sections after the others."""
    return sorted(_keys(cls, "", frozenset()), key=lambda key: "." in key.name)


def _keys(cls: Any, prefix: str, outer: frozenset[str]) -> Iterator[Key]:
    comments = _comments(cls)
    for field in dataclasses.fields(cls):
        name, found = f"{prefix}{field.name}", outer | marks(field.type)
        if section := section_type(field.type):
            yield from _keys(section, f"{name}.", found)
        else:
            comment = comments.get(field.name, "")
            yield Key(name, _describe_values(field.type), comment, found)


def _describe_values(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
        musts = [f"must {each.must}" for each in limits if isinstance(each, Limit)]
        return ", ".join([_describe_values(kind), *musts])
    if get_origin(kind) is Literal:
        return " or ".join(f'"{each}"' for each in get_args(kind))
    if get_origin(kind) is tuple:
        parts = [each for each in get_args(kind) if each is not Ellipsis]
        return f"several: {_describe_values(parts[0])}"
    return _KINDS[kind]


def _comments(cls: Any) -> dict[str, str]:
    """The comments at the fields of a class and its bases, by the field's name."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if dataclasses.is_dataclass(each):
            found |= _own_comments(each)
    return found


def _own_comments(cls: Any) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:  # a class of a job outside, without a file
        return {}
    lines = source.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokens
        if token.type == tokenize.COMMENT
    }
    (node,) = ast.parse(source).body
    found = {}
    for field in getattr(node, "body", []):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            first = field.lineno
            while lines[first - 2].lstrip().startswith("#"):
                first -= 1
            spanned = range(first, (field.end_lineno or field.lineno) + 1)
            words = [comments[line] for line in spanned if line in comments]
            found[field.target.id] = " ".join(words)
    return found


def describe_values(cls: Any, values: Mapping[str, Any]) -> str:
    """Lines with each key, its value and its comment, for a terminal.

    Args:
      cls: the class of the configuration.
      values: of its keys.
    """
    flat, lines = flatten(values), []
    for key in describe_keys(cls):
        if key.name in flat:
            lines.append(f"  --config.{key.name}={flat[key.name]!r}")
            lines += textwrap.wrap(
                key.comment, 88, initial_indent=_INDENT, subsequent_indent=_INDENT
            )
    return "\n".join(lines)
