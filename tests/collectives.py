"""What the devices of a compiled program tell each other."""

import re

import jax

KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
COLLECTIVE = re.compile(rf" ({KINDS})(?:-start)?\(")


def collectives(compiled: jax.stages.Compiled) -> set[str]:
    """The kinds of collective operations in a compiled function."""
    return set(COLLECTIVE.findall(compiled.as_text()))
