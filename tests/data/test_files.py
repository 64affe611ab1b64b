"""Files and folders that appear whole or not at all."""

import errno
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_jax.config.saved import read_json
from gpt1_jax.data import files
from gpt1_jax.data.files import (
    append_to,
    create,
    format_json,
    locate,
    remove,
    remove_partial,
    whole_file,
    whole_folder,
    write_json,
    write_json_lines,
    write_whole,
)
from gpt1_jax.errors import MissingPackage, UserError
from gpt1_jax.runs.outputs import check_output


def test_a_place_is_local_or_a_bucket_that_needs_its_library(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    for path in ("a/b", "/a", "gs://a/b", "s3://a/b"):
        assert os.fspath(locate(path)) == path
    assert os.fspath(locate("~/a")) == "/home/me/a"
    for path in ("http://x/y", "file:///x", "GS://x/y", "a/b://c"):
        message = f"='{path}' cannot be opened.*local path or gs://BUCKET/PATH"
        with pytest.raises(UserError, match=message):
            locate(path, "config.input")
    with pytest.raises(UserError, match=r"config.output='gs://x' must be a local path"):
        locate("gs://x", "config.output", local=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"needs gcsfs.*'gpt1_jax\[gcp\]'"):
        locate("gs://x")
    with pytest.raises(MissingPackage, match=r"needs s3fs.* pip install s3fs"):
        locate("s3://x")


def test_what_is_not_finite_is_null_in_json_and_read_back(tmp_path):
    """Other languages know no NaN."""
    path = tmp_path / "a.json"
    value = {"a": math.nan, "b": [1.5, {"c": (-math.inf, 2)}], "d": None, "e": math.inf}
    write_json(path, value)
    found = json.loads(path.read_text(), parse_constant=pytest.fail)
    marks = {"a": "NaN", "b": {"1": {"c": {"0": "-Infinity"}}}, "e": "Infinity"}
    null = {"a": None, "b": [1.5, {"c": [None, 2]}], "d": None, "e": None}
    assert found == {**null, "not_finite": marks}
    again = read_json(path)
    assert math.isnan(again.pop("a"))
    assert again == {"b": [1.5, {"c": [-math.inf, 2]}], "d": None, "e": math.inf}
    assert json.loads(format_json([math.nan, 1]), parse_constant=pytest.fail)[0] is None


def test_write_json_lines_writes_a_line_for_each_row_or_nothing(tmp_path):
    rows = [{"text": "é\n", "score": math.nan}, {"text": ""}]
    write_json_lines(tmp_path / "new" / "a.jsonl", iter(rows))
    first, second = (tmp_path / "new" / "a.jsonl").read_text("utf-8").splitlines()
    assert "é" in first and json.loads(first)["score"] is None
    assert json.loads(second) == rows[1]
    before = (tmp_path / "new" / "a.jsonl").read_bytes()
    with pytest.raises(TypeError):
        write_json_lines(tmp_path / "new" / "a.jsonl", [*rows, {"a": object()}])
    assert (tmp_path / "new" / "a.jsonl").read_bytes() == before


def test_files_and_folders_appear_when_they_are_whole_and_alone(tmp_path):
    with whole_folder(tmp_path / "more" / "folder") as partial:
        (partial / "a").touch()
        assert not (tmp_path / "more" / "folder").exists()
    for text in ("old", "new"):
        with whole_file(tmp_path / "more" / "a") as partial:
            partial.write_text(text)
            partial.with_name("scratch").touch()
            assert (tmp_path / "more" / "a").exists() == (text == "new")
        assert (tmp_path / "more" / "a").read_text() == text
    write_whole(tmp_path / "more" / "a", "naïve")
    assert (tmp_path / "more" / "a").read_text("utf-8") == "naïve"
    found = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))]
    assert found == ["more", "more/a", "more/folder", "more/folder/a"]


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "cannot be read", "/of/another"),
        KeyboardInterrupt(),
    ],
    ids=["of the system", "interrupt"],
)
def test_what_fails_vanishes_and_leaves_the_old_file(tmp_path, error):
    (tmp_path / "a").write_text("old")
    with pytest.raises(type(error)) as raised, whole_folder(tmp_path / "folder") as new:
        (new / "a").touch()
        raise error
    assert raised.value is error
    with pytest.raises(type(error)), whole_file(tmp_path / "a") as partial:
        partial.write_text("half")
        raise error
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


