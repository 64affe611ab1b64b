"""What the devices of a compiled program tell each other."""

import re

import jax

KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
COLLECTIVE = re.compile(rf" = (.+?) ({KINDS})(?:-start)?\(")
ARRAY = re.compile(r"\w+\[([\d,]*)\]")


def collectives(compiled: jax.stages.Compiled) -> list[tuple[str, list[tuple]]]:
    """The kind of each collective operation, and the shapes that a device gets."""
    return [
        (kind, [_shape(dims) for dims in ARRAY.findall(arrays)])
        for arrays, kind in COLLECTIVE.findall(compiled.as_text())
    ]


def _shape(dims: str) -> tuple[int, ...]:
    return tuple(int(size) for size in dims.split(",") if size)
