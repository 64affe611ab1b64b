"""Lets tests run the scripts of `benchmarks/`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_script(tmp_path):
    """`run_script("peers.generate", *flags)` in a process of its own.

    Returns what it prints, and the record that it writes.
    """

    def run(name, *flags):
        path = tmp_path / "record.json"
        process = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *flags, f"--output={path}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout, json.loads(path.read_text())

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
