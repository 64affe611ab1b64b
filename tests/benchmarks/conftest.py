"""Lets tests run the scripts of `benchmarks/`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run_script():
    """`run_script("name.py", *flags)` in a process of its own; its output."""

    def run(name, *flags):
        environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)}
        process = subprocess.run(
            [sys.executable, str(BENCHMARKS / name), *flags],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run
