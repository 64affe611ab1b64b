"""Links and files that a user has put into a run folder: every job works with them."""

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest
from tiny_run import assert_same_run, job_config, longer_config

from gpt1_jax import config as config_lib
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import pretrain

NOTES = (
    *(".DS_Store", "notes.txt", "checkpoints/notes.txt", "checkpoints/old/notes.txt"),
    *("checkpoints/12/notes.txt", "checkpoints/12/state/.DS_Store", "tokenizer/a.txt"),
)


@pytest.fixture
def scratch(tmp_path):
    """A folder, on another disk if there is one."""
    shm = Path(f"/dev/shm/gpt1_jax-test-{os.getpid()}")
    folder = shm if shm.parent.is_dir() else tmp_path / "scratch"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_linked(tmp_path, scratch):
    """`make_linked(run)`: a copy whose large folders are links, with notes in it."""

    def make(run):
        folder = tmp_path / "linked"
        shutil.copytree(run, folder)
        for name in ("checkpoints", "plots", "metrics.jsonl"):
            if (folder / name).exists():
                shutil.move(folder / name, scratch / name)
                (folder / name).symlink_to(scratch / name)
        (folder / "latest").symlink_to("checkpoints/12")
        (folder / "old").symlink_to("checkpoints/4")  # which is no more
        (folder / "up").symlink_to("..")
        (folder / "checkpoints" / "latest").symlink_to("12")
        for name in NOTES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("mine")
        return folder

    return make


def run_job(job, workdir="", **values):
    config = job_config(job, **values)
    config_lib.JOBS[job].import_module().run(config, str(workdir))


@pytest.mark.parametrize(
    ("job", "values", "writes"),
    [
        ("generate", {"prompt": "abc", "output": ""}, "out.jsonl"),
        ("batches", {"steps": (1,), "output": ""}, "out.jsonl"),
        ("explore", {"runs": "RUN", "output": ""}, "out.html"),
        ("verify", {"runs": "RUN", "losses": 1}, ""),
        ("report", {"runs": "RUN"}, "report.md"),
        ("convert", {"target": "huggingface", "step": "all"}, "trajectory.json"),
    ],
    ids=str,
)
def test_jobs_read_a_run_with_links_and_notes(
    pretrained, make_linked, tmp_path, job, values, writes
):
    run, out = make_linked(pretrained), tmp_path / "out"
    values = {key: str(run) if each == "RUN" else each for key, each in values.items()}
    if "runs" not in values:
        values["init_from"] = str(run)
    if "output" in values:
        values["output"] = str(out / writes)
    run_job(job, out if job in ("report", "convert") else "", **values)
    assert not writes or (out / writes).exists()
    assert all((run / name).read_text() == "mine" for name in NOTES)


def test_training_goes_on_through_links(
    pretrained, make_linked, scratch, corpus_dir, capsys
):
    """Files that are linked become copies, so that nothing behind them changes.

    Here from the step before a damaged one, which is set aside.
    """
    folder = make_linked(pretrained)
    (folder / "checkpoints" / "12" / "state" / "_METADATA").write_text("{")
    before = (scratch / "metrics.jsonl").read_bytes()
    pretrain.run(longer_config(corpus_dir), str(folder))
    assert "step 12 is damaged" in capsys.readouterr().out
    assert_same_run(pretrained, folder, 12)
    assert (folder / "checkpoints").is_symlink() and (folder / "plots").is_symlink()
    assert (scratch / "checkpoints" / "12" / "manifest.json").exists()
    assert (scratch / "metrics.jsonl").read_bytes() == before
    assert (folder / "checkpoints" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "tokenizer", "plots/loss.png", "damaged_checkpoints"),
        "checkpoints/8",
    ],
)
def test_what_is_behind_a_planted_link_stays(pretrained, corpus_dir, tmp_path, name):
    """The run goes on, or is refused."""
    folder = shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints" / "12")
    victim = tmp_path / "victim"
    (victim / "folder").mkdir(parents=True)
    (victim / "folder" / "keep").write_text("precious")
    planted = folder / name
    if planted.is_dir():
        shutil.rmtree(planted)
    planted.unlink(missing_ok=True)
    is_file = name.endswith((".json", ".png"))
    planted.symlink_to(victim / "folder" / "keep" if is_file else victim / "folder")
    with contextlib.suppress(UserError, OSError):
        pretrain.run(longer_config(corpus_dir), str(folder))
    assert [path.name for path in (victim / "folder").iterdir()] == ["keep"]
    assert (victim / "folder" / "keep").read_text() == "precious"


def test_a_link_where_a_save_would_begin_ends_the_program(run_main, tmp_path):
    """At once, though threads of orbax would wait for minutes for the folder."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "keep").write_text("precious")
    planted = tmp_path / "run" / "checkpoints" / "4.orbax-checkpoint-tmp"
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim)
    begun = time.monotonic()
    code, output = run_main(f"--workdir={tmp_path / 'run'}")
    assert time.monotonic() - begun < 200
    assert code == 1 and "gpt1_jax: error: Cannot call rmtree on a symbolic" in output
    assert (victim / "keep").read_text() == "precious"
