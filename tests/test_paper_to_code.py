"""docs/paper-to-code.md: the code and the tests that it names exist, and its counts."""

import ast
import functools
import importlib
import operator
import re

from tiny_run import ROOT, load_config

DOCS = ROOT / "docs"
PAGE = (DOCS / "paper-to-code.md").read_text()
NAME = r"\[`([^`]+)`\]\((\.\./[^)]+)\)"  # [`name`](../file)


def names_in(text, folder="."):
    """The names in a text that lead to a file below a folder, with that file."""
    found = [(name, (DOCS / file).resolve()) for name, file in re.findall(NAME, text)]
    return [pair for pair in found if pair[1].is_relative_to(ROOT / folder)]


def split_name(name, file):
    """A module to import, and the names in it: ("gpt1_jax.ops.gelu", ["gelu"])."""
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    inside = f"gpt1_jax.{name}".removeprefix(module)
    assert inside[:1] in ("", "."), f"{name} does not lead to its own file, but {file}"
    return module, inside.split(".")[1:]


@functools.cache
def definitions(file):
    """The functions and classes of a file, by name."""
    body = ast.parse(file.read_text()).body
    return {node.name: node for node in body if hasattr(node, "name")}


def tables(num_columns):
    """The rows of the page's tables of so many columns, without their heads."""
    rows = [line[2:-2].split(" | ") for line in PAGE.splitlines() if line[:1] == "|"]
    heads = ("---", "paper", "theirs", "read")
    return [row for row in rows if len(row) == num_columns and row[0] not in heads]


def test_the_code_that_the_page_names_exists():
    named = names_in(PAGE, "gpt1_jax")
    assert len(named) > 100
    for name, file in named:
        module, names = split_name(name, file)
        found = importlib.import_module(module)
        for each in names:
            assert hasattr(found, each), f"there is no {name}"
            found = getattr(found, each)


def test_the_tests_that_the_page_names_exist():
    named = names_in(PAGE, "tests")
    assert len(named) > 90
    for name, file in named:
        assert name.startswith("test_") and name in definitions(file), name


def test_the_values_that_the_page_names_exist():
    named = names_in(PAGE, "configs")
    assert len(named) > 5
    for name, file in named:
        config = load_config("", file=file.stem).to_dict()
        keys = name.removeprefix("config.").split(".")
        functools.reduce(operator.getitem, keys, config)


def test_every_row_names_code_and_tests_or_says_that_there_are_none():
    rows = tables(4)
    assert len(rows) > 80
    for _, _, code, test in rows:
        named = names_in(code, "gpt1_jax") or names_in(code, "configs")
        assert named or code.startswith("none"), code
        assert names_in(test, "tests") or test == "-", test


def names_read(text):
    """The names in a row of the reading: parts of a module follow its link."""
    inside = re.findall(r"`(\w+)`", re.sub(NAME, "", text))
    named = names_in(text)
    parts = [(f"{name}.{each}", file) for name, file in named for each in inside]
    return parts or named


def count_lines(name, file):
    """The lines of a module, or of a function or class in it."""
    _, names = split_name(name, file)
    if not names:
        return len(file.read_text().splitlines())
    node = definitions(file)[names[0]]
    first = min(part.lineno for part in [node, *node.decorator_list])
    return node.end_lineno - first + 1


def test_the_reading_is_as_long_as_the_page_says():
    """To a tenth, or three lines: small changes of the code need none of the page."""
    *rows, (_, total, _) = tables(3)
    for read, lines, _ in rows:
        counted = sum(count_lines(*pair) for pair in names_read(read))
        near = abs(counted - int(lines)) <= max(3, 0.1 * counted)
        assert near, f"write {counted} instead of {lines} beside {read}"
    expected = f"{sum(int(lines) for _, lines, _ in rows):,}"
    assert total == expected, "the last row is not the sum of those above"
    assert f"These {total} lines" in PAGE
