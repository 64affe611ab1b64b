"""The walls of the house: which room may import which."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpt1_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room may import itself and the rooms before it, not those of its own rank.
ORDER = [
    {"errors"},
    {"config", "ops", "parallel"},
    {"data", "model"},
    {"tasks", "inference", "interop"},
    {"runs", "evaluation"},
    {"training", "report"},
    {"trained_model"},
    {"", "jobs"},  # the first is the package itself
    {"main"},
    {"__main__"},
]
ONLY_IN = {
    "flax": {"model"},
    "orbax": {"runs/checkpoints.py"},
    "matplotlib": {"report"},
    "tensorflow_datasets": {"data/tfds.py"},
    "torch": {"interop/weight_files.py"},  # to read .bin files
    "tensorflow": set(),
}
WITHOUT_JAX = {"config", "data", "tasks"}


def room(parts):
    name = parts[0].removesuffix(".py") if parts else ""
    return "" if name == "__init__" else name


def imported(path):
    """Dotted names of all modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rank(name):
    return next(i for i, rooms in enumerate(ORDER) if name in rooms)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    here = path.relative_to(PACKAGE)
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "gpt1_jax" and rest.split(".")[0] not in ("__version__", ""):
            other = rest.split(".")[0]
            allowed = rank(other) < rank(room(here.parts)) or other == room(here.parts)
            assert allowed, f"{here} imports {name}"
        if top in ("jax", "jaxlib", "flax"):
            assert room(here.parts) not in WITHOUT_JAX, f"{here} imports {name}"
        if top in ONLY_IN:
            places = {room(here.parts), str(here)}
            assert places & ONLY_IN[top], f"{here} imports {name}"


def test_every_room_has_a_rank_and_every_rank_a_room():
    rooms = {room(path.relative_to(PACKAGE).parts) for path in FILES}
    named = set().union(*ORDER)
    assert rooms <= named
    assert named <= rooms, "a room that is not there"
