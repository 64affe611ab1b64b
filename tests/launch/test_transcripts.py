"""The transcripts of docs/launching.md are what the scripts print."""

import re
import subprocess

import pytest
from tiny_run import ROOT

PAGE = (ROOT / "docs/launching.md").read_text()
TRANSCRIPTS = re.findall(r"^```console\n\$ (.+)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "shown"), TRANSCRIPTS, ids=[each[0][:60] for each in TRANSCRIPTS]
)
def test_a_dry_run_prints_what_the_page_shows(command, shown):
    assert " --dry-run " in command
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_the_page_shows_each_script_that_has_a_dry_run_of_its_own():
    for script in ("slurm.sbatch", "tpu.sh", "local.sh"):
        assert any(f"launch/{script} " in command for command, _ in TRANSCRIPTS)
