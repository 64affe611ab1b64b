"""Keys are described by their fields, for help and the page of keys."""

import functools
import importlib.util

import pytest
from tiny_run import ROOT

from gpt1_jax.config import JOBS
from gpt1_jax.config.keys import describe_keys

spec = importlib.util.spec_from_file_location(
    "make_configuration", ROOT / "docs" / "make_configuration.py"
)
make_configuration = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_configuration)
# Two tests describe the keys of all jobs, which takes seconds.
described = make_configuration.describe_keys = functools.cache(describe_keys)


@pytest.mark.parametrize("job", JOBS)
def test_every_key_has_a_comment(job):
    keys = described(JOBS[job].config_class())
    assert [each.key.name for each in keys if not each.comment] == []


def test_the_page_of_keys_is_that_of_the_fields():
    """Otherwise: python docs/make_configuration.py > docs/configuration.md"""
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == make_configuration.make_page()
