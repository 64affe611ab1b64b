"""Tests of reports look at their figures."""

import pytest


@pytest.fixture(autouse=True)
def quick_figures():
    """Here all figures are drawn."""
