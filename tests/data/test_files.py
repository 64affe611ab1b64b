"""Files and folders that appear whole or not at all."""

import hashlib
import json

import pytest

from gpt1_jax.data.files import (
    sha256,
    whole_file,
    whole_folder,
    write_json,
    write_whole,
)


def test_write_whole_replaces_a_file_and_leaves_nothing_else(tmp_path):
    for text in ("one", "naïve"):
        write_whole(tmp_path / "a.txt", text)
        assert (tmp_path / "a.txt").read_text("utf-8") == text
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_write_whole_keeps_the_old_file_when_it_fails(tmp_path):
    write_whole(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a.txt", "new \ud800")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_write_json_can_be_read_back(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, None]}


def test_whole_folder_appears_when_it_is_whole(tmp_path):
    with whole_folder(tmp_path / "more" / "folder") as partial:
        (partial / "a").touch()
        assert not (tmp_path / "more" / "folder").exists()
    assert [p.name for p in (tmp_path / "more").iterdir()] == ["folder"]
    assert (tmp_path / "more" / "folder" / "a").exists()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_whole_folder_vanishes_when_it_fails(tmp_path, error):
    with pytest.raises(error), whole_folder(tmp_path / "folder") as partial:
        (partial / "a").touch()
        raise error
    assert not list(tmp_path.iterdir())


def test_whole_folder_clears_what_a_killed_process_left(tmp_path):
    (tmp_path / "folder.partial").mkdir()
    (tmp_path / "folder.partial" / "half").touch()
    with whole_folder(tmp_path / "folder"):
        pass
    assert not list((tmp_path / "folder").iterdir())


def test_whole_file_appears_when_it_is_whole_and_alone(tmp_path):
    with whole_file(tmp_path / "a") as partial:
        partial.write_text("new")
        partial.with_name("scratch").touch()
        assert not (tmp_path / "a").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_whole_file_keeps_the_old_one_when_it_fails(tmp_path, error):
    (tmp_path / "a").write_text("old")
    with pytest.raises(error), whole_file(tmp_path / "a") as partial:
        partial.write_text("half")
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_sha256_is_of_all_bytes(tmp_path):
    data = bytes(range(256)) * 40_000  # more than is read at a time
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()
