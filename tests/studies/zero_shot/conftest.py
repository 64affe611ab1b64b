"""What all tests of zero-shot tasks need."""

import pytest

from gpt1_jax.tasks import uncertainty


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Standard errors of CoLA take a second each, and are tested with the metrics."""
    monkeypatch.setattr(uncertainty, "_RESAMPLES", 10)
