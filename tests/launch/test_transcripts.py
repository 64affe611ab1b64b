"""The transcripts of docs/launching.md are what the scripts print."""

import re
import subprocess

import pytest
from tiny_run import ROOT

PAGE = (ROOT / "docs/launching.md").read_text()
A_SLICE = {"NAME": "gpt1", "ZONE": "us-central1-a", "TYPE": "v6e-16"}
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


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("slurm.sbatch", []), ("tpu.sh", ["up"]), ("local.sh", [2])],
)
def test_a_dry_run_quotes_what_a_shell_would_split(
    run_script, recorder, script, arguments
):
    """And calls nothing. The page shows each script that has one."""
    assert any(f"launch/{script} " in command for command, _ in TRANSCRIPTS)
    for name in ("gcloud", "srun", "train"):
        recorder.add(name)
    code, output, errors = run_script(
        script, "--dry-run", *arguments, "train", "a b", **A_SLICE
    )
    assert (code, errors, recorder.calls()) == (0, "", [])
    assert "train a\\ b" in output.splitlines()[-1]
