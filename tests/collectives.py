"""What the devices of a compiled program tell each other."""

import re
from collections.abc import Callable
from typing import Any

import jax

KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
COLLECTIVE = re.compile(rf" ({KINDS})(?:-start)?\(")


def collectives(jitted: Callable[..., Any], *arguments: jax.Array) -> set[str]:
    """The kinds of collective operations in a jitted function."""
    text = jitted.lower(*arguments).compile().as_text()
    return set(COLLECTIVE.findall(text))
