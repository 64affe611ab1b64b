"""Outputs that cannot be written, or that are there, are refused before any work."""

import contextlib
import os

import pytest
from etils import epath

from gpt1_jax.runs import lock
from gpt1_jax.runs.folder import NAMES
from gpt1_jax.runs.outputs import check_output, check_output_file, refuse_used


def test_only_files_that_would_be_overwritten_make_a_folder_used(tmp_path):
    folder = epath.Path(tmp_path)
    refuse_used(folder / "not there", NAMES)
    (tmp_path / "README.md").write_text("mine")
    refuse_used(folder, NAMES)
    with pytest.raises(FileExistsError, match=r"holds README\.md, and nothing there"):
        refuse_used(folder, {"README.md"})
    with pytest.raises(FileExistsError, match=r"README\.md is a file; name another"):
        refuse_used(folder / "README.md", NAMES)
    (tmp_path / "checkpoints").symlink_to("nowhere")
    with pytest.raises(FileExistsError, match=r"holds checkpoints, and nothing"):
        refuse_used(folder, NAMES)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_names_of_a_run_folder_are_all_that_jobs_write(pretrained, finetuned):
    for folder in (pretrained, finetuned):
        found = {path.name for path in folder.iterdir()}
        assert found <= NAMES | lock.FILES


@pytest.mark.parametrize("left", ["run.lock", ".a.HEX.partial"])
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
        ("project/labels.csv", False),
    ],
)
def test_an_output_is_no_file_of_a_run(write, tmp_path, name, own):
    write("run/config.json", '{"job": "pretrain"}')
    write("run/checkpoints/120/manifest.json", "{}")
    write("project/config.json", '["of another program"]')
    write("project/labels.csv", "")
    refused = pytest.raises(FileExistsError, match=r"run folder .*/run, .* --output")
    with refused if own else contextlib.nullcontext():
        check_output_file(epath.Path(tmp_path / name), "--output")


@pytest.mark.parametrize("name", ["./a.txt", "link.txt"])
def test_an_output_does_not_replace_what_is_read(tmp_path, monkeypatch, name):
    (tmp_path / "a.txt").write_text("read")
    (tmp_path / "link.txt").symlink_to("a.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match=r"replace ~/a\.txt, which is read"):
        check_output_file(epath.Path(name), "--output", "~/a.txt")
    check_output_file(epath.Path("b.txt"), "--output", "b.txt")
    check_output_file(epath.Path("/dev/null"), "--output", "/dev/null")


def test_an_output_is_tried_before_and_leaves_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("new/folder/a", "a", "pipe", "/dev/stdout"):
        check_output(tmp_path / name, "--output")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    with pytest.raises(OSError, match=r"cannot be written \(Is a directory\)"):
        check_output(tmp_path, "--output")