def kill_while_writing(path, make=whole_folder):
    """Leaves what a process leaves that is killed while it writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(KeyboardInterrupt), make(path) as partial:
            (partial.parent / "half").touch()
            raise KeyboardInterrupt


@pytest.mark.parametrize("make", [whole_folder, whole_file])
def test_what_a_killed_process_left_is_left_alone_for_a_day(tmp_path, make):
    """A process that writes it may still be at work, for all one knows."""
    for name in ("output", "another"):
        kill_while_writing(tmp_path / name, make)
    check_output(tmp_path / "output", "--output")
    remove_partial(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    with make(tmp_path / "output") as ours:
        if make is whole_file:
            ours.touch()
    assert (tmp_path / "output").exists()
    assert len(list(tmp_path.iterdir())) == 2
    remove_partial(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["output"]


def test_the_owner_of_a_folder_removes_what_is_left_at_once(tmp_path):
    """Links too, but not what they lead to."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "a").touch()
    kill_while_writing(tmp_path / "run" / "folder")
    (tmp_path / "run" / f".a.{16 * '0'}.partial").symlink_to(victim)
    remove_partial(tmp_path)
    assert len(list((tmp_path / "run").iterdir())) == 2
    remove_partial(tmp_path, older_than=0)
    assert not list((tmp_path / "run").iterdir())
    assert (victim / "a").exists()


def test_a_folder_that_another_program_took_or_removed_was_not_written(tmp_path):
    with (
        pytest.raises(FileExistsError, match="made by another process meanwhile"),
        whole_folder(tmp_path / "a"),
    ):
        write_whole(tmp_path / "a" / "theirs", "")
    with (
        pytest.raises(FileNotFoundError, match="b was not written: another program"),
        whole_folder(tmp_path / "b") as partial,
    ):
        shutil.rmtree(partial.parent)
        write_whole(partial / "half", "")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "theirs"]


def test_nothing_is_written_or_removed_through_a_link(tmp_path):
    victim, run = tmp_path / "victim", tmp_path / "run"
    for folder in (victim, run):
        folder.mkdir()
    (victim / "a").write_text("mine")
    for planted in ("a.partial", "a", "b"):
        (run / planted).symlink_to(victim / "a")
    (run / "none").symlink_to(victim / "none")
    write_whole(run / "a", "ours")
    with whole_file(run / "a") as partial:
        partial.write_text("ours, too")
    assert (run / "a").read_text() == "ours, too" and not (run / "a").is_symlink()
    with pytest.raises(FileExistsError):
        create(run / "b", "ours")
    for name, before in (("b", "mine"), ("none", "")):
        with append_to(run / name) as file:
            file.write(b", then ours")
        assert (run / name).read_text() == f"{before}, then ours"
    (run / "folder").symlink_to(victim)
    remove(run / "folder")
    assert not (run / "folder").is_symlink()
    assert [(p.name, p.read_text()) for p in victim.iterdir()] == [("a", "mine")]


def test_a_folder_is_made_beside_files_of_other_names(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes").write_text("mine")
    for name in ("ours", "more"):
        with whole_folder(tmp_path / "a", beside_others=True) as partial:
            write_whole(partial / name, name)
    for name in ("ours", "notes"):
        with (
            pytest.raises(FileExistsError, match="or holds files of the same names"),
            whole_folder(tmp_path / "a", beside_others=True) as partial,
        ):
            write_whole(partial / "first", "")
            write_whole(partial / name, "other")
    found = {path.name: path.read_text() for path in (tmp_path / "a").iterdir()}
    assert found == {"notes": "mine", "ours": "ours", "more": "more"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_pipe_gets_what_is_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as cat:
        write_whole(tmp_path / "pipe", "naïve")
        assert cat.communicate()[0].decode() == "naïve"
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_standard_output_is_written_to_after_what_is_there(tmp_path):
    program = (
        "from gpt1_jax.data.files import write_whole\n"
        "print('first', flush=True)\n"
        "write_whole('/dev/stdout', 'then\\n')"
    )
    with (tmp_path / "out").open("wb") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "first\nthen\n"
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize(
    ("code", "way_out", "outer"),
    [
        (errno.ENOSPC, "make room on its disk, and run", whole_folder),
        (errno.EDQUOT, "make room within your quota", whole_file),
        (errno.EROFS, "allow that, or name another folder", whole_folder),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_the_way_out(
    tmp_path, code, way_out, outer
):
    with (
        pytest.raises(files.CannotWrite, match=rf"cannot be w.*{way_out}") as error,
        outer(tmp_path / "out") as partial,
    ):
        raise OSError(code, os.strerror(code), str(partial))
    assert str(error.value).startswith(f"{tmp_path / 'out'} cannot be written (")
    assert error.value.errno == code
