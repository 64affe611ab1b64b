"""Files and folders that appear whole or not at all."""

import errno
import hashlib
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
    find_files,
    format_json,
    locate,
    remove,
    remove_partial,
    sha256,
    whole_file,
    whole_folder,
    write_json,
    write_json_lines,
    write_whole,
)
from gpt1_jax.errors import MissingPackage, UserError
from gpt1_jax.runs.outputs import check_output


def test_a_place_is_local_or_a_bucket(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    for path in ("a/b", "/a", "gs://a/b", "s3://a/b"):
        assert os.fspath(locate(path)) == path
    assert os.fspath(locate("~/a")) == "/home/me/a"


@pytest.mark.parametrize(
    "path", ["http://x/y", "hf://x/y", "file:///x", "GS://x/y", "memory://x", "a/b://c"]
)
def test_another_address_is_refused_with_the_way_out(path):
    with pytest.raises(UserError) as error:
        locate(path, "config.input")
    assert f"config.input='{path}' cannot be opened" in str(error.value)
    assert "use a local path or gs://BUCKET/PATH" in str(error.value)


def test_a_bucket_is_no_local_path_and_needs_its_library(monkeypatch):
    with pytest.raises(UserError, match=r"config.output='gs://x' must be a local path"):
        locate("gs://x", "config.output", local=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"needs gcsfs.*'gpt1_jax\[gcp\]'"):
        locate("gs://x")
    with pytest.raises(MissingPackage, match=r"needs s3fs.* pip install s3fs"):
        locate("s3://x")


def strict_json(text):
    """Reads JSON as other languages do, which know no NaN."""

    def refuse(name):
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_null_in_json_and_read_back(tmp_path):
    path = tmp_path / "a.json"
    value = {"a": math.nan, "b": [1.5, {"c": (-math.inf, 2)}], "d": None, "e": math.inf}
    write_json(path, value)
    found = strict_json(path.read_text())
    marks = {"a": "NaN", "b": {"1": {"c": {"0": "-Infinity"}}}, "e": "Infinity"}
    null = {"a": None, "b": [1.5, {"c": [None, 2]}], "d": None, "e": None}
    assert found == {**null, "not_finite": marks}
    again = read_json(path)
    assert math.isnan(again.pop("a"))
    assert again == {"b": [1.5, {"c": [-math.inf, 2]}], "d": None, "e": math.inf}
    assert strict_json(format_json([math.nan, 1])) == [None, 1]


def test_marks_that_fit_no_null_change_nothing(tmp_path):
    path, plain = tmp_path / "a.json", {"a": None, "b": [None]}
    odd = ({"a": "nan"}, {"a": {"b": "NaN"}}, {"b": {"7": "NaN"}})
    for marks in (3, "NaN", None, ["NaN"], *odd):
        path.write_text(json.dumps({**plain, "not_finite": marks}))
        assert read_json(path) == plain


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


def test_whole_folder_appears_when_it_is_whole(tmp_path):
    with whole_folder(tmp_path / "more" / "folder") as partial:
        (partial / "a").touch()
        assert not (tmp_path / "more" / "folder").exists()
    assert [p.name for p in (tmp_path / "more").iterdir()] == ["folder"]
    assert (tmp_path / "more" / "folder" / "a").exists()


def test_whole_file_appears_when_it_is_whole_and_alone(tmp_path):
    for text in ("old", "new"):
        with whole_file(tmp_path / "a") as partial:
            partial.write_text(text)
            partial.with_name("scratch").touch()
            assert (tmp_path / "a").exists() == (text == "new")
        assert (tmp_path / "a").read_text() == text
    write_whole(tmp_path / "a", "naïve")
    assert (tmp_path / "a").read_text("utf-8") == "naïve"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_fails_vanishes_and_leaves_the_old_file(tmp_path, error):
    (tmp_path / "a").write_text("old")
    with pytest.raises(error), whole_folder(tmp_path / "folder") as partial:
        (partial / "a").touch()
        raise error
    with pytest.raises(error), whole_file(tmp_path / "a") as partial:
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


@pytest.mark.parametrize("planted", ["a.partial", ".a.partial", "a"])
def test_a_file_is_not_written_through_a_planted_link(tmp_path, planted):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / planted).symlink_to(victim)
    write_whole(folder / "a", "ours")
    with whole_file(folder / "a") as partial:
        partial.write_text("ours, too")
    assert (folder / "a").read_text() == "ours, too"
    assert not (folder / "a").is_symlink()
    assert victim.read_text() == "mine"


def test_nothing_is_written_or_removed_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "a").write_text("mine")
    for name, before in (("a", "mine"), ("none", "")):
        (tmp_path / name).symlink_to(victim / name)
        with pytest.raises(FileExistsError):
            create(tmp_path / name, "ours")
        with append_to(tmp_path / name) as file:
            file.write(b", then ours")
        assert (tmp_path / name).read_text() == f"{before}, then ours"
    (tmp_path / "folder").symlink_to(victim)
    remove(tmp_path / "folder")
    assert not (tmp_path / "folder").is_symlink()
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


def test_find_files_takes_only_the_pattern_for_one(tmp_path):
    for name in ("a[1]", "a1"):
        for file in ("b.txt", "a.txt", "a.csv", "c/d.txt"):
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
    folder = tmp_path / "a[1]"
    assert find_files(folder, "*.txt") == [folder / "a.txt", folder / "b.txt"]
    assert find_files(folder, "*/d.txt") == [folder / "c/d.txt"]
    assert find_files(tmp_path / "none", "*") == []


@pytest.mark.parametrize(
    ("code", "way_out", "outer"),
    [
        (errno.ENOSPC, "make room on its disk, and run", whole_folder),
        (errno.EDQUOT, "make room within your quota", whole_file),
        (errno.EFBIG, "ulimit -f", None),
        (errno.EROFS, "allow that, or name another folder", whole_folder),
        (errno.EROFS, "allow that, or name another folder", whole_file),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_the_way_out(
    tmp_path, monkeypatch, code, way_out, outer
):
    def full(path, content):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(files, "create", full)
    with pytest.raises(files.CannotWrite, match=rf"cannot be w.*{way_out}") as error:
        if outer is None:
            write_whole(tmp_path / "out", "")
        with outer(tmp_path / "out") as partial:
            write_whole(partial, "") if outer is whole_file else full(partial, "")
    assert str(error.value).startswith(f"{tmp_path / 'out'} cannot be written (")
    assert error.value.errno == code


def test_a_file_that_cannot_be_read_meanwhile_keeps_its_error(tmp_path):
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/of/another")
    with pytest.raises(PermissionError, match="another"), whole_file(tmp_path / "a"):
        raise error


def test_sha256_is_of_all_bytes(tmp_path):
    data = bytes(range(256)) * 40_000  # more than is read at a time
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()
