"""What tests of launch/ share: running a script, and executables that only record."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
from tiny_run import ROOT

# The variables of the scripts, which would act on them from outside.
_VARIABLES = [
    *("NAME", "ZONE", "TYPE", "PROJECT", "VERSION", "SPOT", "QUEUED", "WAIT_HOURS"),
    *("EXTRAS", "RESTARTS", "RESTART_DELAY"),
    *("SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@dataclasses.dataclass(frozen=True)
class Recorder:
    """A folder of fake executables, first on PATH, and the calls that they noted."""

    folder: Path

    def add(self, name, script=""):
        """Adds an executable that notes its arguments and runs a line of bash."""
        path = self.folder / name
        path.write_text(
            f'#!/bin/bash\nprintf "%q " {name} "$@" >> {self.folder}/calls\n'
            f"echo >> {self.folder}/calls\n{script}\n"
        )
        path.chmod(0o755)

    def calls(self):
        """The commands that were called, quoted as bash quotes them."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.strip() for line in lines]


@pytest.fixture
def recorder(tmp_path):
    """Fake executables; PATH of `run_script` begins with them."""
    (tmp_path / "bin").mkdir()
    return Recorder(tmp_path / "bin")


@pytest.fixture
def run_script(recorder):
    """`run_script(name, *arguments, **env)`: exit code, output and errors."""

    def run(name, *arguments, **env):
        done = subprocess.run(
            ["bash", str(ROOT / "launch" / name), *map(str, arguments)],
            cwd=ROOT,
            env={
                **os.environ,
                "PATH": f"{recorder.folder}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                **env,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    return run
