import json

import pytest
from etils import epath

from gpt1_jax.runs.checkpoint_files import (
    MANIFEST_FILE,
    find_damage,
    manifest_digest,
    write_manifest,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "array").write_bytes(bytes(1000))
    (tmp_path / "record").write_text("{}")
    (tmp_path / "later").write_text("may change")
    write_manifest(epath.Path(tmp_path), leave_out={"later"})
    return epath.Path(tmp_path)


def test_a_whole_folder_has_no_damage(folder):
    assert find_damage(folder) == ""
    listed = json.loads((folder / MANIFEST_FILE).read_text())
    assert sorted(listed) == ["deep/array", "record"]


def test_what_is_left_out_may_change(folder):
    (folder / "later").write_text("changed")
    (folder / "new").write_text("new")
    assert find_damage(folder) == ""


def test_each_kind_of_damage_is_named(folder):
    (folder / "record").write_text("[]")
    assert find_damage(folder) == "record differs from what was saved"
    (folder / "record").unlink()
    assert find_damage(folder) == "record is missing"
    (folder / MANIFEST_FILE).unlink()
    assert find_damage(folder) == f"{MANIFEST_FILE} is missing"


@pytest.mark.parametrize("text", ["{}", "[]"])
def test_a_manifest_without_files_is_damage(folder, text):
    (folder / MANIFEST_FILE).write_text(text)
    assert find_damage(folder) == f"{MANIFEST_FILE} lists no files"


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "3", "[" * 100_000])
def test_a_manifest_of_another_kind_is_damage(folder, text):
    (folder / MANIFEST_FILE).write_text(text)
    assert find_damage(folder) == f"{MANIFEST_FILE} cannot be read"


def test_the_fingerprint_changes_with_what_was_saved(folder, tmp_path):
    before = manifest_digest(folder)
    write_manifest(folder, leave_out={"later"})
    assert manifest_digest(folder) == before != ""
    (folder / "record").write_text("[]")
    write_manifest(folder, leave_out={"later"})
    assert manifest_digest(folder) != before
    (folder / MANIFEST_FILE).unlink()
    assert manifest_digest(folder) == ""
