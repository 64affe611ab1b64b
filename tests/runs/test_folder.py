import functools
import json
import os
import re
import types

import pytest
from etils import epath
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.data.files import write_json
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.resume import begin_run


def paper(**overrides):
    return config_lib.load(load_config("paper", **overrides).to_dict())


@pytest.fixture
def begun(tmp_path):
    """A folder that holds a checkpoint of the paper's configuration."""
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    write_json(tmp_path / "config.json", paper().to_dict())
    return epath.Path(tmp_path)


def test_a_folder_of_another_job_is_refused_in_one_line(begun):
    assert begin_run(begun, paper()) == paper()
    values = load_config("sst2", file="finetune", init_from="runs/pretrain/paper")
    with pytest.raises(ValueError, match=r"job 'pretrain', not 'finetune'") as error:
        begin_run(begun, config_lib.load(values.to_dict()))
    assert re.search(r"name another --workdir\.$", str(error.value))


def test_scores_begin_a_run_as_checkpoints_do(tmp_path):
    folder = epath.Path(tmp_path)
    write_json(folder / "config.json", paper().to_dict())
    (folder / "scores").mkdir()
    assert not run_folder.has_begun(folder)
    begin_run(folder, paper(seed=1))
    (folder / "scores" / "run").mkdir()
    assert run_folder.has_begun(folder)
    with pytest.raises(ValueError, match=r"config.seed is 1, saved 0"):
        begin_run(folder, paper(seed=1))


def test_a_run_of_an_older_version_keeps_its_ways(begun, capsys):
    """A key that the folder lacks gets the value that does what the run did."""
    saved = json.loads((begun / "config.json").read_text())
    del saved["eval"]["max_batches"]
    write_json(begun / "config.json", saved)
    config = begin_run(begun, paper(eval__max_batches=3))
    assert config.eval.max_batches == 0
    assert "config.eval.max_batches is newer than this run" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["[]", "null", "3", "{}", '{"job": 3}', '{"job": "x"}', "", "[" * 100_000]
)
def test_a_configuration_file_of_another_kind_is_one_error(begun, text):
    (begun / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config.json|of the job"):
        begin_run(begun, paper())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match=r"--workdir=DIR"):
        begin_run(epath.Path(tmp_path / "file" / "run"), paper())


@pytest.mark.parametrize(
    ("usage", "needs"),
    [({"f_files": 900, "f_favail": 49}, "up to 50 files"), ({"f_files": 0}, None)],
    ids=["few files left", "no limit"],
)
def test_a_disk_without_files_left_is_full(tmp_path, monkeypatch, usage, needs):
    blocks = {"f_bavail": 99, "f_blocks": 99, "f_bfree": 99, "f_frsize": 512}
    usage = types.SimpleNamespace(**{"f_favail": 0, **blocks, **usage})
    monkeypatch.setattr(os, "statvfs", lambda folder: usage)
    room = functools.partial(run_folder.check_room, epath.Path(tmp_path), 10, "It")
    if needs:
        with pytest.raises(OSError, match=f"is full: It needs {needs}. .* to resume"):
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
