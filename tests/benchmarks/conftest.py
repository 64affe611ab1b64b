"""Lets tests run the scripts of `benchmarks/`."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_script():
    """`run_script("peers.generate", *flags)` in a process of its own; its output."""

    def run(name, *flags):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *flags],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run


@pytest.fixture
def with_lines():
    """JAX tells the compiler where operations come from, as it does outside tests."""
    settings = {
        "jax_traceback_in_locations_limit": 10,
        "jax_compilation_cache_include_metadata_in_key": True,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
