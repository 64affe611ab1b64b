"""Lets tests run the scripts of `benchmarks/`."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
