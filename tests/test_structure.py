"""The walls of the house: which room may import which, and how large rooms are."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpt1_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room may import itself and the rooms before it.
ORDER = [
    {"", "config", "ops", "parallel"},  # "" is the package itself
    {"data", "model"},
    {"tasks", "inference", "interop"},
    {"training"},
    {"evaluation"},
    {"main"},
]
ONLY_IN = {
    "flax": {"model"},
    "orbax": {"training/checkpoint.py"},
    "torch": set(),
    "tensorflow": set(),
}


def room(parts):
    return parts[0].removesuffix(".py").replace("__init__", "") if parts else ""


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
            assert here.parts[0] not in ("data", "tasks"), f"{here} imports {name}"
        if top in ONLY_IN:
            places = {room(here.parts), str(here)}
            assert places & ONLY_IN[top], f"{here} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= 60, f"{node.name} has {lines} lines"
