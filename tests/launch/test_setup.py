"""`launch/setup.sh`: what is installed on a host, by a uv that only records."""

import shutil
import subprocess

from tiny_run import ROOT


def test_the_checkout_is_installed_and_only_once_given_an_environment(
    recorder, tmp_path
):
    """And a dry run only prints the commands."""
    host = tmp_path / "host"  # holds a copy of the script, as a checkout does
    (host / "launch").mkdir(parents=True)
    shutil.copy(ROOT / "launch/setup.sh", host / "launch")
    recorder.add("uv")

    def set_up(*arguments):
        done = subprocess.run(
            ["bash", str(host / "launch/setup.sh"), *arguments],
            env={"PATH": f"{recorder.folder}:/usr/bin:/bin", "HOME": str(host)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0
        return done.stdout.splitlines()

    printed = set_up("--dry-run", "cuda,lm-eval")
    assert len(printed) == 2 and ".\\[cuda\\,lm-eval\\]" in printed[-1]
    assert recorder.calls() == []
    set_up("tpu,gcp")
    make, install = recorder.calls()
    assert make == "uv venv --python \\>=3.11\\,\\<3.14 .venv"
    assert install == "uv pip install --python .venv/bin/python -e .\\[tpu\\,gcp\\]"
    (host / ".venv").mkdir()
    set_up("tpu,gcp")
    assert recorder.calls()[2:] == [install]
