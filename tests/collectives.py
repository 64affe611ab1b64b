"""What the devices of a compiled program tell each other."""

import jax

from benchmarks.compiler import hlo


def collectives(compiled: jax.stages.Compiled) -> list[tuple[str, list[tuple]]]:
    """The kind of each collective operation, and the shapes that a device gets."""
    found = hlo.collectives(compiled.as_text()).elements()
    return [(collective.kind, list(collective.shapes)) for collective in found]
