"""Keys are described by their fields, for help and the page of keys."""

import dataclasses
import functools
import importlib.util
from typing import Annotated, Literal

import pytest
from tiny_run import ROOT

from gpt1_jax.config import JOBS, checks
from gpt1_jax.config.checks import Free, Limit, Positive, Section
from gpt1_jax.config.keys import describe_keys, describe_values

spec = importlib.util.spec_from_file_location(
    "make_configuration", ROOT / "docs" / "make_configuration.py"
)
make_configuration = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_configuration)
# Two tests describe the keys of all jobs, which takes seconds.
described = make_configuration.describe_keys = functools.cache(describe_keys)


@dataclasses.dataclass(frozen=True)
class Inner(Section):
    # Above it, over
    # two lines.
    above: Positive[int] = 1  # and beside it

    bare: Literal["a", "b"] = "a"


@dataclasses.dataclass(frozen=True)
class Base(Section):
    inherited: str = ""  # from the base
    replaced: float = 1.0  # of the base


@dataclasses.dataclass(frozen=True)
class Outer(Base):
    """# no comment of a field"""

    replaced: float = 2.0  # of the class
    # Inside,
    several: Annotated[  # and
        tuple[int, ...],
        Limit("be few", lambda value: len(value) < 3),  # between
    ] = ()
    inner: Free[Inner] = Inner()


def test_a_key_is_described_by_its_field_and_the_comments_there():
    keys = {each.key.name: each for each in describe_keys(Outer)}
    assert list(keys) == [
        *("inherited", "replaced", "several", "inner.above", "inner.bare"),
    ]
    comments = [key.comment for key in keys.values()]
    assert comments == [
        "from the base",
        "of the class",
        "Inside, and between",
        "Above it, over two lines. and beside it",
        "",
    ]
    assert keys["several"].values == "several: whole number, must be few"
    assert keys["inner.above"].values == "whole number, must be positive"
    assert keys["inner.bare"].values == '"a" or "b"'
    assert keys["inner.bare"].key.marks == {checks.FREE}
    assert not keys["several"].key.marks


def test_values_are_listed_with_their_comments():
    values = {"inner": {"above": 3}, "replaced": 1.5}
    assert describe_values(Outer, values).splitlines() == [
        "  --config.replaced=1.5",
        "      of the class",
        "  --config.inner.above=3",
        "      Above it, over two lines. and beside it",
    ]


@pytest.mark.parametrize("job", JOBS)
def test_every_key_has_a_comment(job):
    keys = described(JOBS[job].config_class())
    assert [each.key.name for each in keys if not each.comment] == []


def test_the_page_of_keys_is_that_of_the_fields():
    """Otherwise: python docs/make_configuration.py > docs/configuration.md"""
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == make_configuration.make_page()
