"""`launch/tpu.sh`: what gcloud is called with, state by state."""

import os
import re
import shutil
import subprocess
import tarfile

import pytest
from tiny_run import ROOT

SLICE = {"NAME": "gpt1", "ZONE": "us-central1-a", "TYPE": "v5litepod-16"}
COMMAND = ["python", "-m", "gpt1_jax.main", "--config.data.train=my texts"]
TPUS = "gcloud compute tpus"
DELETE = f"{TPUS} tpu-vm delete gpt1"
CREATE = (
    f"{TPUS} tpu-vm create gpt1 --accelerator-type=v5litepod-16 "
    "--version=v2-alpha-tpuv5-lite"
)


@pytest.fixture
def gcloud(recorder, tmp_path):
    """Makes a fake gcloud that knows a slice in each of the given states in turn."""

    def make(*states):
        for number, state in enumerate(states):
            (tmp_path / f"state-{number}").write_text(state)
        recorder.add(
            "gcloud",
            f"""
            case "$*" in
              *" describe "*)
                number=$(grep -c ' describe ' {recorder.folder}/calls)
                file={tmp_path}/state-$((number - 1))
                if grep -qs ERROR "$file"; then cat "$file" >&2; exit 1; fi
                echo "WARNING: there are newer versions" >&2
                if [ -s "$file" ]; then cat "$file"; exit; fi
                echo "ERROR: NOT_FOUND: it was not found" >&2
                exit 1 ;;
              *" scp "*) cp "$5" {tmp_path}/copied.tar.gz ;;
            esac
            """,
        )

    make()
    return make


def test_the_files_of_the_checkout_are_sent_without_what_git_ignores(
    recorder, gcloud, tmp_path
):
    """And none of what is no checkout."""
    copy, deleted = tmp_path / "copy", tmp_path / "copy" / "old name.py"
    for name in ("launch", "runs"):
        (copy / name).mkdir(parents=True)
    shutil.copy(ROOT / "launch/tpu.sh", copy / "launch")
    for path in (copy / "new.py", copy / "runs/large", deleted):
        path.touch()
    (copy / ".gitignore").write_text("/runs/\n")

    def set_up():
        return subprocess.run(
            ["bash", str(copy / "launch/tpu.sh"), "setup"],
            env={"PATH": f"{recorder.folder}:{os.environ['PATH']}", **SLICE},
            capture_output=True,
            text=True,
        )

    done = set_up()
    assert done.returncode == 2 and "must be a git checkout" in done.stderr
    assert recorder.calls() == []
    subprocess.run(["git", "init", "-q", copy], check=True)
    subprocess.run(["git", "-C", copy, "add", "-A"], check=True)
    deleted.unlink()
    done = set_up()
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "copied.tar.gz") as copied:
        assert set(copied.getnames()) == {".gitignore", "launch/tpu.sh", "new.py"}


def changes(calls):
    """The calls that do not only ask."""
    return [call for call in calls if " describe " not in call]


def test_what_is_there_is_kept_and_what_was_preempted_is_replaced(
    run_script, recorder, gcloud
):
    gcloud("READY", "PREEMPTED", "CREATING")
    for expected, calls in (0, []), (0, [DELETE, CREATE]), (2, []):
        before = len(recorder.calls())
        assert run_script("tpu.sh", "create", **SLICE)[0] == expected
        made = changes(recorder.calls()[before:])
        assert [re.split(" --quiet| --zone", call)[0] for call in made] == calls


def test_a_queued_slice_is_waited_for(run_script, recorder, gcloud):
    gcloud("", "PROVISIONING", "ERROR: no network", "ACTIVE", "ACTIVE", "ACTIVE")
    recorder.add("sleep")
    wanted = {**SLICE, "QUEUED": "1", "SPOT": "1"}
    code, output, errors = run_script("tpu.sh", "create", **wanted)
    assert code == 0, errors
    assert "gpt1 is PROVISIONING; waiting" in output and "unreachable" in output
    create, *sleeps = changes(recorder.calls())
    assert sleeps == ["sleep 30"] * 2
    assert create.startswith(f"{TPUS} queued-resources create gpt1 --node-id=gpt1 ")
    assert "--runtime-version=v2-alpha-tpuv5-lite --spot" in create
    assert "gpt1 is there" in run_script("tpu.sh", "create", **wanted)[1]


def test_an_unreachable_gcloud_makes_nothing(run_script, recorder, gcloud):
    recorder.add("gcloud", "echo 'ERROR: you have no account' >&2; exit 1")
    code, _, errors = run_script("tpu.sh", "up", *COMMAND, **SLICE)
    assert code != 0 and "you have no account" in errors
    assert len(recorder.calls()) == 1


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("logs", "--worker=0 --command=tail"),
        ("stop", "--worker=all --command=bash\\ gpt1_jax/launch/detached.sh\\ stop"),
        ("status", "--worker=all --command=bash\\ gpt1_jax/launch/detached.sh\\ stat"),
        ("delete", "tpu-vm delete gpt1 --quiet"),
    ],
)
def test_one_slice_is_followed_stopped_and_deleted(
    run_script, recorder, gcloud, action, expected
):
    gcloud("READY")
    code, _, errors = run_script("tpu.sh", action, **SLICE, PROJECT="mine")
    assert code == 0, errors
    assert expected in recorder.calls()[-1]
    assert all(" --project=mine" in call for call in recorder.calls())
