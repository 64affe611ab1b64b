"""Outputs that cannot be written, or that are there, are refused before any work."""

import contextlib
import os

import pytest
from etils import epath

from gpt1_jax.runs import lock
from gpt1_jax.runs.folder import NAMES
from gpt1_jax.runs.outputs import check_output, check_output_file, refuse_used

NEIGHBOURS = ["log.txt", "slurm-1.out", ".DS_Store", "README.md", "lost+found/a"]


def test_only_files_that_would_be_overwritten_make_a_folder_used(tmp_path):
    folder = epath.Path(tmp_path)
    refuse_used(folder / "not there", NAMES)
    for name in NEIGHBOURS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    refuse_used(folder, NAMES)
    with pytest.raises(FileExistsError, match=r"holds README\.md, and nothing there"):
        refuse_used(folder, {"README.md"})
    with pytest.raises(FileExistsError, match=r"log\.txt is a file; name another"):
        refuse_used(folder / "log.txt", NAMES)
    (tmp_path / "checkpoints").symlink_to("nowhere")
    with pytest.raises(FileExistsError, match=r"holds checkpoints, and nothing"):
        refuse_used(folder, NAMES)
    assert all((tmp_path / name).read_text() == "mine" for name in NEIGHBOURS)


def test_names_of_a_run_folder_are_all_that_jobs_write(pretrained, finetuned):
    for folder in (pretrained, finetuned):
        found = {path.name for path in folder.iterdir()}
        assert found <= NAMES | lock.FILES


@pytest.mark.parametrize(
    "left", [".lock", "run.lock", ".HEX.partial", ".a.HEX.partial"]
)
def test_a_folder_of_a_job_killed_before_its_first_file_is_empty(tmp_path, left):
    (tmp_path / left.replace("HEX", 16 * "0")).touch()
    refuse_used(epath.Path(tmp_path), NAMES)
    assert not list(tmp_path.iterdir())
    with lock.owned(epath.Path(tmp_path)):
        with pytest.raises(lock.FolderInUse, match="is in use by this same process"):
            refuse_used(epath.Path(tmp_path), NAMES)
        assert (tmp_path / "run.lock").exists()


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("run/config.json", True),
        ("run/checkpoints/120/manifest.json", True),
        ("run/new.json", False),
        ("run/labels.csv", False),
        ("project/labels.csv", False),
    ],
)
def test_an_output_is_no_file_of_a_run(write, tmp_path, name, own):
    write("run/config.json", '{"job": "pretrain"}')
    write("run/checkpoints/120/manifest.json", "{}")
    write("run/labels.csv", "")
    write("project/config.json", '["of another program"]')
    write("project/labels.csv", "")
    refused = pytest.raises(FileExistsError, match=r"run folder .*/run, .* --output")
    with refused if own else contextlib.nullcontext():
        check_output_file(epath.Path(tmp_path / name), "--output")


def test_an_output_does_not_replace_what_is_read(write, tmp_path, monkeypatch):
    source = write("a.txt", "read")
    (tmp_path / "link.txt").symlink_to("a.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, named in (
        *((name, source) for name in ("a.txt", "./a.txt", "link.txt")),
        ("a.txt", "~/a.txt"),
    ):
        with pytest.raises(FileExistsError, match=f"replace {named}, which is read"):
            check_output_file(epath.Path(f"{tmp_path}/{name}"), "--output", named)
    check_output_file(epath.Path(tmp_path / "b.txt"), "--output", "b.txt")
    check_output_file(epath.Path(source), "--output", "")
    check_output_file(epath.Path("/dev/null"), "--output", "/dev/null")


@pytest.mark.parametrize(
    ("name", "problem"),
    [("file/a", "Not a directory"), ("folder", "Is a directory")],
)
def test_an_output_that_cannot_be_written_is_refused(tmp_path, name, problem):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=rf"{name} cannot .* \({problem}\); .* --output"):
        check_output(tmp_path / name, "--output")


def test_looking_at_an_output_leaves_nothing(tmp_path):
    for name in ("new/folder/a", "a"):
        check_output(tmp_path / name, "--output")
    check_output("/dev/stdout", "--output")
    os.mkfifo(tmp_path / "pipe")
    check_output(tmp_path / "pipe", "--output")
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]
