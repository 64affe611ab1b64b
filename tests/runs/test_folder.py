import functools
import os
import types

import pytest
from etils import epath

from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock


@pytest.mark.parametrize(
    ("usage", "needs"),
    [({"f_files": 900, "f_favail": 49}, "up to 50 files"), ({"f_files": 0}, None)],
    ids=["few files left", "no limit"],
)
def test_a_disk_without_files_left_is_full(tmp_path, monkeypatch, usage, needs):
    blocks = {"f_bavail": 99, "f_blocks": 99, "f_bfree": 99, "f_frsize": 512}
    usage = types.SimpleNamespace(**{"f_favail": 0, **blocks, **usage})
    monkeypatch.setattr(os, "statvfs", lambda folder: usage)
    place = epath.Path(tmp_path / f".run.{16 * '0'}.partial" / "run")
    room = functools.partial(run_folder.check_room, place, 10, "It")
    if needs:
        with pytest.raises(
            OSError, match=f"{tmp_path}/run is full: It needs {needs}. .* to resume"
        ):
            room()
    else:
        room()


def test_a_folder_to_be_made_anew_must_be_empty(tmp_path):
    folder = epath.Path(tmp_path)
    run_folder.refuse_used(folder)
    run_folder.refuse_used(folder / "not there")
    (folder / "file").write_text("")
    for used in (folder, folder / "file"):
        with pytest.raises(FileExistsError, match=r"nothing in it is overwritten"):
            run_folder.refuse_used(used)


@pytest.mark.parametrize(
    "left", [".lock", "run.lock", f".writable-{16 * '0'}", ".a.HEX.partial"]
)
def test_a_folder_of_a_job_killed_before_its_first_file_is_empty(tmp_path, left):
    (tmp_path / left.replace("HEX", 16 * "0")).touch()
    run_folder.refuse_used(epath.Path(tmp_path))
    assert not list(tmp_path.iterdir())
    with lock.owned(epath.Path(tmp_path)):
        with pytest.raises(lock.FolderInUse, match="is in use by process"):
            run_folder.refuse_used(epath.Path(tmp_path))
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
def test_an_output_is_no_file_of_a_run(tmp_path, name, own):
    files = {
        "run/config.json": '{"job": "pretrain"}',
        "run/checkpoints/120/manifest.json": "{}",
        "project/config.json": '["of another program"]',
        "project/labels.csv": "",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    check = functools.partial(
        run_folder.check_output_file, epath.Path(tmp_path / name), "--output"
    )
    if own:
        with pytest.raises(FileExistsError, match=r"run folder .*/run, .* --output"):
            check()
    else:
        check()
