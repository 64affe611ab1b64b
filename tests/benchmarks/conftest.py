"""Lets tests run the scripts of `benchmarks/`."""

import json

import pytest
from tiny_run import run_program


@pytest.fixture
def run_script(tmp_path):
    """`run_script("peers.generate", *flags)` in a process of its own.

    Returns what it prints, and the record that it writes.
    """

    def run(name, *flags):
        path = tmp_path / "record.json"
        program = ("-m", f"benchmarks.{name}")
        code, printed = run_program(*flags, f"--output={path}", program=program)
        assert code == 0, printed
        return printed, json.loads(path.read_text())

    return run
