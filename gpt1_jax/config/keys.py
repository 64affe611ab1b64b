"""Describes keys by their fields, for help and for the page docs/configuration.md.

The comments above and beside a field say what its key means.
"""

import ast
import contextlib
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from gpt1_jax.config.checks import KINDS, Key, Limit, keys_of
from gpt1_jax.config.flat import flatten

_INDENT = 6 * " "


class Description(NamedTuple):
    """A key and what its field says of it."""

    key: Key
    values: str  # the values that it takes
    comment: str


def describe_keys(cls: Any) -> list[Description]:
    """The keys of a configuration, those of sections after the others."""
    keys = sorted(keys_of(cls), key=lambda each: "." in each.name)
    comments = {each.section: _comments(each.section) for each in keys}
    return [
        Description(
            each,
            _describe_values(each.kind),
            comments[each.section].get(each.name.rpartition(".")[2], ""),
        )
        for each in keys
    ]


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
    return KINDS[kind].removeprefix("a ")


def _comments(cls: Any) -> dict[str, str]:
    """The comments at the fields of a class and its bases, by the field's name."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if dataclasses.is_dataclass(each):
            with contextlib.suppress(OSError):  # of a job outside, without a file
                found |= _own_comments(each)
    return found


def _own_comments(cls: Any) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(cls))
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
    """Lines with each key of a class, its value and its comment, for a terminal."""
    flat, lines = flatten(values), []
    for each in describe_keys(cls):
        if (name := each.key.name) in flat:
            lines.append(f"  --config.{name}={flat[name]!r}")
            lines += textwrap.wrap(
                each.comment, 88, initial_indent=_INDENT, subsequent_indent=_INDENT
            )
    return "\n".join(lines)
