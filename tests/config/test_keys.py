"""Keys are described by their fields, for help and the page of keys."""

import functools
import importlib.util

import pytest
from tiny_run import ROOT

from gpt1_jax.config import JOBS, keys

spec = importlib.util.spec_from_file_location(
    "make_configuration", ROOT / "docs" / "make_configuration.py"
)
make_configuration = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_configuration)
# Tests describe the keys of all jobs, which takes seconds; jobs share sections.
keys._own_comments = functools.cache(keys._own_comments)
described = make_configuration.describe_keys = functools.cache(keys.describe_keys)


@pytest.mark.parametrize("job", JOBS)
def test_every_key_has_a_comment(job):
    found = described(JOBS[job].config_class())
    assert [each.key.name for each in found if not each.comment] == []


def taken():
    """What each key takes in the jobs that have it, by its name."""
    values: dict[str, set[str]] = {}
    for job in JOBS:
        for each in described(JOBS[job].config_class()):
            values.setdefault(each.key.name, set()).add(each.values)
    return values


def test_a_key_takes_the_same_in_every_job():
    """The page explains it once."""
    assert {name for name, values in taken().items() if len(values) > 1} == {
        *("data.dir", "data.source", "figure", "init_from", "input", "output", "tasks")
    }


def test_every_number_has_limits_but_for_those_of_saved_steps():
    assert {
        name
        for name, values in taken().items()
        if any("number" in each and "must" not in each for each in values)
    } == {"eval.first_epoch_steps", "steps"}


def test_the_page_of_keys_is_that_of_the_fields():
    """Otherwise: python docs/make_configuration.py > docs/configuration.md"""
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == make_configuration.make_page()
